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
  Kernel planes[4][3];  // [Type][Operation]
  Kernel rows[4][3];
};

#define ENTRY(isa, target, width, layout, type, op)                              \
  target void layout##_##isa##_##type##_##op(const Job& job, Index b, Index e) { \
    layout<width, type, op>(job, b, e);                                          \
  }
// Half precision has no backward from the output: it keeps too few digits.
#define HALF(isa, target, width, layout, type)                \
  ENTRY(isa, target, width, layout, type, forward_op)         \
  ENTRY(isa, target, width, layout, type, backward_from_input)
#define FULL(isa, target, width, layout, type) \
  HALF(isa, target, width, layout, type)       \
  ENTRY(isa, target, width, layout, type, backward_from_output)
#define LAYOUT(isa, target, width, layout)             \
  FULL(isa, target, width, layout, float)              \
  HALF(isa, target, width, layout, bfloat16)           \
  HALF(isa, target, width, layout, float16)            \
  FULL(isa, target, width / 2, layout, double)
#define NAMES(isa, layout, type) \
  layout##_##isa##_##type##_forward_op, layout##_##isa##_##type##_backward_from_input
#define TABLE(isa, layout)                                                              \
  {{NAMES(isa, layout, float), layout##_##isa##_float_backward_from_output},            \
   {NAMES(isa, layout, bfloat16), nullptr},                                             \
   {NAMES(isa, layout, float16), nullptr},                                              \
   {NAMES(isa, layout, double), layout##_##isa##_double_backward_from_output}}
#define INSTRUCTIONS(isa, target, width) \
  LAYOUT(isa, target, width, planes)     \
  LAYOUT(isa, target, width, rows)       \
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

template <class S>
S lowest_beta(const Call& call) {
  return static_cast<float>(call.min_beta);  // what float32 parameters can hold
}

// The parameters of each channel that an operation needs, repeated for the columns of a row.
template <class S>
Parameters<S> spread(S* values, Index columns, const Call& call, Index repeats, Operation op) {
  const Index channels = call.shape.channels;
  const S* alpha = static_cast<const S*>(call.alpha);
  const S* beta = static_cast<const S*>(call.beta);
  const S min_beta = lowest_beta<S>(call);
  S* row[5];  // in the order of Parameters
  for (Index i = 0; i < 5; ++i) row[i] = values + i * columns;
  std::copy_n(alpha, channels, row[0]);
  for (Index c = 0; c < channels; ++c) row[1][c] = beta[c] < min_beta ? min_beta : beta[c];
  if (op == backward_from_output) {
    for (Index c = 0; c < channels; ++c) row[4][c] = 1 / alpha[c];
  } else {
    for (Index c = 0; c < channels; ++c) {
      row[2][c] = static_cast<S>(row[1][c] * log2_e);
      row[3][c] = Format<S>::smallest_exponent / row[2][c];
    }
  }
  const Index repeated = channels * repeats;
  for (S* values : row) {
    if (repeats > 1)
      for (Index c = channels; c-- > 0;) std::fill_n(values + c * repeats, repeats, values[c]);
    for (Index filled = repeated; filled < columns; filled += repeated)
      std::copy_n(values, std::min(repeated, columns - filled), values + filled);
  }
  return {row[0], row[1], row[2], row[3], row[4]};
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
Status execute(const Call& call, Operation op) {
  if (!has_memory({call.input, call.output, call.alpha, call.beta}) ||
      (op != forward_op && !has_memory({call.grad, call.grad_alpha, call.grad_beta})))
    return outside_domain;
  const S* alpha = static_cast<const S*>(call.alpha);
  const S* beta = static_cast<const S*>(call.beta);
  const Shape& at = call.shape;
  // Outside of this the caller's reference implementation takes over: infinite and NaN parameters
  // have rules of their own.
  int outside = 0, extreme = call.type == bfloat16_type || call.type == float16_type;
  for (Index c = 0; c < at.channels; ++c) {
    outside |= !(beta[c] < S(1e30)) | !(std::fabs(alpha[c]) < S(1e30));
    extreme |= !(alpha[c] >= S(1e-20));
  }
  if (outside) return outside_domain;
  const bool output_suffices = !extreme;
  if (op == backward_from_output && !output_suffices) return outside_domain;

  Job job{};
  job.input = call.input;
  job.output = call.output;
  job.grad = call.grad;
  const Plan how = plan(job, at);
  const Index columns = divide_up(how.by_planes ? at.channels : job.length, 16) * 16;
  Scratch<S> values(5 * columns), partial(op == forward_op ? 0 : how.partials);
  const auto parameters =
      spread<S>(values.data, columns, call, how.by_planes ? 1 : at.inner, op);
  job.parameters = &parameters;
  job.partial = partial.data;
  const Kernels& kernels = *chosen.kernels;
  run((how.by_planes ? kernels.planes : kernels.rows)[call.type][op], job, how.pieces,
      call.threads);
  if (op == forward_op) return output_suffices ? done : done_keep_input;

  Scratch<double> sums(2 * at.channels);
  fold<S>(sums.data, job, how, at);
  S *grad_alpha = static_cast<S*>(call.grad_alpha), *grad_beta = static_cast<S*>(call.grad_beta);
  const double *by_alpha = sums.data, *by_beta = sums.data + at.channels;
  const S min_beta = lowest_beta<S>(call);
  for (Index c = 0; c < at.channels; ++c)
    grad_alpha[c] = static_cast<S>(by_alpha[c]) * (op == backward_from_output ? 1 / alpha[c] : 1);
  constexpr S largest = std::numeric_limits<S>::max();
  int not_finite = 0;
  for (Index c = 0; c < at.channels; ++c) {
    S rate = static_cast<S>((beta[c] < min_beta ? min_beta : beta[c]) * log2_e);
    S value = static_cast<S>(by_beta[c]) / rate;
    not_finite |= !(std::fabs(grad_alpha[c]) <= largest) | !(std::fabs(value) <= largest);
    bool is_lowered = beta[c] < min_beta && value > 0;  // below the bound already
    grad_beta[c] = is_lowered ? 0 : value;
  }
  return not_finite ? done_not_finite : done;
}

Status execute(const Call& call, Operation op) try {
  return call.type == float64_type ? execute<double>(call, op) : execute<float>(call, op);
} catch (const std::bad_alloc&) {  // nothing may be thrown through the C interface
  return out_of_memory;
}

}  // namespace

EXPORT int mpelu_forward(const Call* call) { return execute(*call, forward_op); }

EXPORT int mpelu_backward(const Call* call) {
  return execute(*call, call->saved_is_output ? backward_from_output : backward_from_input);
}

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
