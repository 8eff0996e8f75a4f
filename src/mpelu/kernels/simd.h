// Vectors of a chosen width: loading and storing each dtype, a bit for each lane, 2^t, log2(1 + u),
// and w ln(w) - w + 1.
//
// Written with the vector extensions of GCC and Clang. Everything is a template over the width and
// always inlined, so that it takes the instruction set of the function it ends up in.

#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#define INLINE inline __attribute__((always_inline))

using Index = int64_t;

struct bfloat16 {
  uint16_t bits;
};
struct float16 {
  uint16_t bits;
};

// The dtype to calculate in: half precision is widened.
template <class T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <class T>
constexpr bool is_half = sizeof(T) == 2;

template <class S, int W>
struct Lanes {
  using Signed = std::conditional_t<sizeof(S) == 8, int64_t, int32_t>;
  using Unsigned = std::make_unsigned_t<Signed>;
  typedef S F __attribute__((vector_size(W * sizeof(S))));
  typedef Signed I __attribute__((vector_size(W * sizeof(S))));
  typedef Unsigned U __attribute__((vector_size(W * sizeof(S))));
  typedef uint16_t H __attribute__((vector_size(W * 2)));
};
template <class S, int W> using F = typename Lanes<S, W>::F;
template <class S, int W> using I = typename Lanes<S, W>::I;
template <class S, int W> using U = typename Lanes<S, W>::U;
template <int W> using H = typename Lanes<float, W>::H;

template <class S, int W>
INLINE F<S, W> broadcast(S v) {
  return F<S, W>{} + v;
}

// The larger of the two; a NaN in v stays.
template <class S, int W>
INLINE F<S, W> at_least(F<S, W> v, F<S, W> bound) {
  return bound > v ? bound : v;
}

template <class S, int W>
INLINE S sum(F<S, W> v) {
  if constexpr (W == 1) {
    return v[0];
  } else {
    F<S, W / 2> half[2];
    std::memcpy(half, &v, sizeof v);
    return sum<S, W / 2>(half[0] + half[1]);
  }
}

// --- Loading and storing ------------------------------------------------------------------------

template <int W>
INLINE F<float, W> widen(H<W> h, float16) {
#if defined(__x86_64__)
  if constexpr (W == 8 || W == 16) {  // with AVX2 comes F16C
    F<float, W> v;
    asm("vcvtph2ps %1, %0" : "=v"(v) : "v"(h));
    return v;
  }
#elif defined(__aarch64__)
  typedef __fp16 Native __attribute__((vector_size(W * 2)));
  return __builtin_convertvector((Native)h, F<float, W>);
#endif
  U<float, W> bits = __builtin_convertvector(h, U<float, W>);
  U<float, W> magnitude = (bits & 0x7fff) << 13;
  U<float, W> value = (U<float, W>)((F<float, W>)magnitude * 0x1p112f);
  value |= magnitude >= 0x0f800000u ? U<float, W>{} + 0x7f800000u : U<float, W>{};  // inf and NaN
  return (F<float, W>)(value | (bits & 0x8000) << 16);
}

template <int W>
INLINE F<float, W> widen(H<W> h, bfloat16) {
  return (F<float, W>)(__builtin_convertvector(h, U<float, W>) << 16);
}

// To nearest, ties to even.
template <int W>
INLINE H<W> narrow(F<float, W> v, float16) {
#if defined(__x86_64__)
  if constexpr (W == 8 || W == 16) {
    H<W> h;
    asm("vcvtps2ph $0, %1, %0" : "=v"(h) : "v"(v));
    return h;
  }
#elif defined(__aarch64__)
  typedef __fp16 Native __attribute__((vector_size(W * 2)));
  return (H<W>)__builtin_convertvector(v, Native);
#endif
  U<float, W> bits = (U<float, W>)v;
  U<float, W> magnitude = bits & 0x7fffffff;
  U<float, W> normal = (magnitude - 0x38000000u + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  U<float, W> subnormal = (U<float, W>)((F<float, W>)magnitude + 0.5f) - 0x3f000000u;
  U<float, W> result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x47800000u ? U<float, W>{} + 0x7c00u : result;
  result = magnitude > 0x7f800000u ? U<float, W>{} + 0x7e00u : result;
  return __builtin_convertvector(result | (bits >> 16 & 0x8000), H<W>);
}

template <int W>
INLINE H<W> narrow(F<float, W> v, bfloat16) {
  // A NaN stays one: it comes from a bfloat16 or from arithmetic, so its low half is zero and the
  // addition doesn't carry.
  U<float, W> bits = (U<float, W>)v;
  return __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, H<W>);
}

template <int W, class T>
INLINE F<Wide<T>, W> load(const T* p) {
  if constexpr (is_half<T>) {
    H<W> h;
    std::memcpy(&h, p, sizeof h);
    return widen<W>(h, T{});
  } else {
    F<T, W> v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
}

template <int W, class T>
INLINE void store(T* p, F<Wide<T>, W> v) {
  if constexpr (is_half<T>) {
    H<W> h = narrow<W>(v, T{});
    std::memcpy(p, &h, sizeof h);
  } else {
    std::memcpy(p, &v, sizeof v);
  }
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

// --- One bit for each element, in memory order: whether it was positive -------------------------

// Bit i for lane i.
template <class S, int W>
INLINE uint32_t positive_lanes(F<S, W> v) {
  I<S, W> positive = v > S(0);
#if defined(__x86_64__)
  if constexpr (sizeof v == 64) {
    std::conditional_t<W == 16, uint16_t, uint8_t> mask;
    if constexpr (W == 16)
      asm("vpmovd2m %1, %0" : "=Yk"(mask) : "v"(positive));
    else
      asm("vpmovq2m %1, %0" : "=Yk"(mask) : "v"(positive));
    return mask;
  } else if constexpr (sizeof v == 32 && sizeof(S) == 4) {
    uint32_t mask;
    asm("vmovmskps %1, %0" : "=r"(mask) : "x"(positive));
    return mask;
  } else if constexpr (sizeof v == 32) {
    uint32_t mask;
    asm("vmovmskpd %1, %0" : "=r"(mask) : "x"(positive));
    return mask;
  }
#endif
  uint32_t mask = 0;
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) mask |= (positive[i] & 1u) << i;
  return mask;
}

// The lanes whose bits are set, from bit `at` on. Up to three bytes after them are read.
template <class S, int W>
INLINE I<S, W> lanes_from(const uint8_t* bits, Index at) {
  uint32_t word;
  std::memcpy(&word, bits + at / 8, sizeof word);
  using Signed = typename Lanes<S, W>::Signed;
  I<S, W> lane;
#pragma GCC unroll 16
  for (int i = 0; i < W; ++i) lane[i] = Signed(1) << i;
  return ((I<S, W>{} + static_cast<Signed>(word >> at % 8)) & lane) != 0;
}

// Bits of a span of elements, collected from its start, then shifted into their place.
template <Index most>
class Bits {
 public:
  // Lanes of the vector at element i of the span, a multiple of W.
  template <int W>
  INLINE void put(Index i, uint32_t mask) {
    uint8_t* to = bytes_ + room + i / 8;
    if constexpr (W >= 8)
      std::memcpy(to, &mask, W / 8);
    else
      *to = static_cast<uint8_t>((i % 8 ? *to : 0) | mask << i % 8);
  }

  // Writes n bits to bit `at` on. Another thread may write to the first and the last byte too, so
  // these have to be zero at the start.
  INLINE void write(uint8_t* bits, Index at, Index n) {
    std::memset(bytes_ + room + (n + 7) / 8, 0, room);
    const Index shift = at % 8, count = (shift + n + 7) / 8;
    bits += at / 8;
    Index k = 0;
    if (shift || n < 8) join(bits, part(k++, shift));
    const Index whole = (shift + n) / 8;
    for (; k + room <= whole; k += room) {
      uint64_t value = part(k, shift);
      std::memcpy(bits + k, &value, sizeof value);
    }
    for (; k < whole; ++k) bits[k] = static_cast<uint8_t>(part(k, shift));
    if (k < count) join(bits + k, part(k, shift));
  }

 private:
  static constexpr Index room = 8;
  INLINE uint64_t part(Index k, Index shift) const {
    uint64_t value;
    std::memcpy(&value, bytes_ + room + k, sizeof value);
    return value << shift | bytes_[room + k - 1] >> (8 - shift);
  }
  static INLINE void join(uint8_t* to, uint64_t value) {
    __atomic_fetch_or(to, static_cast<uint8_t>(value), __ATOMIC_RELAXED);
  }
  uint8_t bytes_[room + most / 8 + 2 * room] = {};
};

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

// --- 2^t, log2(1 + u) and w ln(w) - w + 1 --------------------------------------------------------

constexpr double log_2 = 0.6931471805599453;

template <class S>
struct Format;
template <>
struct Format<float> {
  static constexpr int mantissa_bits = 23, smallest_exponent = -126;
  static constexpr float round_to_integer = 12582912.0f;  // 1.5 * 2^23
  static constexpr float bias = 127.0f;
  static constexpr int32_t sqrt_half = 0x3f3504f3, one = 0x3f800000;
};
template <>
struct Format<double> {
  static constexpr int mantissa_bits = 52, smallest_exponent = -1022;
  static constexpr double round_to_integer = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double bias = 1023.0;
  static constexpr int64_t sqrt_half = 0x3fe6a09e667f3bcd, one = 0x3ff0000000000000;
};

template <class S, int W, int N>
INLINE F<S, W> polynomial(F<S, W> x, const S (&coefficients)[N]) {  // highest power first
  F<S, W> value = broadcast<S, W>(coefficients[0]);
#pragma GCC unroll 16
  for (int i = 1; i < N; ++i) value = value * x + coefficients[i];
  return value;
}

// y rate = n + r with |r| <= 1/2, for y rate from the smallest exponent to about 0.
template <class S, int W>
struct Split {
  F<S, W> n, whole, r;  // whole: 2^n
};

template <class S, int W>
INLINE Split<S, W> split(F<S, W> y, F<S, W> rate) {
  using Bits = Format<S>;
  constexpr S shift = Bits::round_to_integer + Bits::bias;  // n + bias is in the low mantissa bits
  F<S, W> shifted = y * rate + shift;
  F<S, W> whole = (F<S, W>)((U<S, W>)shifted << Bits::mantissa_bits);
  F<S, W> n = shifted - shift;
  return {n, whole, y * rate - n};  // fused where the CPU can: y rate is not rounded
}

// 2^(y rate) = 2^n 2^r.
template <class S, int W>
struct Power {
  F<S, W> whole;     // 2^n
  F<S, W> fraction;  // 2^r - 1, without cancellation
};

template <int W, class T, class S = Wide<T>>
INLINE Power<S, W> power_of_two(F<S, W> y, F<S, W> rate) {
  auto [n, whole, r] = split<S, W>(y, rate);
  if constexpr (is_half<T>) {  // minimax on [-1/2, 1/2], relative error 1.5e-5; rounding is 5e-4
    constexpr S c[] = {9.61811030e-3f, 5.58372882e-2f, 2.40232522e-1f, 6.93136858e-1f};
    return {whole, polynomial<S, W>(r, c) * r};
  } else if constexpr (std::is_same_v<S, float>) {  // relative error 1.1e-8
    constexpr S c[] = {1.54035123e-4f, 1.33907355e-3f, 9.61823750e-3f,
                       5.55035743e-2f, 2.40226498e-1f, 6.93147188e-1f};
    return {whole, polynomial<S, W>(r, c) * r};
  } else {  // relative error 1.8e-17
    constexpr S c[] = {4.4455357973927373e-10, 7.0725617705748629e-9, 1.0178121308119217e-7,
                       1.3215442723873468e-6,  1.5252733701195124e-5, 1.5403530441481274e-4,
                       1.3333558146531650e-3,  9.6181291076070653e-3, 5.5504108664821236e-2,
                       2.4022650695910098e-1,  6.9314718055994531e-1};
    return {whole, polynomial<S, W>(r, c) * r};
  }
}

// log2(w) for w from 0 to 1; finite at 0, where its factor is zero. Near 1, w = 1 + u has lost the
// low digits of u = low * scale, so these are taken from the product.
template <class S, int W>
INLINE F<S, W> log2_1p(F<S, W> w, F<S, W> low, F<S, W> scale) {
  using Bits = Format<S>;
  I<S, W> bits = (I<S, W>)w;
  // the mantissa goes from sqrt(1/2) to sqrt(2)
  I<S, W> exponent = (bits - Bits::sqrt_half) >> Bits::mantissa_bits;
  F<S, W> mantissa = (F<S, W>)((U<S, W>)bits - ((U<S, W>)exponent << Bits::mantissa_bits));
  F<S, W> f = low * scale + (mantissa - w);  // mantissa - 1; for the exponent 0 it is u itself
  F<S, W> whole = __builtin_convertvector(exponent, F<S, W>);
  if constexpr (std::is_same_v<S, float>) {  // minimax, relative error 1.1e-6; it serves a sum
    constexpr S c[] = {1.71624645e-1f, -2.69320252e-1f, 2.95699509e-1f, -3.59371640e-1f,
                       4.80626769e-1f, -7.21363576e-1f, 1.44269645f};
    return polynomial<S, W>(f, c) * f + whole;
  } else {  // in s = f / (2 + f), relative error 1.1e-18
    constexpr S c[] = {0.21367077946267187, 0.22091186685788853, 0.26233440174514830,
                       0.32059853392646234, 0.41219858585106457, 0.57707801634547042,
                       0.96179669392598982, 2.88539008177792681};
    F<S, W> s = f / (S(2) + f);
    return polynomial<S, W>(s * s, c) * s + whole;
  }
}

// (2^r - 1) / (r ln(2)), exactly 1 at r = 0.
template <int W, class T, class S = Wide<T>>
INLINE F<S, W> growth(F<S, W> r) {
  if constexpr (is_half<T>) {  // minimax on [-1/2, 1/2], relative error 2.1e-05
    constexpr S c[] = {0.0138571601f, 0.0804740935f, 0.346585046f, 1.0f};
    return polynomial<S, W>(r, c);
  } else if constexpr (std::is_same_v<S, float>) {  // that of power_of_two
    constexpr S c[] = {0.000222225708f, 0.00193187477f, 0.0138761835f, 0.0800747314f, 0.346573577f, 1.0f};
    return polynomial<S, W>(r, c);
  } else {
    constexpr S c[] = {6.4135524489928654e-10, 1.0203549792789221e-8, 1.4683925136789883e-7, 1.9065853680884386e-6, 2.2005043270714168e-5, 0.00022222596980107218, 0.0019236258215405851, 0.013876027166174504, 0.080075502319699741, 0.34657359027997303, 1.0};
    return polynomial<S, W>(r, c);
  }
}

// w ln(w) - w + 1 for w = 2^(n + r). All terms are small where the sum is.
template <int W, class T, class S = Wide<T>>
INLINE F<S, W> excess(const Split<S, W>& at, F<S, W> w) {
  F<S, W> square = at.r * at.r * at.whole;
  F<S, W> rest = w * at.n * S(log_2) + (S(1) - at.whole);
  if constexpr (is_half<T>) {  // minimax on [-1/2, 1/2], relative error 2.5e-5
    constexpr S c[] = {0.00532326351f, 0.0290464329f, 0.111013685f, 0.240220597f};
    return polynomial<S, W>(at.r, c) * square + rest;
  } else if constexpr (std::is_same_v<S, float>) {  // relative error 7.4e-7; it serves a sum
    constexpr S c[] = {0.000768938488f, 0.0053619597f, 0.0288552373f, 0.111006449f, 0.240226475f};
    return polynomial<S, W>(at.r, c) * square + rest;
  } else {  // the series of ((x - 1) e^x + 1) / r^2 with x = r ln(2)
    constexpr S c[] = {8.8123442612693093e-13, 1.6429786624684955e-11, 2.8246279592837026e-10, 4.4455382718708115e-9, 6.349420458721011e-8, 8.1424688073917598e-7, 9.2508407531010166e-6, 9.1516402824359042e-5, 0.0007701765196690805, 0.0053334232585713774, 0.028854387322885431, 0.11100821732964316, 0.24022650695910071};
    return polynomial<S, W>(at.r, c) * square + rest;
  }
}

// The same from w = 1 + low * scale, for w from 0 to about 1: 1 at 0. As in log2_1p, low digits come
// from the product.
template <class S, int W>
INLINE F<S, W> excess_1p(F<S, W> w, F<S, W> low, F<S, W> scale) {
  using Bits = Format<S>;
  I<S, W> bits = (I<S, W>)w;
  // w = 2^k (1 + f), k in its place in the exponent; the mantissa goes from sqrt(1/2) to sqrt(2)
  constexpr auto exponents = ~((typename Lanes<S, W>::Signed(1) << Bits::mantissa_bits) - 1);
  I<S, W> exponent = (bits - Bits::sqrt_half) & exponents;
  F<S, W> f = low * scale + ((F<S, W>)(bits - exponent) - w);
  F<S, W> whole = (F<S, W>)(exponent + Bits::one);
  F<S, W> k = __builtin_convertvector(exponent, F<S, W>);
  constexpr S unit = static_cast<S>(log_2) / (typename Lanes<S, W>::Signed(1) << Bits::mantissa_bits);
  F<S, W> rest = w * k * unit + (S(1) - whole);
  F<S, W> square = f * f * whole;
  if constexpr (std::is_same_v<S, float>) {  // minimax, relative error 1.9e-6; it serves a sum
    constexpr S c[] = {-0.020606804f, 0.0358930685f, -0.0505092255f,
                       0.0832381969f, -0.166654519f, 0.50000059f};
    return polynomial<S, W>(f, c) * square + rest;
  } else {  // in s = f / (2 + f): (1 - s) / 2 (1 + s (1 + s) (1/3 + s^2 / 5 + s^4 / 7 ...))
    constexpr S c[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13,
                       1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
    F<S, W> s = f / (S(2) + f);
    F<S, W> series = S(1) + s * (S(1) + s) * polynomial<S, W>(s * s, c);
    return (S(0.5) - S(0.5) * s) * series * square + rest;
  }
}
