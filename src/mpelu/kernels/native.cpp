// Fused MPELU for CPUs, free of torch: loaded by native.py through ctypes.
//
// Forward reads and writes once. Backward makes one pass for the input gradient and both parameter
// sums, which are folded in float64 in a fixed order. The kernels of layouts.h are instantiated for
// several instruction sets; the best that the CPU has is chosen when the library is loaded.

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <new>
#include <numeric>
#include <vector>

#include "call.h"
#include "layouts.h"

namespace {

using Kernel = void (*)(const Job&, Index, Index);

struct Kernels {
  Kernel planes[4][coordinates][operations];  // [Type]
  Kernel rows[4][coordinates][operations];
};

#define ENTRY(isa, target, width, layout, type, form, op)                                \
  target void layout##_##isa##_##type##_##form##_##op(const Job& job, Index b, Index e) { \
    layout<width, type, op, form>(job, b, e);                                            \
  }
// Half precision has no backward from the output: it keeps too few digits.
#define HALF(isa, target, width, layout, type, form)          \
  ENTRY(isa, target, width, layout, type, form, forward_op)   \
  ENTRY(isa, target, width, layout, type, form, backward_from_input)
#define FULL(isa, target, width, layout, type, form)                  \
  HALF(isa, target, width, layout, type, form)                        \
  ENTRY(isa, target, width, layout, type, form, forward_with_bits)    \
  ENTRY(isa, target, width, layout, type, form, backward_from_output) \
  ENTRY(isa, target, width, layout, type, form, backward_from_bits)
#define LAYOUT(isa, target, width, layout, form)       \
  FULL(isa, target, width, layout, float, form)        \
  HALF(isa, target, width, layout, bfloat16, form)     \
  HALF(isa, target, width, layout, float16, form)      \
  FULL(isa, target, width / 2, layout, double, form)
#define NAME(isa, layout, type, form, op) layout##_##isa##_##type##_##form##_##op
#define HALF_NAMES(isa, layout, type, form)                   \
  {NAME(isa, layout, type, form, forward_op), nullptr,        \
   NAME(isa, layout, type, form, backward_from_input)}
#define FULL_NAMES(isa, layout, type, form)                   \
  {NAME(isa, layout, type, form, forward_op),                 \
   NAME(isa, layout, type, form, forward_with_bits),          \
   NAME(isa, layout, type, form, backward_from_input),        \
   NAME(isa, layout, type, form, backward_from_output),       \
   NAME(isa, layout, type, form, backward_from_bits)}
#define BOTH(names, isa, layout, type) \
  {names(isa, layout, type, paper), names(isa, layout, type, slopes)}
#define TABLE(isa, layout)                                                             \
  {BOTH(FULL_NAMES, isa, layout, float), BOTH(HALF_NAMES, isa, layout, bfloat16),      \
   BOTH(HALF_NAMES, isa, layout, float16), BOTH(FULL_NAMES, isa, layout, double)}
#define INSTRUCTIONS(isa, target, width)         \
  LAYOUT(isa, target, width, planes, paper)      \
  LAYOUT(isa, target, width, rows, paper)        \
  LAYOUT(isa, target, width, planes, slopes)     \
  LAYOUT(isa, target, width, rows, slopes)       \
  const Kernels isa##_kernels = {TABLE(isa, planes), TABLE(isa, rows)};

INSTRUCTIONS(portable, , 4)  // what every x86-64 (SSE2) and arm64 (NEON) has
#if defined(__x86_64__)
INSTRUCTIONS(avx2, __attribute__((target("avx2,fma,f16c"))), 8)
INSTRUCTIONS(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c"))),
             16)
#endif

struct Choice {
  const char* name;
  const Kernels* kernels;
};

std::vector<Choice> available() {
  std::vector<Choice> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    found.push_back({"avx512", &avx512_kernels});
  if (avx2) found.push_back({"avx2", &avx2_kernels});
#endif
  found.push_back({"portable", &portable_kernels});
  return found;
}

Choice chosen = available().front();

constexpr Index elements_per_thread = 32768;  // waking a thread for fewer costs more than it saves

void run(Kernel kernel, const Job& job, Index pieces, Index threads) {
  threads = std::min({threads, pieces, job.total / elements_per_thread});
  if (threads <= 1) return kernel(job, 0, pieces);
#if defined(_OPENMP)
#pragma omp parallel for num_threads(threads) schedule(static)
#endif
  for (Index part = 0; part < threads; ++part)
    kernel(job, pieces * part / threads, pieces * (part + 1) / threads);
}

// Memory for the length of a call, aligned to cache lines; a little comes from the stack.
template <class S>
class Scratch {
 public:
  explicit Scratch(Index count)
      : data(count <= on_stack ? local_ : new (std::align_val_t(64)) S[count]) {}
  ~Scratch() {
    if (data != local_) operator delete[](data, std::align_val_t(64));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  S* const data;

 private:
  static constexpr Index on_stack = 2048;
  alignas(64) S local_[on_stack];
};

constexpr Index widest_block = 4096;  // columns; their parameters and sums stay in the L2 cache
constexpr Index narrowest_block = 1024;

Index divide_up(Index a, Index b) { return (a + b - 1) / b; }

struct Plan {
  bool by_planes;
  Index groups, pieces, partials;
};

// Cuts the work into pieces, from the shape alone.
Plan plan(Job& job, const Shape& at) {
  job.total = at.outer * at.channels * at.inner;
  if (at.channels == 1 || at.inner >= 32) {
    job.length = at.inner;
    job.outer = at.outer;
    job.channels = at.channels;
    job.parts = divide_up(at.inner, plane_piece);
    // A piece has at least 32,768 elements if that doesn't make its sums too long, and 4,096 of
    // each channel at most.
    Index row = at.channels * at.inner;
    Index wanted = divide_up(elements_per_thread, row);
    job.group = std::clamp<Index>(plane_piece / at.inner, 1, std::max<Index>(wanted, 1));
    job.block = std::clamp<Index>(divide_up(elements_per_thread, at.inner), 1, most_channels);
    if (at.inner > plane_piece) job.block = 1;
    job.block = std::min(job.block, at.channels);
    job.blocks = divide_up(at.channels, job.block);
    Index groups = divide_up(at.outer, job.group);
    return {true, groups, groups * job.blocks * job.parts, groups * job.parts * 2 * at.channels};
  }
  // Short rows are joined to at least 256 columns, and to whole vectors where that is cheap.
  Index row = at.channels * at.inner;
  Index whole = 16 / std::gcd(row, Index(16));
  Index joined = divide_up(256, row);
  Index rounded = divide_up(joined, whole) * whole;
  if (rounded * row <= widest_block) joined = rounded;
  job.length = row * std::min(joined, at.outer);
  // Groups of 32 to 128 rows, so that writing their sums costs little; where that makes fewer than
  // 16 pieces to share out, blocks of columns make up for it.
  Index count = divide_up(job.total, job.length);
  job.group = std::clamp<Index>(divide_up(count, 64), 32, 128);
  Index groups = divide_up(count, job.group);
  Index wanted = std::min(divide_up(job.length, narrowest_block), divide_up(16, groups));
  job.blocks = std::max(divide_up(job.length, widest_block), wanted);
  job.block = divide_up(divide_up(job.length, job.blocks), 16) * 16;
  job.blocks = divide_up(job.length, job.block);
  return {false, groups, groups * job.blocks, groups * 2 * job.length};
}

constexpr double log2_e = 1.4426950408889634;

// beta and rate are not taken below it.
template <class S>
S bound(const Call& call) {
  return call.by_slope ? 0 : static_cast<float>(call.min_beta);  // what float32 parameters can hold
}

// A rate below it makes no difference to a gradient in S, but its square would underflow.
template <class S>
constexpr S smallest_rate = std::is_same_v<S, float> ? 1e-12 : 1e-40;

// What an operation needs to know of each channel, repeated for the columns of a row.
template <class S>
Parameters<S> spread(S* memory, Index columns, const Call& call, Index repeats, Operation op) {
  const Index channels = call.shape.channels;
  const S* first = static_cast<const S*>(call.first);
  const S* second = static_cast<const S*>(call.second);
  const S least = bound<S>(call);
  Parameters<S> row;
  std::fill_n(row.at, +values, memory);  // for those that the operation doesn't read
  auto fill = [&](Value v, auto each) {
    S* out = memory;
    row.at[v] = memory;
    memory += columns;
    for (Index c = 0; c < channels; ++c) out[c] = each(c);
    const Index repeated = channels * repeats;
    if (repeats > 1)
      for (Index c = channels; c-- > 0;) std::fill_n(out + c * repeats, repeats, out[c]);
    for (Index filled = repeated; filled < columns; filled += repeated)
      std::copy_n(out, std::min(repeated, columns - filled), out + filled);
  };
  auto bounded = [=](Index c) { return second[c] <= least ? least : second[c]; };
  constexpr S rate_of_one = static_cast<S>(log2_e), exponent = Format<S>::smallest_exponent;
  fill(scale, [=](Index c) { return first[c]; });
  if (!call.by_slope) {
    if (!is_forward(op)) fill(factor, bounded);
    if (is_from_output(op)) return fill(inverse, [=](Index c) { return 1 / first[c]; }), row;
    auto rate_of = [=](Index c) { return static_cast<S>(bounded(c) * log2_e); };
    fill(rate, rate_of);
    fill(lowest, [=](Index c) { return exponent / rate_of(c); });
    return row;
  }
  auto not_zero = [=](Index c) { return std::max(bounded(c), smallest_rate<S>); };
  if (is_from_output(op)) {
    fill(factor, not_zero);
    fill(level, [=](Index c) { return first[c] * (1 / not_zero(c)); });
    fill(ratio, [=](Index c) { return not_zero(c) / first[c]; });
    return row;
  }
  constexpr S largest = std::numeric_limits<S>::max();
  auto used = [=](Index c) { return is_forward(op) ? bounded(c) : not_zero(c); };
  auto lowest_of = [=](Index c) { return std::max(exponent / (used(c) * rate_of_one), -largest); };
  auto finite = [=](S value) { return std::fabs(value) <= largest ? value : 0; };
  fill(rate, [=](Index c) { return static_cast<S>(used(c) * log2_e); });
  fill(lowest, lowest_of);
  fill(deepest, [=](Index c) {
    return bounded(c) > 0 ? lowest_of(c) : -std::numeric_limits<S>::infinity();
  });
  // A rate so small that these aren't finite leaves no n but 0, where they make no difference. The
  // product is rounded like the one for backward, so that f saturates where that expects it.
  fill(step, [=](Index c) { return finite(static_cast<S>(log_2) / used(c)); });
  fill(level, [=](Index c) { return finite((is_forward(op) ? first[c] : 1) * (1 / used(c))); });
  return row;
}

// Sums of [.., 2, channels] (planes) or [groups, 2, columns] (rows) to [2, channels].
template <class S>
void fold(double* sums, const Job& job, const Plan& how, const Shape& at) {
  const S* partial = static_cast<const S*>(job.partial);
  std::fill_n(sums, 2 * at.channels, 0.0);
  if (how.by_planes) {
    for (Index start = 0; start < how.partials; start += 2 * at.channels)
      for (Index i = 0; i < 2 * at.channels; ++i) sums[i] += partial[start + i];
    return;
  }
  for (Index row = 0; row < 2 * how.groups; ++row, partial += job.length) {
    double* to = sums + row % 2 * at.channels;
    for (Index i = 0; i < job.length;)
      if (at.inner == 1)
        for (Index c = 0; c < at.channels; ++c, ++i) to[c] += partial[i];
      else
        for (Index c = 0; c < at.channels; ++c)
          for (Index end = i + at.inner; i < end; ++i) to[c] += partial[i];
  }
}

// torch has tensors without memory: of zeros only, wrappers, and those whose storage was freed. Their
// address is null, or for views the offset: the system is asked about such low ones.
bool has_memory(std::initializer_list<const void*> addresses) {
  for (const void* address : addresses) {
    auto number = reinterpret_cast<uintptr_t>(address);
    if (number >> 40) continue;
    number -= number % sysconf(_SC_PAGESIZE);
    if (!number || msync(reinterpret_cast<void*>(number), 1, MS_ASYNC)) return false;
  }
  return true;
}

template <class S>
Status execute(const Call& call, bool is_backward) {
  if (!has_memory({call.input, call.output, call.first, call.second}) ||
      (call.bits && !has_memory({call.bits})) ||
      (is_backward && !has_memory({call.grad, call.grad_first, call.grad_second})))
    return outside_domain;
  const S* first = static_cast<const S*>(call.first);
  const S* second = static_cast<const S*>(call.second);
  const Shape& at = call.shape;
  // Outside of this the caller's reference implementation takes over: infinite and NaN parameters
  // have rules of their own.
  const S largest_parameter = call.by_slope ? 1e18 : 1e30;
  int outside = 0, extreme = call.type == bfloat16_type || call.type == float16_type, negative = 0;
  for (Index c = 0; c < at.channels; ++c) {
    S size = std::fabs(first[c]);
    outside |= !(second[c] < largest_parameter) | !(size < largest_parameter);
    extreme |= !(size >= S(1e-20)) | (call.by_slope && !(size >= S(1e-20) * second[c]));
    negative |= first[c] < 0;
  }
  if (outside) return outside_domain;
  const bool output_suffices = !extreme, with_bits = output_suffices && negative;
  Operation op = forward_op;
  if (is_backward) {
    op = !call.option ? backward_from_input : with_bits ? backward_from_bits : backward_from_output;
    if (call.option && (!output_suffices || (with_bits && !call.bits))) return outside_domain;
  } else if (call.option && with_bits) {
    if (!call.bits) return needs_bits;
    op = forward_with_bits;
    std::memset(call.bits, 0, at.outer * at.channels * at.inner / 8 + 1);
  }

  Job job{};
  job.input = call.input;
  job.output = call.output;
  job.grad = call.grad;
  job.bits = call.bits;
  const Plan how = plan(job, at);
  const Index columns = divide_up(how.by_planes ? at.channels : job.length, 16) * 16;
  Scratch<S> memory((call.by_slope ? 6 : 4) * columns), partial(is_backward ? how.partials : 0);
  const auto parameters =
      spread<S>(memory.data, columns, call, how.by_planes ? 1 : at.inner, op);
  job.parameters = &parameters;
  job.partial = partial.data;
  const Kernels& kernels = *chosen.kernels;
  run((how.by_planes ? kernels.planes : kernels.rows)[call.type][call.by_slope][op], job,
      how.pieces, call.threads);
  if (!is_backward) return op == forward_with_bits ? done_with_bits : extreme ? done_keep_input : done;

  Scratch<double> sums(2 * at.channels);
  fold<S>(sums.data, job, how, at);
  S *grad_first = static_cast<S*>(call.grad_first), *grad_second = static_cast<S*>(call.grad_second);
  const double *by_first = sums.data, *by_second = sums.data + at.channels;
  const S least = bound<S>(call);
  for (Index c = 0; c < at.channels; ++c)
    grad_first[c] = static_cast<S>(by_first[c]) * (is_from_output(op) ? 1 / first[c] : 1);
  constexpr S largest = std::numeric_limits<S>::max();
  int not_finite = 0;
  for (Index c = 0; c < at.channels; ++c) {
    S value;
    if (call.by_slope) {
      double rate = std::max(second[c], smallest_rate<S>);
      value = static_cast<S>(by_second[c] / (rate * rate) * first[c]);
    } else {
      S rate = static_cast<S>((second[c] < least ? least : second[c]) * log2_e);
      value = static_cast<S>(by_second[c]) / rate;
    }
    not_finite |= !(std::fabs(grad_first[c]) <= largest) | !(std::fabs(value) <= largest);
    bool is_lowered = second[c] < least && value > 0;  // below the bound already
    grad_second[c] = is_lowered ? 0 : value;
  }
  return not_finite ? done_not_finite : done;
}

Status execute(const Call& call, bool is_backward) try {
  return call.type == float64_type ? execute<double>(call, is_backward)
                                   : execute<float>(call, is_backward);
} catch (const std::bad_alloc&) {  // nothing may be thrown through the C interface
  return out_of_memory;
}

}  // namespace

EXPORT int mpelu_forward(const Call* call) { return execute(*call, false); }

EXPORT int mpelu_backward(const Call* call) { return execute(*call, true); }

EXPORT int mpelu_abi() { return abi; }

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
