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
#include <memory>
#include <new>
#include <numeric>
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
  u = (u + 0x7fff + ((u >> 16) & 1)) >> 16;  // to nearest, ties to even
  u = v != v ? U<W>{} + 0x7fc0 : u;          // the addition may turn a NaN into infinity
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

template <int W>
INLINE Exponential<W> exponential(F<W> y, F<W> rate) {
  constexpr float round_to_integer = 12582912.0f;  // 1.5 * 2^23: the low mantissa bits hold n
  F<W> t = at_least<W>(y * rate, -126.0f);
  F<W> shifted = t + round_to_integer;
  F<W> power = (F<W>)(((I<W>)shifted << 23) + 0x3f800000);
  F<W> r = at_least<W>(y * rate - (shifted - round_to_integer), -1.0f);  // fused: product not rounded
  F<W> q = broadcast<W>(1.54035123e-4f);  // minimax on [-1/2, 1/2], relative error 1.1e-8
  q = q * r + 1.33907355e-3f;
  q = q * r + 9.61823750e-3f;
  q = q * r + 5.55035743e-2f;
  q = q * r + 2.40226498e-1f;
  q = q * r + 6.93147188e-1f;
  return {t, power, q * r};
}

// log2(1 + u) for u in [-1, 0]; finite at u = -1, where its factor 1 + u is zero.
template <int W>
INLINE F<W> log2_1p(F<W> u, F<W> w) {
  I<W> bits = (I<W>)w;
  I<W> exponent = (bits - 0x3f3504f3) >> 23;  // mantissa from sqrt(1/2) to sqrt(2)
  F<W> mantissa = (F<W>)(bits - (exponent << 23));
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

// The three operations on one vector. Their two parameters per channel are made by `prepare`.
enum Operation { forward_op, backward_from_input, backward_from_output };

template <int W>
INLINE F<W> activate(F<W> x, F<W> alpha, F<W> rate) {
  return x > 0.0f ? x : alpha * exponential<W>(x, rate).minus_one();
}

// u = e^(beta y) - 1 and w = 1 + u; sums g u (alpha's gradient) and g w log2(w), which is the
// gradient of beta up to a factor per channel.
template <int W, Operation op>
INLINE F<W> differentiate(F<W> g, F<W> saved, F<W> first, F<W> slope, F<W>& sum_alpha,
                          F<W>& sum_beta) {
  auto positive = saved > 0.0f;
  F<W> negative = positive ? F<W>{} : saved;
  F<W> below = positive ? F<W>{} : g;
  F<W> u, w, t;
  if constexpr (op == backward_from_input) {
    auto e = exponential<W>(negative, first);
    u = e.minus_one();
    w = e.value();
    t = e.t;
  } else {
    u = at_least<W>(negative * first, -1.0f);
    w = 1.0f + u;
    t = log2_1p<W>(u, w);
  }
  sum_alpha += below * u;
  sum_beta += below * (w * t);
  return positive ? g : g * (slope * w);
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

struct Job {
  const void* input;  // forward: the input; backward: what was saved
  const void* grad;
  void* output;
  const float* first;   // two parameters a channel (planes) or a column (rows)
  const float* second;
  float* partial;       // planes: a pair of sums a piece; rows: two rows of sums a piece
  Index length;         // elements of a plane or of a row
  Index channels;       // planes only
  Index pieces_per_plane;
  Index rows_per_piece;
  Index total;
};

constexpr Index plane_piece = 4096;

template <int W, class T, Operation op>
INLINE void planes(const Job& job, Index begin, Index end) {
  for (Index piece = begin; piece < end; ++piece) {
    Index plane = piece / job.pieces_per_plane;
    Index start = (piece % job.pieces_per_plane) * plane_piece;
    Index n = std::min(plane_piece, job.length - start);
    Index channel = plane % job.channels;
    Index offset = plane * job.length + start;
    F<W> first = broadcast<W>(job.first[channel]), second = broadcast<W>(job.second[channel]);
    const T* x = static_cast<const T*>(job.input) + offset;
    T* out = static_cast<T*>(job.output) + offset;
    Index i = 0;
    if constexpr (op == forward_op) {
      for (; i + W <= n; i += W) {
        expect_read(x + i);
        expect_write(out + i);
        store<W>(out + i, activate<W>(load<W>(x + i), first, second));
      }
      if (i < n) {
        Padded<W, T> tail(x + i, n - i);
        store<W>(tail.values, activate<W>(load<W>(tail.values), first, second));
        tail.write(out + i, n - i);
      }
    } else {
      const T* g = static_cast<const T*>(job.grad) + offset;
      F<W> sum_alpha{}, sum_beta{};
      auto step = [&](const T* g, const T* x, T* out) __attribute__((always_inline)) {
        store<W>(out, differentiate<W, op>(load<W>(g), load<W>(x), first, second, sum_alpha,
                                           sum_beta));
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

template <int W, class T>
INLINE void row_forward(const T* x, T* out, const float* first, const float* second, Index n) {
  Index i = 0;
  for (; i + W <= n; i += W) {
    expect_read(x + i);
    expect_write(out + i);
    store<W>(out + i, activate<W>(load<W>(x + i), load<W>(first + i), load<W>(second + i)));
  }
  if (i < n) {
    Padded<W, T> tail(x + i, n - i);
    Padded<W, float> p(first + i, n - i), q(second + i, n - i);
    store<W>(tail.values,
             activate<W>(load<W>(tail.values), load<W>(p.values), load<W>(q.values)));
    tail.write(out + i, n - i);
  }
}

template <int W, class T, Operation op>
INLINE void row_backward(const T* g, const T* x, T* out, const float* first, const float* second,
                         float* sum_alpha, float* sum_beta, Index n) {
  auto step = [](const T* g, const T* x, T* out, const float* first, const float* second,
                 float* sum_alpha, float* sum_beta) __attribute__((always_inline)) {
    F<W> a = load<W>(sum_alpha), b = load<W>(sum_beta);
    store<W>(out, differentiate<W, op>(load<W>(g), load<W>(x), load<W>(first), load<W>(second), a, b));
    store<W>(sum_alpha, a);
    store<W>(sum_beta, b);
  };
  Index i = 0;
  for (; i + W <= n; i += W) {
    expect_read(g + i);
    expect_read(x + i);
    expect_write(out + i);
    step(g + i, x + i, out + i, first + i, second + i, sum_alpha + i, sum_beta + i);
  }
  if (i < n) {
    Index left = n - i;
    Padded<W, T> tail_g(g + i, left), tail_x(x + i, left);
    Padded<W, float> p(first + i, left), q(second + i, left);
    Padded<W, float> a(sum_alpha + i, left), b(sum_beta + i, left);
    step(tail_g.values, tail_x.values, tail_g.values, p.values, q.values, a.values, b.values);
    tail_g.write(out + i, left);
    a.write(sum_alpha + i, left);
    b.write(sum_beta + i, left);
  }
}

template <int W, class T, Operation op>
INLINE void rows(const Job& job, Index begin, Index end) {
  for (Index piece = begin; piece < end; ++piece) {
    Index from = piece * job.rows_per_piece * job.length;
    Index to = std::min(from + job.rows_per_piece * job.length, job.total);
    float* sums = job.partial + piece * 2 * job.length;
    if constexpr (op != forward_op) std::fill(sums, sums + 2 * job.length, 0.0f);
    for (Index offset = from; offset < to; offset += job.length) {
      Index n = std::min(job.length, to - offset);
      const T* x = static_cast<const T*>(job.input) + offset;
      T* out = static_cast<T*>(job.output) + offset;
      if constexpr (op == forward_op)
        row_forward<W>(x, out, job.first, job.second, n);
      else
        row_backward<W, T, op>(static_cast<const T*>(job.grad) + offset, x, out, job.first,
                               job.second, sums, sums + job.length, n);
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

// The two numbers each operation needs for a channel.
void prepare(Operation op, float alpha, float beta, float* first, float* second) {
  float rate = static_cast<float>(beta * log2_e);
  switch (op) {
    case forward_op: *first = alpha, *second = rate; break;
    case backward_from_input: *first = rate, *second = alpha * beta; break;
    case backward_from_output: *first = 1.0f / alpha, *second = alpha * beta; break;
  }
}

// Outside of this the caller's reference implementation takes over: a negative beta would need
// the exponential above 1, and infinite or NaN parameters their own rules.
bool in_domain(const float* alpha, const float* beta, Index n, Operation op) {
  for (Index c = 0; c < n; ++c) {
    if (!(beta[c] > 1e-30f && beta[c] < 1e30f && std::fabs(alpha[c]) < 1e30f)) return false;
    if (op == backward_from_output && !(alpha[c] >= 1e-37f)) return false;
  }
  return true;
}

enum Status { done = 0, outside_domain = 1, out_of_memory = 2 };

struct Layout {
  Index outer, channels, inner;
};

Status execute(Operation op, Job job, Layout at, const float* alpha, const float* beta,
               float* grad_alpha, float* grad_beta, int dtype, int threads) {
  if (!in_domain(alpha, beta, at.channels, op)) return outside_domain;
  Index total = at.outer * at.channels * at.inner;
  job.total = total;
  bool by_planes = at.channels == 1 || at.inner >= 32 || at.channels * at.inner > 65536;
  Index columns, pieces, partials;
  if (by_planes) {
    columns = at.channels;
    job.length = at.inner;
    job.channels = at.channels;
    job.pieces_per_plane = (at.inner + plane_piece - 1) / plane_piece;
    pieces = at.outer * at.channels * job.pieces_per_plane;
    partials = 2 * pieces;
  } else {
    // Short rows are joined to at least 256 columns, and to whole vectors where that is cheap.
    Index row = at.channels * at.inner;
    Index whole = 16 / std::gcd(row, Index(16));
    Index joined = (256 + row - 1) / row;
    Index rounded = (joined + whole - 1) / whole * whole;
    if (rounded * row <= 4096) joined = rounded;
    joined = std::min(joined, at.outer);
    columns = job.length = row * joined;
    Index count = (total + columns - 1) / columns;
    job.rows_per_piece = std::clamp<Index>((count + 63) / 64, 1, 128);
    pieces = (count + job.rows_per_piece - 1) / job.rows_per_piece;
    partials = 2 * columns * pieces;
  }

  std::unique_ptr<float[]> first(new (std::nothrow) float[columns]);
  std::unique_ptr<float[]> second(new (std::nothrow) float[columns]);
  std::unique_ptr<float[]> partial(op == forward_op ? nullptr : new (std::nothrow) float[partials]);
  std::unique_ptr<double[]> sums(op == forward_op ? nullptr : new (std::nothrow) double[2 * columns]());
  if (!first || !second || (op != forward_op && (!partial || !sums))) return out_of_memory;
  auto channel_of = [&](Index column) {
    return by_planes ? column : column / at.inner % at.channels;
  };
  for (Index i = 0; i < columns; ++i)
    prepare(op, alpha[channel_of(i)], beta[channel_of(i)], &first[i], &second[i]);
  job.first = first.get();
  job.second = second.get();
  job.partial = partial.get();

  const Kernels& kernels = *chosen.kernels;
  run((by_planes ? kernels.planes : kernels.rows)[dtype][op], job, pieces, threads);
  if (op == forward_op) return done;

  double* sum_alpha = sums.get();
  double* sum_beta = sum_alpha + columns;
  for (Index piece = 0; piece < pieces; ++piece) {
    if (by_planes) {
      Index channel = piece / job.pieces_per_plane % at.channels;
      sum_alpha[channel] += partial[2 * piece];
      sum_beta[channel] += partial[2 * piece + 1];
    } else {
      for (Index i = 0; i < 2 * columns; ++i) sums[i] += partial[piece * 2 * columns + i];
    }
  }
  std::vector<double> folded(2 * at.channels);
  for (Index i = 0; i < columns; ++i) {
    folded[channel_of(i)] += sum_alpha[i];
    folded[at.channels + channel_of(i)] += sum_beta[i];
  }
  for (Index c = 0; c < at.channels; ++c) {
    grad_alpha[c] = static_cast<float>(folded[c]);
    grad_beta[c] =
        static_cast<float>(folded[at.channels + c] * alpha[c] / (double(beta[c]) * log2_e));
  }
  return done;
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
