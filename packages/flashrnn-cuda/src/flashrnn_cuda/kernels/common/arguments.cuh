// What kernels are given, by value. flashrnn_cuda/arguments.py lays out the same structs.
#pragma once

#include "common/memory.cuh"

namespace flashrnn {

struct Sizes {
  int batch, time, heads, head_dim;
};

// The rows of R that make a gate of a unit (forward), or of R^T that lead to a unit (backward: one "gate", rows as long as
// all recurrent gates together): whole words, padded with zeros to the kernel's D; strides in bytes.
// b [gate, head, unit]; strides in elements, the last axis contiguous.
struct Weights {
  const char* R;
  int64 R_gate, R_head, R_unit;
  const void* b;
  int64 b_gate, b_head;

  __device__ __forceinline__ const uint* row(int gate, int head, int unit) const {
    return reinterpret_cast<const uint*>(R + gate * R_gate + head * R_head + unit * R_unit);
  }
};

// b[gate, head, unit]; 0 for a gate without a bias and beyond head_dim.
template <class T>
__device__ __forceinline__ float load_bias(const Weights& w, const Sizes& sizes, int gate, int head, int unit) {
  if (gate < 0 || unit >= sizes.head_dim) return 0.f;
  return to_float(static_cast<const T*>(w.b)[gate * w.b_gate + head * w.b_head + unit]);
}

// [state, batch, head, unit] of a dtype known at run time; strides in elements, the last axis contiguous. Null: zeros.
struct States {
  void* data;
  int64 state, batch, head;
  int64 dtype;

  __device__ __forceinline__ float load(int s, int b, int n, int d) const {
    return data == nullptr ? 0.f : load_as(data, s * state + b * batch + n * head + d, int(dtype));
  }
  __device__ __forceinline__ void store(int s, int b, int n, int d, float x) const {
    store_as(data, s * state + b * batch + n * head + d, int(dtype), x);
  }
};

// Null where not given.
struct Masks {
  const int64* lengths;         // [batch]
  const unsigned char* resets;  // [batch, time]
  int64 lengths_stride, resets_batch, resets_time;

  __device__ __forceinline__ int length(int b, int time) const {
    if (lengths == nullptr) return time;
    const int64 length = lengths[b * lengths_stride];
    return length < 0 ? 0 : length > time ? time : int(length);
  }
  __device__ __forceinline__ bool reset(int b, int t) const {
    return resets != nullptr && resets[b * resets_batch + t * resets_time] != 0;
  }
};

}  // namespace flashrnn
