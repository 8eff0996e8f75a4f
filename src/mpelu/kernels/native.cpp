// Fused MPELU for CPUs, free of torch: loaded by native.py through ctypes.
//
// A tensor is seen as [outer, channels, inner] in memory order. Long runs of one channel
// (inner large) go through the "planes" kernels with scalar parameters; otherwise memory is cut
// into equal "rows" with one parameter value per column (channels_last, matrices, tiny maps).
// Forward reads and writes once. Backward makes one pass for the input gradient and both
// parameter sums; partial sums are taken over pieces that depend on the shape alone and folded in
// float64 in a fixed order, so the result doesn't depend on the number of threads.
//
// Each kernel is a template over the vector width; the entry points below instantiate it under
// the instruction sets that are chosen from at run time.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <type_traits>
#include <vector>

#define INLINE inline __attribute__((always_inline))
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Index = int64_t;

template <int W>
struct Lanes {
  typedef float F __attribute__((vector_size(W * 4)));
  typedef int32_t I __attribute__((vector_size(W * 4)));
  typedef uint32_t U __attribute__((vector_size(W * 4)));
  typedef uint16_t H __attribute__((vector_size(W * 2)));
};
template <int W> using F = typename Lanes<W>::F;
template <int W> using I = typename Lanes<W>::I;
template <int W> using U = typename Lanes<W>::U;
template <int W> using H = typename Lanes<W>::H;

struct bfloat16 {
  uint16_t bits;
};

template <int W>
INLINE F<W> load(const float* p) {
  F<W> v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

template <int W>
INLINE F<W> load(const bfloat16* p) {
  H<W> h;
  std::memcpy(&h, p, sizeof h);
  return (F<W>)(__builtin_convertvector(h, U<W>) << 16);
}

template <int W>
INLINE void store(float* p, F<W> v) {
  std::memcpy(p, &v, sizeof v);
}

template <int W>
INLINE void store(bfloat16* p, F<W> v) {
  U<W> u = (U<W>)v;
  // To nearest, ties to even. A NaN stays one: it comes from a bfloat16 or from arithmetic, so its
  // low half is zero and the addition doesn't carry.
  u = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  H<W> h = __builtin_convertvector(u, H<W>);
  std::memcpy(p, &h, sizeof h);
}

// The hardware prefetcher stops at each 4 KB page. Asking one page ahead, also for the memory to be
// written, took 15 % off forward and backward of a 32 MB tensor, more off channels_last; 2 and 8 KB
// did the same, non-temporal stores no better.
constexpr Index one_page = 4096;
INLINE void expect_read(const void* p) {
  __builtin_prefetch(static_cast<const char*>(p) + one_page, 0);
}
INLINE void expect_write(const void* p) {
  __builtin_prefetch(static_cast<const char*>(p) + one_page, 1);
}

template <int W>
INLINE F<W> broadcast(float v) {
  return F<W>{} + v;
}

// Every comparison is written so that NaN falls through to the operand that carries it.
template <int W>
INLINE F<W> at_least(F<W> v, float bound) {
  return v < bound ? broadcast<W>(bound) : v;
}

template <int W>
INLINE float sum(F<W> v) {
  if constexpr (W == 1) {
    return v[0];
  } else {
    F<W / 2> half[2];
    std::memcpy(half, &v, sizeof v);
    return sum<W / 2>(half[0] + half[1]);
  }
}

// e^(beta y) in base 2: t = y beta log2(e) = n + r, and 2^r - 1 = r q(r) without cancellation.
template <int W>
struct Exponential {
  F<W> t, power, fraction;  // t not below -126; 2^n; 2^r - 1
  INLINE F<W> minus_one() const { return power * fraction + (power - 1.0f); }
  INLINE F<W> value() const { return power * fraction + power; }
};

template <int W, class T>
INLINE Exponential<W> exponential(F<W> y, F<W> rate) {
  constexpr float round_to_integer = 12582912.0f;  // 1.5 * 2^23: the low mantissa bits hold n
  F<W> t = at_least<W>(y * rate, -126.0f);
  F<W> shifted = t + round_to_integer;
  F<W> power = (F<W>)(((U<W>)shifted << 23) + 0x3f800000u);
  // Fused where the CPU can: the product is not rounded.
  F<W> r = at_least<W>(y * rate - (shifted - round_to_integer), -1.0f);
  F<W> q;  // minimax on [-1/2, 1/2]
  if constexpr (std::is_same_v<T, bfloat16>) {  // relative error 1.5e-5, where rounding is 2e-3
    q = broadcast<W>(9.61811030e-3f);
    q = q * r + 5.58372882e-2f;
    q = q * r + 2.40232522e-1f;
    q = q * r + 6.93136858e-1f;
  } else {  // relative error 1.1e-8
    q = broadcast<W>(1.54035123e-4f);
    q = q * r + 1.33907355e-3f;
    q = q * r + 9.61823750e-3f;
    q = q * r + 5.55035743e-2f;
    q = q * r + 2.40226498e-1f;
    q = q * r + 6.93147188e-1f;
  }
  return {t, power, q * r};
}

// log2(1 + u) for u in [-1, 0]; finite at u = -1, where its factor 1 + u is zero.
template <int W>
INLINE F<W> log2_1p(F<W> u, F<W> w) {
  I<W> bits = (I<W>)w;
  I<W> exponent = (bits - 0x3f3504f3) >> 23;  // mantissa from sqrt(1/2) to sqrt(2)
  F<W> mantissa = (F<W>)((U<W>)bits - ((U<W>)exponent << 23));
  F<W> f = exponent == 0 ? u : mantissa - 1.0f;  // u itself: 1 + u has lost its low digits
  F<W> q = broadcast<W>(1.25804442e-1f);  // minimax, relative error 2.6e-8
  q = q * f - 2.07261008e-1f;
  q = q * f + 2.15722404e-1f;
  q = q * f - 2.38946238e-1f;
  q = q * f + 2.87915784e-1f;
  q = q * f - 3.60703620e-1f;
  q = q * f + 4.80910654e-1f;
  q = q * f - 7.21347347e-1f;
  q = q * f + 1.44269500f;
  return q * f + __builtin_convertvector(exponent, F<W>);
}

// The three operations on one vector, with the numbers of a channel that they need.
enum Operation { forward_op, backward_from_input, backward_from_output };

template <int W>
struct Channel {
  F<W> alpha, beta;
  F<W> rate;     // beta log2(e)
  F<W> inverse;  // 1 / alpha, for backward from the output
};

template <int W, class T>
INLINE F<W> activate(F<W> x, const Channel<W>& c) {
  return x > 0.0f ? x : c.alpha * exponential<W, T>(x, c.rate).minus_one();
}

// Sums g f for alpha's gradient and g (f + alpha) log2(e^(beta y)) for beta's, each up to a factor
// of the channel. From the output, f + alpha is taken before the division by alpha: it is exact
// where f saturates, and would be lost in the rounding of f / alpha.
template <int W, class T, Operation op>
INLINE F<W> differentiate(F<W> g, F<W> saved, const Channel<W>& c, F<W>& sum_alpha,
                          F<W>& sum_beta) {
  auto positive = saved > 0.0f;
  F<W> negative = positive ? F<W>{} : saved;
  F<W> below = positive ? F<W>{} : g;
  F<W> part, top, t;
  if constexpr (op == backward_from_input) {
    auto e = exponential<W, T>(negative, c.rate);
    part = e.minus_one();  // f / alpha: alpha may be zero
    top = c.alpha * e.value();
    t = e.t;
  } else {
    part = negative;
    top = at_least<W>(c.alpha + negative, 0.0f);
    t = log2_1p<W>(negative * c.inverse, top * c.inverse);
  }
  sum_alpha += below * part;
  sum_beta += below * (top * t);
  return positive ? g : g * (c.beta * top);
}

// The last, incomplete vector of a span is worked on in a padded copy.
template <int W, class T>
struct Padded {
  T values[W];
  INLINE Padded(const T* p, Index n) {
    std::memset(values, 0, sizeof values);
    std::memcpy(values, p, n * sizeof(T));
  }
  INLINE void write(T* p, Index n) const { std::memcpy(p, values, n * sizeof(T)); }
};

constexpr Index plane_piece = 4096;    // elements
constexpr Index widest_block = 4096;   // columns; their parameters and sums stay in the L2 cache
constexpr Index narrowest_block = 1024;

struct Job {
  const void* input;  // forward: the input; backward: what was saved
  const void* grad;
  void* output;
  const float *alpha, *beta, *rate, *inverse;  // one a channel (planes) or a column (rows)
  float* partial;  // planes: a pair of sums a piece; rows: two sums a column of each group of rows
  Index total;
  Index length;            // of a plane or of a row
  Index channels;          // planes only
  Index pieces_per_plane;  // planes only
  Index rows_per_group, blocks, block;  // rows only: a piece is a block of columns of a group
};

template <int W, class T, Operation op>
INLINE void planes(const Job& job, Index begin, Index end) {
  for (Index piece = begin; piece < end; ++piece) {
    Index plane = piece / job.pieces_per_plane;
    Index start = (piece % job.pieces_per_plane) * plane_piece;
    Index n = std::min(plane_piece, job.length - start);
    Index channel = plane % job.channels;
    Index offset = plane * job.length + start;
    const Channel<W> c = {broadcast<W>(job.alpha[channel]), broadcast<W>(job.beta[channel]),
                          broadcast<W>(job.rate[channel]), broadcast<W>(job.inverse[channel])};
    const T* x = static_cast<const T*>(job.input) + offset;
    T* out = static_cast<T*>(job.output) + offset;
    Index i = 0;
    if constexpr (op == forward_op) {
      for (; i + W <= n; i += W) {
        expect_read(x + i);
        expect_write(out + i);
        store<W>(out + i, activate<W, T>(load<W>(x + i), c));
      }
      if (i < n) {
        Padded<W, T> tail(x + i, n - i);
        store<W>(tail.values, activate<W, T>(load<W>(tail.values), c));
        tail.write(out + i, n - i);
      }
    } else {
      const T* g = static_cast<const T*>(job.grad) + offset;
      F<W> sum_alpha{}, sum_beta{};
      auto step = [&](const T* g, const T* x, T* out) __attribute__((always_inline)) {
        store<W>(out, differentiate<W, T, op>(load<W>(g), load<W>(x), c, sum_alpha, sum_beta));
      };
      for (; i + W <= n; i += W) {
        expect_read(g + i);
        expect_read(x + i);
        expect_write(out + i);
        step(g + i, x + i, out + i);
      }
      if (i < n) {
        Padded<W, T> tail_x(x + i, n - i), tail_g(g + i, n - i);
        step(tail_g.values, tail_x.values, tail_g.values);
        tail_g.write(out + i, n - i);
      }
      job.partial[2 * piece] = sum<W>(sum_alpha);
      job.partial[2 * piece + 1] = sum<W>(sum_beta);
    }
  }
}

template <int W>
INLINE Channel<W> columns(const Job& job, Index i) {
  return {load<W>(job.alpha + i), load<W>(job.beta + i), load<W>(job.rate + i),
          load<W>(job.inverse + i)};
}

template <int W>
INLINE Channel<W> last_columns(const Job& job, Index i, Index n) {
  auto padded = [=](const float* p) __attribute__((always_inline)) {
    return load<W>(Padded<W, float>(p + i, n).values);
  };
  return {padded(job.alpha), padded(job.beta), padded(job.rate), padded(job.inverse)};
}

// Columns begin to end of a row that starts at x.
template <int W, class T>
INLINE void row_forward(const Job& job, const T* x, T* out, Index begin, Index end) {
  Index i = begin;
  for (; i + W <= end; i += W) {
    expect_read(x + i);
    expect_write(out + i);
    store<W>(out + i, activate<W, T>(load<W>(x + i), columns<W>(job, i)));
  }
  if (i < end) {
    Padded<W, T> tail(x + i, end - i);
    store<W>(tail.values, activate<W, T>(load<W>(tail.values), last_columns<W>(job, i, end - i)));
    tail.write(out + i, end - i);
  }
}

template <int W, class T, Operation op>
INLINE void row_backward(const Job& job, const T* g, const T* x, T* out, float* sum_alpha,
                         float* sum_beta, Index begin, Index end) {
  auto step = [](const T* g, const T* x, T* out, const Channel<W>& c, float* sum_alpha,
                 float* sum_beta) __attribute__((always_inline)) {
    F<W> a = load<W>(sum_alpha), b = load<W>(sum_beta);
    store<W>(out, differentiate<W, T, op>(load<W>(g), load<W>(x), c, a, b));
    store<W>(sum_alpha, a);
    store<W>(sum_beta, b);
  };
  Index i = begin;
  for (; i + W <= end; i += W) {
    expect_read(g + i);
    expect_read(x + i);
    expect_write(out + i);
    step(g + i, x + i, out + i, columns<W>(job, i), sum_alpha + i, sum_beta + i);
  }
  if (i < end) {
    Index n = end - i;
    Padded<W, T> tail_g(g + i, n), tail_x(x + i, n);
    Padded<W, float> a(sum_alpha + i, n), b(sum_beta + i, n);
    step(tail_g.values, tail_x.values, tail_g.values, last_columns<W>(job, i, n), a.values,
         b.values);
    tail_g.write(out + i, n);
    a.write(sum_alpha + i, n);
    b.write(sum_beta + i, n);
  }
}

template <int W, class T, Operation op>
INLINE void rows(const Job& job, Index begin, Index end) {
  for (Index piece = begin; piece < end; ++piece) {
    Index group = piece / job.blocks;
    Index first = piece % job.blocks * job.block;
    Index last = std::min(first + job.block, job.length);
    Index from = group * job.rows_per_group * job.length;
    Index to = std::min(from + job.rows_per_group * job.length, job.total);
    for (Index offset = from; offset < to; offset += job.length) {
      Index stop = std::min(last, to - offset);  // the very last row may be a short one
      const T* x = static_cast<const T*>(job.input) + offset;
      T* out = static_cast<T*>(job.output) + offset;
      if constexpr (op == forward_op) {
        row_forward<W>(job, x, out, first, stop);
      } else {
        float* sums = job.partial + group * 2 * job.length;
        row_backward<W, T, op>(job, static_cast<const T*>(job.grad) + offset, x, out, sums,
                               sums + job.length, first, stop);
      }
    }
  }
}

using Kernel = void (*)(const Job&, Index, Index);

struct Kernels {
  Kernel planes[2][3];  // [dtype][operation]
  Kernel rows[2][3];
};

#define ENTRY(isa, target, width, layout, type, op)                            \
  target void layout##_##isa##_##type##_##op(const Job& job, Index b, Index e) { \
    layout<width, type, op>(job, b, e);                                        \
  }
#define ENTRIES(isa, target, width)                                \
  ENTRY(isa, target, width, planes, float, forward_op)             \
  ENTRY(isa, target, width, planes, float, backward_from_input)    \
  ENTRY(isa, target, width, planes, float, backward_from_output)   \
  ENTRY(isa, target, width, planes, bfloat16, forward_op)          \
  ENTRY(isa, target, width, planes, bfloat16, backward_from_input) \
  ENTRY(isa, target, width, planes, bfloat16, backward_from_output) \
  ENTRY(isa, target, width, rows, float, forward_op)               \
  ENTRY(isa, target, width, rows, float, backward_from_input)      \
  ENTRY(isa, target, width, rows, float, backward_from_output)     \
  ENTRY(isa, target, width, rows, bfloat16, forward_op)            \
  ENTRY(isa, target, width, rows, bfloat16, backward_from_input)   \
  ENTRY(isa, target, width, rows, bfloat16, backward_from_output)  \
  const Kernels isa##_kernels = {{ROW(planes, isa, float), ROW(planes, isa, bfloat16)}, \
                                 {ROW(rows, isa, float), ROW(rows, isa, bfloat16)}};
#define ROW(layout, isa, type)                                                          \
  {layout##_##isa##_##type##_forward_op, layout##_##isa##_##type##_backward_from_input, \
   layout##_##isa##_##type##_backward_from_output}

ENTRIES(portable, , 4)  // what every x86-64 (SSE2) and arm64 (NEON) has
#if defined(__x86_64__)
ENTRIES(avx2, __attribute__((target("avx2,fma"))), 8)
ENTRIES(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"))), 16)
#endif

struct Choice {
  const char* name;
  const Kernels* kernels;
};

std::vector<Choice> available() {
  std::vector<Choice> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    found.push_back({"avx512", &avx512_kernels});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.push_back({"avx2", &avx2_kernels});
#endif
  found.push_back({"portable", &portable_kernels});
  return found;
}

Choice chosen = available().front();

void run(Kernel kernel, const Job& job, Index pieces, int threads) {
  threads = static_cast<int>(std::min<Index>(threads, pieces));
  if (job.total < 32768) threads = 1;  // waking a second thread costs more than it saves
#if defined(_OPENMP)
#pragma omp parallel for num_threads(threads) schedule(static)
#endif
  for (int part = 0; part < threads; ++part)
    kernel(job, pieces * part / threads, pieces * (part + 1) / threads);
}

constexpr double log2_e = 1.4426950408889634;

// Outside of this the caller's reference implementation takes over: a negative beta would need
// the exponential above 1, and infinite or NaN parameters their own rules.
bool in_domain(const float* alpha, const float* beta, Index n, Operation op) {
  for (Index c = 0; c < n; ++c) {
    if (!(beta[c] > 1e-30f && beta[c] < 1e30f && std::fabs(alpha[c]) < 1e30f)) return false;
    if (op == backward_from_output && !(alpha[c] >= 1e-20f)) return false;
  }
  return true;
}

enum Status { done = 0, outside_domain = 1, out_of_memory = 2 };

struct Layout {
  Index outer, channels, inner;
};

// Calls visit(column, channel) for every column of a row; no divisions, of which there'd be many.
template <class Visit>
void for_columns(Index columns, Index channels, Index inner, Visit visit) {
  for (Index column = 0; column < columns;)
    for (Index channel = 0; channel < channels; ++channel)
      for (Index end = column + inner; column < end; ++column) visit(column, channel);
}

// Sums of [piece, 2] or [group, 2, columns] to one pair for each channel.
std::vector<double> fold(const Job& job, const std::vector<float>& partial, const Layout& at,
                         bool by_planes) {
  std::vector<double> sums(2 * at.channels);
  if (by_planes) {
    for (size_t piece = 0; 2 * piece < partial.size(); ++piece) {
      Index channel = piece / job.pieces_per_plane % at.channels;
      sums[channel] += partial[2 * piece];
      sums[at.channels + channel] += partial[2 * piece + 1];
    }
    return sums;
  }
  std::vector<double> columns(2 * job.length);
  for (size_t start = 0; start < partial.size(); start += columns.size())
    for (size_t i = 0; i < columns.size(); ++i) columns[i] += partial[start + i];
  for_columns(job.length, at.channels, at.inner, [&](Index column, Index channel) {
    sums[channel] += columns[column];
    sums[at.channels + channel] += columns[job.length + column];
  });
  return sums;
}

Index divide_up(Index a, Index b) { return (a + b - 1) / b; }

Status execute(Operation op, Job job, Layout at, const float* alpha, const float* beta,
               float* grad_alpha, float* grad_beta, int dtype, int threads) try {
  if (!in_domain(alpha, beta, at.channels, op)) return outside_domain;
  job.total = at.outer * at.channels * at.inner;
  bool by_planes = at.channels == 1 || at.inner >= 32;
  Index pieces, partials;
  if (by_planes) {
    job.length = at.inner;
    job.channels = at.channels;
    job.pieces_per_plane = divide_up(at.inner, plane_piece);
    pieces = at.outer * at.channels * job.pieces_per_plane;
    partials = 2 * pieces;
  } else {
    // Short rows are joined to at least 256 columns, and to whole vectors where that is cheap.
    Index row = at.channels * at.inner;
    Index whole = 16 / std::gcd(row, Index(16));
    Index joined = divide_up(256, row);
    Index rounded = divide_up(joined, whole) * whole;
    if (rounded * row <= widest_block) joined = rounded;
    job.length = row * std::min(joined, at.outer);
    // Groups of 32 to 128 rows, so that writing their sums costs little; where that makes fewer
    // than 16 pieces to share out, blocks of columns make up for it.
    Index count = divide_up(job.total, job.length);
    job.rows_per_group = std::clamp<Index>(divide_up(count, 64), 32, 128);
    Index groups = divide_up(count, job.rows_per_group);
    Index wanted = std::min(divide_up(job.length, narrowest_block), divide_up(16, groups));
    job.blocks = std::max(divide_up(job.length, widest_block), wanted);
    job.block = divide_up(divide_up(job.length, job.blocks), 16) * 16;
    job.blocks = divide_up(job.length, job.block);
    pieces = groups * job.blocks;
    partials = 2 * groups * job.length;
  }

  Index columns = by_planes ? at.channels : job.length;
  std::vector<float> parameters(4 * columns), partial(op == forward_op ? 0 : partials);
  for_columns(columns, at.channels, by_planes ? 1 : at.inner, [&](Index column, Index channel) {
    parameters[column] = alpha[channel];
    parameters[columns + column] = beta[channel];
    parameters[2 * columns + column] = static_cast<float>(beta[channel] * log2_e);
    parameters[3 * columns + column] = 1.0f / alpha[channel];
  });
  job.alpha = parameters.data();
  job.beta = job.alpha + columns;
  job.rate = job.beta + columns;
  job.inverse = job.rate + columns;
  job.partial = partial.data();

  const Kernels& kernels = *chosen.kernels;
  run((by_planes ? kernels.planes : kernels.rows)[dtype][op], job, pieces, threads);
  if (op == forward_op) return done;

  std::vector<double> sums = fold(job, partial, at, by_planes);
  for (Index c = 0; c < at.channels; ++c) {
    double factor = op == backward_from_output ? 1.0 / alpha[c] : 1.0;
    grad_alpha[c] = static_cast<float>(sums[c] * factor);
    grad_beta[c] = static_cast<float>(sums[at.channels + c] / (beta[c] * log2_e));
  }
  return done;
} catch (const std::bad_alloc&) {  // nothing may be thrown through the C interface
  return out_of_memory;
}

}  // namespace

// dtype: 0 float32, 1 bfloat16. alpha, beta and their gradients: float32 [channels].
EXPORT int mpelu_forward(const void* input, void* output, const float* alpha, const float* beta,
                         int64_t outer, int64_t channels, int64_t inner, int dtype, int threads) {
  Job job{};
  job.input = input;
  job.output = output;
  return execute(forward_op, job, {outer, channels, inner}, alpha, beta, nullptr, nullptr, dtype,
                 threads);
}

EXPORT int mpelu_backward(const void* grad, const void* saved, void* grad_input,
                          const float* alpha, const float* beta, float* grad_alpha,
                          float* grad_beta, int64_t outer, int64_t channels, int64_t inner,
                          int dtype, int saved_is_output, int threads) {
  Job job{};
  job.input = saved;
  job.grad = grad;
  job.output = grad_input;
  return execute(saved_is_output ? backward_from_output : backward_from_input, job,
                 {outer, channels, inner}, alpha, beta, grad_alpha, grad_beta, dtype, threads);
}

EXPORT const char* mpelu_instructions() { return chosen.name; }

// Takes the named instruction set; returns whether this CPU has it.
EXPORT int mpelu_select(const char* name) {
  for (const Choice& choice : available())
    if (!std::strcmp(choice.name, name)) {
      chosen = choice;
      return 1;
    }
  return 0;
}
