// A call of the kernel: what native.py packs into one block of memory, or binding.cpp reads from
// tensors.

#pragma once

#include "simd.h"

// native.py expects this number of a library before it calls anything else in it. To be raised with
// every change of what is exported, and of Call, Environment, Type and Status.
constexpr int abi = 1;

enum Type { float32_type, bfloat16_type, float16_type, float64_type };

enum Status {
  done = 0,
  done_keep_input = 1,
  outside_domain = 2,
  out_of_memory = 3,
  not_plain = 4,  // tensors that don't fit each other, or have to be prepared
  done_not_finite = 5,  // backward: what is summed is larger by alpha than the gradients
};

struct Shape {
  Index outer, channels, inner;
};

// alpha, beta and their gradients: [channels], float64 where the input is, else float32.
struct Call {
  const void* input;  // backward: what was saved
  void* output;       // backward: the input's gradient
  const void *alpha, *beta;
  Shape shape;
  int64_t type, threads;
  double min_beta;
  // backward only
  const void* grad;
  void *grad_alpha, *grad_beta;
  int64_t saved_is_output;
};

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int mpelu_forward(const Call* call);
EXPORT int mpelu_backward(const Call* call);
