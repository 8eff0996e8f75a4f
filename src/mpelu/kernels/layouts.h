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

enum Operation { forward_op, backward_from_input, backward_from_output };

// What an operation needs to know of a channel (planes) or a column (rows).
template <class S>
struct Parameters {
  const S *alpha, *beta;
  const S* rate;     // beta log2(e)
  const S* lowest;   // below it e^(beta y) is zero as far as anyone can tell
  const S* inverse;  // 1 / alpha
};

constexpr Index plane_piece = 4096;  // elements of a channel that are summed up in one piece
constexpr Index most_channels = 128;  // of a piece; their sums stay in the L1 cache

struct Job {
  const void* input;  // forward: the input; backward: what was saved
  const void* grad;
  void* output;
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
  F<S, W> alpha, beta, rate, lowest, inverse;
};

template <int W, class T, class S = Wide<T>>
INLINE F<S, W> activate(F<S, W> x, const Channel<S, W>& c) {
  auto power = power_of_two<W, T>(at_least<S, W>(x, c.lowest), c.rate);
  F<S, W> part = power.whole * power.fraction + (power.whole - S(1));
  // The sign bit alone decides: it costs no comparison, and at zero both sides are zero.
  return (I<S, W>)x < 0 ? c.alpha * part : x;
}

// Sums g f for alpha's gradient and g (f + alpha) log2(e^(beta y)) for beta's, each up to a factor
// of the channel. From the output, f + alpha is taken before the division by alpha: it is exact
// where f saturates, and would be lost in the rounding of f / alpha.
template <int W, class T, Operation op, class S = Wide<T>>
INLINE F<S, W> differentiate(F<S, W> g, F<S, W> saved, const Channel<S, W>& c,
                             F<S, W>& sum_alpha, F<S, W>& sum_beta) {
  auto positive = saved > S(0);
  F<S, W> negative = positive ? F<S, W>{} : saved;
  F<S, W> below = positive ? F<S, W>{} : g;
  F<S, W> part, top, t;
  if constexpr (op == backward_from_input) {
    F<S, W> y = at_least<S, W>(negative, c.lowest);
    auto power = power_of_two<W, T>(y, c.rate);
    t = y * c.rate;
    part = power.whole * power.fraction + (power.whole - S(1));  // f / alpha: alpha may be zero
    top = c.alpha * (power.whole * power.fraction + power.whole);
  } else {
    part = negative;
    top = c.alpha + negative;
    t = log2_1p<S, W>(top * c.inverse, negative, c.inverse);
  }
  F<S, W> weighted = below * top;
  sum_alpha += below * part;
  sum_beta += weighted * t;
  return positive ? g : weighted * c.beta;
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

// n elements of one channel.
template <int W, class T, class S = Wide<T>>
INLINE void plane_forward(const T* x, T* out, Index n, const Channel<S, W>& c) {
  if (n < W) {
    Padded<W, T> all(x, n);
    store<W>(all.values, activate<W, T>(load<W>(all.values), c));
    return all.write(out, n);
  }
  F<S, W> last = load<W>(x + n - W);
  Index i = for_vectors<W, T>(
      0, n,
      [=](Index i) __attribute__((always_inline)) {
        expect_read(x + i);
        expect_write(out + i);
      },
      [=, &c](Index i) __attribute__((always_inline)) {
        store<W>(out + i, activate<W, T>(load<W>(x + i), c));
      });
  if (i < n) store<W>(out + n - W, activate<W, T>(last, c));
}

template <int W, class T, Operation op, class S = Wide<T>>
INLINE void plane_backward(const T* g, const T* x, T* out, Index n, const Channel<S, W>& c,
                           F<S, W>& sum_alpha, F<S, W>& sum_beta) {
  auto step = [&](const T* g, const T* x, T* out) __attribute__((always_inline)) {
    store<W>(out, differentiate<W, T, op>(load<W>(g), load<W>(x), c, sum_alpha, sum_beta));
  };
  if (n < W) {
    Padded<W, T> all_g(g, n), all_x(x, n);
    step(all_g.values, all_x.values, all_g.values);
    return all_g.write(out, n);
  }
  Index i = for_vectors<W, T>(
      0, n,
      [=](Index i) __attribute__((always_inline)) {
        expect_read(g + i);
        expect_read(x + i);
        expect_write(out + i);
      },
      [=](Index i) __attribute__((always_inline)) { step(g + i, x + i, out + i); });
  if (i < n) {
    F<S, W> a{}, b{};
    const Index at = n - W;
    store<W>(out + at, differentiate<W, T, op>(load<W>(g + at), load<W>(x + at), c, a, b));
    sum_alpha += only_last<S, W>(a, n - i);
    sum_beta += only_last<S, W>(b, n - i);
  }
}

// Piece by piece: a part of the planes of a block of channels, for a group of outer indices.
template <int W, class T, Operation op>
INLINE void planes(const Job& job, Index begin, Index end) {
  using S = Wide<T>;
  const auto& p = *static_cast<const Parameters<S>*>(job.parameters);
  F<S, W> sums[2 * most_channels];
  for (Index piece = begin; piece < end; ++piece) {
    Index part = piece % job.parts;
    Index block = piece / job.parts % job.blocks;
    Index group = piece / job.parts / job.blocks;
    Index start = part * plane_piece, n = std::min(plane_piece, job.length - start);
    Index first = block * job.block, last = std::min(first + job.block, job.channels);
    Index from = group * job.group, to = std::min(from + job.group, job.outer);
    for (Index c = 0; op != forward_op && c < 2 * (last - first); ++c) sums[c] = F<S, W>{};
    for (Index outer = from; outer < to; ++outer)
      for (Index c = first; c < last; ++c) {
        Index offset = (outer * job.channels + c) * job.length + start;
        const T* x = static_cast<const T*>(job.input) + offset;
        T* out = static_cast<T*>(job.output) + offset;
        const Channel<S, W> channel = {
            broadcast<S, W>(p.alpha[c]), broadcast<S, W>(p.beta[c]), broadcast<S, W>(p.rate[c]),
            broadcast<S, W>(p.lowest[c]), broadcast<S, W>(p.inverse[c])};
        if constexpr (op == forward_op) {
          plane_forward<W>(x, out, n, channel);
        } else {
          F<S, W> sum_alpha = sums[2 * (c - first)], sum_beta = sums[2 * (c - first) + 1];
          plane_backward<W, T, op>(static_cast<const T*>(job.grad) + offset, x, out, n, channel,
                                   sum_alpha, sum_beta);
          sums[2 * (c - first)] = sum_alpha;
          sums[2 * (c - first) + 1] = sum_beta;
        }
      }
    S* partial = static_cast<S*>(job.partial) + (group * job.parts + part) * 2 * job.channels;
    for (Index c = first; op != forward_op && c < last; ++c) {
      partial[c] = sum<S, W>(sums[2 * (c - first)]);
      partial[job.channels + c] = sum<S, W>(sums[2 * (c - first) + 1]);
    }
  }
}

template <int W, class S>
INLINE Channel<S, W> columns(const Parameters<S>& p, Index i) {
  return {load<W>(p.alpha + i), load<W>(p.beta + i), load<W>(p.rate + i), load<W>(p.lowest + i),
          load<W>(p.inverse + i)};
}

template <int W, class S>
INLINE Channel<S, W> few_columns(const Parameters<S>& p, Index i, Index n) {
  auto padded = [=](const S* values) __attribute__((always_inline)) {
    return load<W>(Padded<W, S>(values + i, n).values);
  };
  return {padded(p.alpha), padded(p.beta), padded(p.rate), padded(p.lowest), padded(p.inverse)};
}

// Columns begin to end of a row that starts at x.
template <int W, class T, class S = Wide<T>>
INLINE void row_forward(const Parameters<S>& p, const T* x, T* out, Index begin, Index end) {
  if (end - begin < W) {
    Index n = end - begin;
    Padded<W, T> all(x + begin, n);
    store<W>(all.values, activate<W, T>(load<W>(all.values), few_columns<W, S>(p, begin, n)));
    return all.write(out + begin, n);
  }
  F<S, W> last = load<W>(x + end - W);
  Index i = for_vectors<W, T>(
      begin, end,
      [=](Index i) __attribute__((always_inline)) {
        expect_read(x + i);
        expect_write(out + i);
      },
      [=, &p](Index i) __attribute__((always_inline)) {
        store<W>(out + i, activate<W, T>(load<W>(x + i), columns<W, S>(p, i)));
      });
  if (i < end) store<W>(out + end - W, activate<W, T>(last, columns<W, S>(p, end - W)));
}

template <int W, class T, Operation op, class S = Wide<T>>
INLINE void row_backward(const Parameters<S>& p, const T* g, const T* x, T* out, S* sum_alpha,
                         S* sum_beta, Index begin, Index end) {
  auto step = [](const T* g, const T* x, T* out, const Channel<S, W>& c, S* sum_alpha,
                 S* sum_beta) __attribute__((always_inline)) {
    F<S, W> a = load<W>(sum_alpha), b = load<W>(sum_beta);
    store<W>(out, differentiate<W, T, op>(load<W>(g), load<W>(x), c, a, b));
    store<W>(sum_alpha, a);
    store<W>(sum_beta, b);
  };
  if (end - begin < W) {
    Index n = end - begin;
    Padded<W, T> all_g(g + begin, n), all_x(x + begin, n);
    Padded<W, S> a(sum_alpha + begin, n), b(sum_beta + begin, n);
    step(all_g.values, all_x.values, all_g.values, few_columns<W, S>(p, begin, n), a.values,
         b.values);
    all_g.write(out + begin, n);
    a.write(sum_alpha + begin, n);
    return b.write(sum_beta + begin, n);
  }
  Index i = for_vectors<W, T>(
      begin, end,
      [=](Index i) __attribute__((always_inline)) {
        expect_read(g + i);
        expect_read(x + i);
        expect_write(out + i);
      },
      [=, &p](Index i) __attribute__((always_inline)) {
        step(g + i, x + i, out + i, columns<W, S>(p, i), sum_alpha + i, sum_beta + i);
      });
  if (i < end) {
    F<S, W> a{}, b{};
    const Index at = end - W;
    store<W>(out + at, differentiate<W, T, op>(load<W>(g + at), load<W>(x + at),
                                               columns<W, S>(p, at), a, b));
    store<W>(sum_alpha + at, load<W>(sum_alpha + at) + only_last<S, W>(a, end - i));
    store<W>(sum_beta + at, load<W>(sum_beta + at) + only_last<S, W>(b, end - i));
  }
}

// Piece by piece: a block of columns of a group of rows.
template <int W, class T, Operation op>
INLINE void rows(const Job& job, Index begin, Index end) {
  using S = Wide<T>;
  const auto& p = *static_cast<const Parameters<S>*>(job.parameters);
  for (Index piece = begin; piece < end; ++piece) {
    Index group = piece / job.blocks;
    Index first = piece % job.blocks * job.block;
    Index last = std::min(first + job.block, job.length);
    Index from = group * job.group * job.length;
    Index to = std::min(from + job.group * job.length, job.total);
    S* sums = static_cast<S*>(job.partial) + group * 2 * job.length;
    if (op != forward_op) {
      std::fill(sums + first, sums + last, S(0));
      std::fill(sums + job.length + first, sums + job.length + last, S(0));
    }
    for (Index offset = from; offset < to; offset += job.length) {
      Index stop = std::min(last, to - offset);  // the very last row may be a short one
      if (stop <= first) break;
      const T* x = static_cast<const T*>(job.input) + offset;
      T* out = static_cast<T*>(job.output) + offset;
      if constexpr (op == forward_op)
        row_forward<W>(p, x, out, first, stop);
      else
        row_backward<W, T, op>(p, static_cast<const T*>(job.grad) + offset, x, out, sums,
                               sums + job.length, first, stop);
    }
  }
}
