// A call of the kernel: what native.py packs into one block of memory, or binding.cpp reads from
// tensors.

#pragma once

#include "simd.h"

// native.py expects this number of a library before it calls anything else in it. To be raised with
// every change of what is exported, and of Call, Environment, Type and Status.
constexpr int abi = 2;

enum Type { float32_type, bfloat16_type, float16_type, float64_type };

enum Status {
  done = 0,  // forward: backward needs the output alone
  done_keep_input = 1,
  done_with_bits = 2,  // forward: backward needs the output and the bits
  outside_domain = 3,
  out_of_memory = 4,
  not_plain = 5,  // tensors that don't fit each other, or have to be prepared
  done_not_finite = 6,  // backward: what is summed is larger by alpha than the gradients
  needs_bits = 7,  // forward: nothing was done
};

struct Shape {
  Index outer, channels, inner;
};

// The parameters and their gradients: [channels], float64 where the input is, else float32.
struct Call {
  const void* input;  // backward: what was saved
  void* output;       // backward: the input's gradient
  const void *first, *second;  // alpha and beta, or slope and rate
  Shape shape;
  int64_t type, threads;
  double min_beta;
  int64_t by_slope;
  uint8_t* bits;  // or null: for each element in memory order, whether the input was positive
  int64_t option;  // forward: what backward needs matters; backward: the output was saved
  // backward only
  const void* grad;
  void *grad_first, *grad_second;
};

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int mpelu_forward(const Call* call);
EXPORT int mpelu_backward(const Call* call);
