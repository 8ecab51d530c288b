// What kernels are given, by value. flashrnn_cuda/arguments.py lays out the same structs.
#pragma once

#include "common/memory.cuh"

namespace flashrnn {

struct Sizes {
  int batch, time, heads, head_dim;
};

// R [gate, head, out, in]; strides in bytes. b [gate, head, unit]; strides in elements, the last axis contiguous.
struct Weights {
  const char* R;
  int64 R_gate, R_head, R_out, R_in;
  const void* b;
  int64 b_gate, b_head;

  __device__ __forceinline__ const char* at(int gate, int head, int out, int in) const {
    return R + gate * R_gate + head * R_head + out * R_out + in * R_in;
  }
};

// A 32-bit word of R from (out, in) on, along the row or, turned, down the column; zeros beyond head_dim.
template <class T, bool TURNED>
__device__ __forceinline__ uint load_word(const Weights& w, int head_dim, int gate, int head, int out, int in) {
  const char* from = w.at(gate, head, out, in);
  const int along = TURNED ? out : in, across = TURNED ? in : out;
  if (across >= head_dim || along >= head_dim) return 0;
  if constexpr (sizeof(T) == 4) {
    return *reinterpret_cast<const uint*>(from);
  } else {
    const uint first = *reinterpret_cast<const unsigned short*>(from);
    if (along + 1 >= head_dim) return first;
    return first | uint(*reinterpret_cast<const unsigned short*>(from + (TURNED ? w.R_out : w.R_in))) << 16;
  }
}

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
