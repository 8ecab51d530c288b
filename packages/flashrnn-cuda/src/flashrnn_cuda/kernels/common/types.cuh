// Element types and 32-bit words of them, without any CUDA header.
#pragma once

namespace flashrnn {

using uint = unsigned int;
using int64 = long long;

struct bf16 {
  unsigned short bits;
};
struct f16 {
  unsigned short bits;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(double x) { return float(x); }
__device__ __forceinline__ float to_float(bf16 x) { return __uint_as_float(uint(x.bits) << 16); }
__device__ __forceinline__ float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <class T>
__device__ __forceinline__ T from_float(float x) {
  return T(x);
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
  bf16 y;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
  f16 y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
  return y;
}

// A word of two 16-bit elements; `first` is the one at the lower address.
template <class T>
__device__ __forceinline__ uint pack(float first, float second);
template <>
__device__ __forceinline__ uint pack<bf16>(float first, float second) {
  uint word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}
template <>
__device__ __forceinline__ uint pack<f16>(float first, float second) {
  uint word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
}

template <class T>
__device__ __forceinline__ void unpack(uint word, float (&x)[2]) {
  x[0] = to_float(T{(unsigned short)(word & 0xffff)});
  x[1] = to_float(T{(unsigned short)(word >> 16)});
}

// A dtype known at run time only: that of initial and last states and their gradients.
enum Dtype : int { FLOAT16, BFLOAT16, FLOAT32, FLOAT64 };

__device__ __forceinline__ float load_as(const void* data, int64 index, int dtype) {
  switch (dtype) {
    case FLOAT16: return to_float(static_cast<const f16*>(data)[index]);
    case BFLOAT16: return to_float(static_cast<const bf16*>(data)[index]);
    case FLOAT32: return static_cast<const float*>(data)[index];
    default: return to_float(static_cast<const double*>(data)[index]);
  }
}

__device__ __forceinline__ void store_as(void* data, int64 index, int dtype, float x) {
  switch (dtype) {
    case FLOAT16: static_cast<f16*>(data)[index] = from_float<f16>(x); break;
    case BFLOAT16: static_cast<bf16*>(data)[index] = from_float<bf16>(x); break;
    case FLOAT32: static_cast<float*>(data)[index] = x; break;
    default: static_cast<double*>(data)[index] = x;
  }
}

}  // namespace flashrnn
