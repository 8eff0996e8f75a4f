// Built-in Python functions that take torch's tensors as they are.
//
// torch hands out a table of C functions (DLPack's exchange API), one of which describes a tensor.
// Checking the tensors of a call here takes a tenth of the time that it takes in Python. Neither
// torch's nor Python's headers are needed: native.py passes the addresses of what is used of them.

#include "call.h"

namespace {

struct Object;  // of Python

struct Method {  // PyMethodDef
  const char* name;
  Object* (*function)(Object* self, Object* const* arguments, Index count);
  int flags;
  const char* doc;
};
constexpr int fastcall = 0x80;  // METH_FASTCALL

struct Tensor {  // DLTensor
  void* data;
  int32_t device, device_index, dimensions;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t offset;
};
constexpr int32_t cpu_device = 1;
constexpr uint8_t float_code = 2, bfloat_code = 4;

struct Exchange {  // DLPackExchangeAPI
  uint32_t major, minor;
  const Exchange* previous;
  void *allocate, *from_object, *to_object;
  int (*describe)(Object*, Tensor*);
  void* stream;
};

// What is used of torch and Python, as native.py packs it.
struct Environment {
  const Exchange* exchange;
  Object* (*new_function)(const Method*, Object*, Object*);
  long long (*to_integer)(Object*);
  Object* (*from_integer)(long);
  Object* (*error)();
  void (*clear_error)();
  void* (*release_lock)();
  void (*take_lock)(void*);
  Object* none;
  double min_beta;
} python;

// Whether there was one in each object; if not, Python has the error.
bool integers(Object* const* objects, int64_t* values, int count) {
  for (int i = 0; i < count; ++i) {
    values[i] = python.to_integer(objects[i]);
    if (values[i] == -1 && python.error()) return false;
  }
  return true;
}

bool describe(Object* const* objects, Tensor* tensors, int count) {
  for (int i = 0; i < count; ++i) {
    if (python.exchange->describe(objects[i], tensors + i)) {  // it has no memory of its own
      python.clear_error();
      return false;
    }
    const Tensor& t = tensors[i];
    if (t.device != cpu_device || t.lanes != 1 || t.offset) return false;
  }
  return true;
}

bool same_dtype(const Tensor& a, const Tensor& b) { return a.code == b.code && a.bits == b.bits; }

bool same_layout(const Tensor& a, const Tensor& b) {
  if (a.dimensions != b.dimensions || !same_dtype(a, b)) return false;
  for (int32_t d = 0; d < a.dimensions; ++d)
    if (a.shape[d] != b.shape[d] || a.strides[d] != b.strides[d]) return false;
  return true;
}

bool is_vector(const Tensor& t, Index length) {
  return t.dimensions == 1 && t.strides[0] == 1 && t.shape[0] == length;
}

int64_t type_of(const Tensor& t) {
  if (t.code == float_code && t.bits == 32) return float32_type;
  if (t.code == float_code && t.bits == 64) return float64_type;
  if (t.code == float_code && t.bits == 16) return float16_type;
  return t.code == bfloat_code && t.bits == 16 ? bfloat16_type : -1;
}

// From [source, fresh, alpha, beta]. `fresh` was allocated like `source`: it is dense, and so is
// `source` if it has the same strides.
bool fill(Call& call, const Tensor* t, int64_t dim) {
  const Tensor &source = t[0], &fresh = t[1], &alpha = t[2], &beta = t[3];
  call.type = type_of(source);
  const Index channels = alpha.dimensions == 1 ? alpha.shape[0] : 0;
  if (call.type < 0 || !same_layout(source, fresh) || !same_dtype(alpha, beta) ||
      type_of(alpha) != (call.type == float64_type ? float64_type : float32_type) ||
      !is_vector(alpha, channels) || !is_vector(beta, channels))
    return false;
  Index size = 1;
  for (int32_t d = 0; d < source.dimensions; ++d) size *= source.shape[d];
  if (!size || !channels) return false;
  Index inner = size;
  if (channels > 1) {
    if (dim < 0) dim += source.dimensions;
    if (dim < 0 || dim >= source.dimensions || source.shape[dim] != channels) return false;
    inner = source.strides[dim];
  }
  call.shape = {size / (channels * inner), channels, inner};
  call.input = source.data;
  call.output = fresh.data;
  call.first = alpha.data;
  call.second = beta.data;
  call.min_beta = python.min_beta;
  return true;
}

// Other Python threads run while a large tensor is worked on.
Object* answer(const Call& call, int (*run)(const Call*)) {
  constexpr Index large = 32768;
  const Shape& at = call.shape;
  void* state = at.outer * at.channels * at.inner < large ? nullptr : python.release_lock();
  int status = run(&call);
  if (state) python.take_lock(state);
  return python.from_integer(status);
}

bool take_bits(Call& call, Object* const* object) {
  Tensor bits;
  if (!describe(object, &bits, 1)) return false;
  const Shape& at = call.shape;
  if (bits.bits != 8 || bits.dimensions != 1 || bits.strides[0] != 1 ||
      bits.shape[0] < at.outer * at.channels * at.inner / 8 + 8)
    return false;
  call.bits = static_cast<uint8_t*>(bits.data);
  return true;
}

// (input, output, first, second, dim, threads, by_slope, is_differentiated, bits) -> Status
Object* forward(Object*, Object* const* arguments, Index count) {
  Call call{};
  Tensor t[4];
  int64_t options[4];
  if (count != 9 || !describe(arguments, t, 4)) return python.from_integer(not_plain);
  if (!integers(arguments + 4, options, 4)) return nullptr;
  if (!fill(call, t, options[0]) || (arguments[8] != python.none && !take_bits(call, arguments + 8)))
    return python.from_integer(not_plain);
  call.threads = options[1];
  call.by_slope = options[2] != 0;
  call.option = options[3];
  return answer(call, mpelu_forward);
}

// (saved, grad_input, first, second, grad, grad_first, grad_second, dim, threads, by_slope,
//  saved_is_output, bits) -> Status
Object* backward(Object*, Object* const* arguments, Index count) {
  Call call{};
  Tensor t[7];
  int64_t options[4];
  if (count != 12 || !describe(arguments, t, 7)) return python.from_integer(not_plain);
  if (!integers(arguments + 7, options, 4)) return nullptr;
  const Tensor &grad = t[4], &grad_first = t[5], &grad_second = t[6];
  if (!fill(call, t, options[0]) || !same_layout(grad, t[0]) || !same_layout(grad_first, t[2]) ||
      !same_layout(grad_second, t[3]) ||
      (arguments[11] != python.none && !take_bits(call, arguments + 11)))
    return python.from_integer(not_plain);
  call.grad = grad.data;
  call.grad_first = grad_first.data;
  call.grad_second = grad_second.data;
  call.threads = options[1];
  call.by_slope = options[2] != 0;
  call.option = options[3];
  return answer(call, mpelu_backward);
}

const Method methods[] = {{"forward", forward, fastcall, nullptr},
                          {"backward", backward, fastcall, nullptr}};

}  // namespace

// The function `forward` (0) or `backward` (1); null if torch's table has another form.
EXPORT Object* mpelu_function(const Environment* environment, int which) {
  python = *environment;
  if (python.exchange->major != 1 || !python.exchange->describe) return nullptr;
  return python.new_function(methods + which, nullptr, nullptr);
}
