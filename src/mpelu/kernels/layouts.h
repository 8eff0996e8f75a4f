// MPELU on one vector, and the two ways through a tensor: planes and rows.
//
// A tensor is seen as [outer, channels, inner] in memory order. Long runs of one channel go through
// `planes`, with the parameters of the channel in registers; otherwise memory is cut into equal
// `rows` with parameters per column (channels_last, matrices, tiny maps). Work is cut into pieces
// that depend on the shape alone, each with its own sums, so the result doesn't depend on the
// number of threads.

#pragma once

#include <algorithm>

#include "simd.h"

enum Coordinates { paper, slopes, coordinates };  // alpha and beta, or slope and rate

enum Operation {
  forward_op,
  forward_with_bits,  // which tell where the input was positive
  backward_from_input,
  backward_from_output,
  backward_from_bits,  // and the output
  operations
};
constexpr bool is_forward(Operation op) { return op < backward_from_input; }
constexpr bool is_from_output(Operation op) { return op > backward_from_input; }

// What an operation needs to know of a channel (planes) or a column (rows).
enum Value {
  scale,    // alpha or slope, s
  factor,   // beta or rate, b, not below its bound; slopes: nor so small that nobody can tell
  rate,     // b log2(e)
  lowest,   // below it e^(b y) is zero as far as anyone can tell
  inverse,  // 1 / s
  // slopes only
  deepest,  // lowest, or -inf if b = 0: f is not bounded then
  step,     // ln(2) / b; forward: 0 if b is
  level,    // s / b, from which f is as far as e^(b y) from zero; forward: 0 if b is
  ratio,    // b / s
  values
};

template <class S>
struct Parameters {
  const S* at[values];
};

constexpr Index plane_piece = 4096;  // elements of a channel that are summed up in one piece
constexpr Index most_channels = 128;  // of a piece; their sums stay in the L1 cache

struct Job {
  const void* input;  // forward: the input; backward: what was saved
  const void* grad;
  void* output;
  uint8_t* bits;           // of the elements in memory order
  const void* parameters;  // Parameters<S>
  void* partial;  // S; planes: [group, part of a plane, 2, channels]; rows: [group, 2, length]
  Index total;
  Index length;                   // of a plane or of a row
  Index outer, channels;          // planes only
  Index group;                    // rows, or planes of a channel, that are summed up together
  Index parts, blocks, block;     // of a plane (planes only); of the channels or columns
};

template <class S, int W>
struct Channel {
  F<S, W> at[values];
};

template <int W, class T, Coordinates form, class S = Wide<T>>
INLINE F<S, W> activate(F<S, W> x, const Channel<S, W>& c) {
  F<S, W> y = at_least<S, W>(x, c.at[lowest]), f;
  if constexpr (form == paper) {
    auto power = power_of_two<W, T>(y, c.at[rate]);
    f = c.at[scale] * (power.whole * power.fraction + (power.whole - S(1)));
  } else {
    // s (2^n (e^(b y) - 2^n) / b + (2^n - 1) / b) without a division: s y (1 + ...) where 2^n is 1
    auto power = split<S, W>(y, c.at[rate]);
    F<S, W> rest = at_least<S, W>(x, c.at[deepest]) - power.n * c.at[step];
    f = (power.whole * c.at[scale]) * (rest * growth<W, T>(power.r)) +
        (power.whole * c.at[level] - c.at[level]);
  }
  // The sign bit alone decides: it costs no comparison, and at zero both sides are zero.
  return (I<S, W>)x < 0 ? f : x;
}

// Sums, each up to a factor of the channel:
//   paper   g f for alpha's gradient and g (f + alpha) log2(e^(beta y)) for beta's
//   slopes  g f for the slope's and g (w ln(w) - w + 1), w = e^(b y), for the rate's
// From the output, f + alpha (f + s / b) is taken before the division: it is exact where f saturates,
// and would be lost in the rounding of f / alpha. Where a positive output is infinite or close to it,
// the sums of slopes become NaN, and the caller has them computed otherwise.
template <int W, class T, Operation op, Coordinates form, class S = Wide<T>>
INLINE F<S, W> differentiate(F<S, W> g, F<S, W> saved, I<S, W> positive, const Channel<S, W>& c,
                             F<S, W>& sum_first, F<S, W>& sum_second) {
  F<S, W> negative = positive ? F<S, W>{} : saved;
  F<S, W> below = positive ? F<S, W>{} : g;
  F<S, W> slope;
  if constexpr (op == backward_from_input && form == paper) {
    F<S, W> y = at_least<S, W>(negative, c.at[lowest]);
    auto power = power_of_two<W, T>(y, c.at[rate]);
    sum_first += below * (power.whole * power.fraction + (power.whole - S(1)));  // may be zero: alpha
    slope = below * (c.at[scale] * (power.whole * power.fraction + power.whole));
    sum_second += slope * (y * c.at[rate]);
    slope *= c.at[factor];
  } else if constexpr (op == backward_from_input) {
    F<S, W> y = at_least<S, W>(negative, c.at[lowest]);
    auto power = split<S, W>(y, c.at[rate]);
    F<S, W> grown = growth<W, T>(power.r);
    F<S, W> w = power.whole * (grown * (power.r * S(log_2))) + power.whole;
    F<S, W> rest = at_least<S, W>(negative, c.at[deepest]) - power.n * c.at[step];
    sum_first += below * (power.whole * (rest * grown) + (power.whole - S(1)) * c.at[level]);
    sum_second += below * excess<W, T>(power, w);
    slope = below * (w * c.at[scale]);
  } else if constexpr (form == paper) {
    F<S, W> top = c.at[scale] + negative;
    F<S, W> t = log2_1p<S, W>(top * c.at[inverse], negative, c.at[inverse]);
    slope = below * top;
    sum_first += below * negative;
    sum_second += slope * t;
    slope *= c.at[factor];
  } else {
    F<S, W> top = c.at[level] + saved;
    sum_first += below * saved;
    sum_second += below * excess_1p<S, W>(top * c.at[ratio], saved, c.at[ratio]);
    slope = below * (top * c.at[factor]);
  }
  return positive ? g : slope;
}

// The lanes that were positive, from the saved values or from the bits at the offset of the first.
template <Operation op, class S, int W>
INLINE I<S, W> positive(F<S, W> saved, const uint8_t* bits, Index offset) {
  if constexpr (op == backward_from_bits)
    return lanes_from<S, W>(bits, offset);
  else
    return saved > S(0);
}

// Calls each(i) for the whole vectors of [begin, end), and ahead(i) once for each cache line of them;
// returns where it stopped.
template <int W, class T, class Ahead, class Each>
INLINE Index for_vectors(Index begin, Index end, Ahead ahead, Each each) {
  constexpr Index line = std::max<Index>(64 / sizeof(T), W);
  Index i = begin;
  for (; i + line <= end; i += line) {
    ahead(i);
#pragma GCC unroll 8
    for (Index j = 0; j < line; j += W) each(i + j);
  }
  for (; i + W <= end; i += W) each(i);
  return i;
}

// The last, incomplete vector of a span overlaps with the one before it: it is loaded before that is
// overwritten (input and output may be the same), and its first lanes are kept out of the sums.
template <class S, int W>
INLINE F<S, W> only_last(F<S, W> v, Index count) {
  I<S, W> lane;
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) lane[i] = i;
  return lane >= I<S, W>{} + static_cast<typename Lanes<S, W>::Signed>(W - count) ? v : F<S, W>{};
}

// The channel's values for a vector of columns from i on.
template <int W, class S>
INLINE Channel<S, W> columns(const Parameters<S>& p, Index i) {
  Channel<S, W> c;
#pragma GCC unroll 16
  for (int v = 0; v < values; ++v) c.at[v] = load<W>(p.at[v] + i);
  return c;
}

template <int W, class S>
INLINE Channel<S, W> few_columns(const Parameters<S>& p, Index i, Index n) {
  Channel<S, W> c;
#pragma GCC unroll 16
  for (int v = 0; v < values; ++v) c.at[v] = load<W>(Padded<W, S>(p.at[v] + i, n).values);
  return c;
}

// Elements begin to end of a plane or a row that starts at x. `channel` gives the parameters of the
// vector at i, and of n elements if there are fewer.
template <int W, class T, Operation op, Coordinates form, class Each, class Few, class S = Wide<T>>
INLINE void span_forward(const T* x, T* out, Index begin, Index end, Each channel, Few few,
                         Bits<plane_piece>& bits) {
  auto keep = [&](F<S, W> v, Index i, Index unused) __attribute__((always_inline)) {
    if constexpr (op == forward_with_bits)
      bits.template put<W>(i - begin, positive_lanes<S, W>(v) >> unused);
  };
  if (end - begin < W) {
    Index n = end - begin;
    Padded<W, T> all(x + begin, n);
    F<S, W> v = load<W>(all.values);
    store<W>(all.values, activate<W, T, form>(v, few(begin, n)));
    keep(v, begin, 0);
    return all.write(out + begin, n);
  }
  F<S, W> last = load<W>(x + end - W);
  Index i = for_vectors<W, T>(
      begin, end,
      [=](Index i) __attribute__((always_inline)) {
        expect_read(x + i);
        expect_write(out + i);
      },
      [=, &channel](Index i) __attribute__((always_inline)) {
        F<S, W> v = load<W>(x + i);
        store<W>(out + i, activate<W, T, form>(v, channel(i)));
        keep(v, i, 0);
      });
  if (i < end) {
    store<W>(out + end - W, activate<W, T, form>(last, channel(end - W)));
    keep(last, i, W - (end - i));
  }
}

template <int W, class T, Operation op, Coordinates form, class S = Wide<T>>
INLINE void plane_backward(const T* g, const T* x, T* out, const uint8_t* bits, Index offset,
                           Index n, const Channel<S, W>& c, F<S, W>& sum_first,
                           F<S, W>& sum_second) {
  auto gradient = [&](const T* g, const T* x, Index i, F<S, W>& first, F<S, W>& second)
      __attribute__((always_inline)) {
    F<S, W> saved = load<W>(x);
    auto is_positive = positive<op, S, W>(saved, bits, offset + i);
    return differentiate<W, T, op, form>(load<W>(g), saved, is_positive, c, first, second);
  };
  if (n < W) {
    Padded<W, T> all_g(g, n), all_x(x, n);
    store<W>(all_g.values, gradient(all_g.values, all_x.values, 0, sum_first, sum_second));
    return all_g.write(out, n);
  }
  Index i = for_vectors<W, T>(
      0, n,
      [=](Index i) __attribute__((always_inline)) {
        expect_read(g + i);
        expect_read(x + i);
        expect_write(out + i);
      },
      [&](Index i) __attribute__((always_inline)) {
        store<W>(out + i, gradient(g + i, x + i, i, sum_first, sum_second));
      });
  if (i < n) {
    F<S, W> a{}, b{};
    const Index at = n - W;
    store<W>(out + at, gradient(g + at, x + at, at, a, b));
    sum_first += only_last<S, W>(a, n - i);
    sum_second += only_last<S, W>(b, n - i);
  }
}

// Piece by piece: a part of the planes of a block of channels, for a group of outer indices.
template <int W, class T, Operation op, Coordinates form>
INLINE void planes(const Job& job, Index begin, Index end) {
  using S = Wide<T>;
  const auto& p = *static_cast<const Parameters<S>*>(job.parameters);
  F<S, W> sums[2 * most_channels];
  Bits<plane_piece> bits;
  for (Index piece = begin; piece < end; ++piece) {
    Index part = piece % job.parts;
    Index block = piece / job.parts % job.blocks;
    Index group = piece / job.parts / job.blocks;
    Index start = part * plane_piece, n = std::min(plane_piece, job.length - start);
    Index first = block * job.block, last = std::min(first + job.block, job.channels);
    Index from = group * job.group, to = std::min(from + job.group, job.outer);
    for (Index c = 0; !is_forward(op) && c < 2 * (last - first); ++c) sums[c] = F<S, W>{};
    for (Index outer = from; outer < to; ++outer)
      for (Index c = first; c < last; ++c) {
        Index offset = (outer * job.channels + c) * job.length + start;
        const T* x = static_cast<const T*>(job.input) + offset;
        T* out = static_cast<T*>(job.output) + offset;
        Channel<S, W> channel;
#pragma GCC unroll 16
        for (int v = 0; v < values; ++v) channel.at[v] = broadcast<S, W>(p.at[v][c]);
        if constexpr (is_forward(op)) {
          auto one = [&](Index) __attribute__((always_inline)) -> const auto& { return channel; };
          auto few = [&](Index, Index) __attribute__((always_inline)) { return channel; };
          span_forward<W, T, op, form>(x, out, 0, n, one, few, bits);
          if constexpr (op == forward_with_bits) bits.write(job.bits, offset, n);
        } else {
          F<S, W> sum_first = sums[2 * (c - first)], sum_second = sums[2 * (c - first) + 1];
          plane_backward<W, T, op, form>(static_cast<const T*>(job.grad) + offset, x, out, job.bits,
                                         offset, n, channel, sum_first, sum_second);
          sums[2 * (c - first)] = sum_first;
          sums[2 * (c - first) + 1] = sum_second;
        }
      }
    S* partial = static_cast<S*>(job.partial) + (group * job.parts + part) * 2 * job.channels;
    for (Index c = first; !is_forward(op) && c < last; ++c) {
      partial[c] = sum<S, W>(sums[2 * (c - first)]);
      partial[job.channels + c] = sum<S, W>(sums[2 * (c - first) + 1]);
    }
  }
}

// Columns begin to end of a row that starts at x, at `offset` in memory.
template <int W, class T, Operation op, Coordinates form, class S = Wide<T>>
INLINE void row_backward(const Parameters<S>& p, const T* g, const T* x, T* out,
                         const uint8_t* bits, Index offset, S* sum_first, S* sum_second,
                         Index begin, Index end) {
  auto gradient = [&](const T* g, const T* x, Index i, const Channel<S, W>& c, F<S, W>& first,
                      F<S, W>& second) __attribute__((always_inline)) {
    F<S, W> saved = load<W>(x);
    auto is_positive = positive<op, S, W>(saved, bits, offset + i);
    return differentiate<W, T, op, form>(load<W>(g), saved, is_positive, c, first, second);
  };
  if (end - begin < W) {
    Index n = end - begin;
    Padded<W, T> all_g(g + begin, n), all_x(x + begin, n);
    Padded<W, S> all_first(sum_first + begin, n), all_second(sum_second + begin, n);
    F<S, W> a = load<W>(all_first.values), b = load<W>(all_second.values);
    auto c = few_columns<W, S>(p, begin, n);
    store<W>(all_g.values, gradient(all_g.values, all_x.values, begin, c, a, b));
    store<W>(all_first.values, a);
    store<W>(all_second.values, b);
    all_g.write(out + begin, n);
    all_first.write(sum_first + begin, n);
    return all_second.write(sum_second + begin, n);
  }
  Index i = for_vectors<W, T>(
      begin, end,
      [=](Index i) __attribute__((always_inline)) {
        expect_read(g + i);
        expect_read(x + i);
        expect_write(out + i);
      },
      [&](Index i) __attribute__((always_inline)) {
        F<S, W> a = load<W>(sum_first + i), b = load<W>(sum_second + i);
        store<W>(out + i, gradient(g + i, x + i, i, columns<W, S>(p, i), a, b));
        store<W>(sum_first + i, a);
        store<W>(sum_second + i, b);
      });
  if (i < end) {
    F<S, W> a{}, b{};
    const Index at = end - W;
    store<W>(out + at, gradient(g + at, x + at, at, columns<W, S>(p, at), a, b));
    store<W>(sum_first + at, load<W>(sum_first + at) + only_last<S, W>(a, end - i));
    store<W>(sum_second + at, load<W>(sum_second + at) + only_last<S, W>(b, end - i));
  }
}

// Piece by piece: a block of columns of a group of rows.
template <int W, class T, Operation op, Coordinates form>
INLINE void rows(const Job& job, Index begin, Index end) {
  using S = Wide<T>;
  const auto& p = *static_cast<const Parameters<S>*>(job.parameters);
  Bits<plane_piece> bits;
  for (Index piece = begin; piece < end; ++piece) {
    Index group = piece / job.blocks;
    Index first = piece % job.blocks * job.block;
    Index last = std::min(first + job.block, job.length);
    Index from = group * job.group * job.length;
    Index to = std::min(from + job.group * job.length, job.total);
    S* sums = static_cast<S*>(job.partial) + group * 2 * job.length;
    if (!is_forward(op)) {
      std::fill(sums + first, sums + last, S(0));
      std::fill(sums + job.length + first, sums + job.length + last, S(0));
    }
    for (Index offset = from; offset < to; offset += job.length) {
      Index stop = std::min(last, to - offset);  // the very last row may be a short one
      if (stop <= first) break;
      const T* x = static_cast<const T*>(job.input) + offset;
      T* out = static_cast<T*>(job.output) + offset;
      if constexpr (is_forward(op)) {
        auto each = [&](Index i) __attribute__((always_inline)) { return columns<W, S>(p, i); };
        auto few = [&](Index i, Index n) __attribute__((always_inline)) {
          return few_columns<W, S>(p, i, n);
        };
        span_forward<W, T, op, form>(x, out, first, stop, each, few, bits);
        if constexpr (op == forward_with_bits) bits.write(job.bits, offset + first, stop - first);
      } else {
        row_backward<W, T, op, form>(p, static_cast<const T*>(job.grad) + offset, x, out, job.bits,
                                     offset, sums, sums + job.length, first, stop);
      }
    }
  }
}
