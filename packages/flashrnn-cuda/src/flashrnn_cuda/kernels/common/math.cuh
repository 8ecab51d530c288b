// The functions that cells are made of, as exact as the element type T asks for. All compute in float.
#pragma once

#include "common/bounds.cuh"
#include "common/types.cuh"

namespace flashrnn {

constexpr float LOG2_E = 1.44269504088896341f, LN_2 = 0.693147180559945309f;

__device__ __forceinline__ float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float fast_log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float fast_reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float fast_tanh(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What every type shares. Cells ask for: sigmoid, tanh, exp, log_sigmoid and divide too.
struct FloatMath {
  using Scalar = float;

  static __device__ __forceinline__ float multiply_add(float x, float y, float z) { return fmaf(x, y, z); }
  static __device__ __forceinline__ float abs(float x) { return fabsf(x); }
  static __device__ __forceinline__ float min(float x, float y) { return fminf(x, y); }
  static __device__ __forceinline__ float max(float x, float y) { return x > y || x != x ? x : y; }  // keeps NaN
  static __device__ __forceinline__ bool is_negative(float x) { return __float_as_uint(x) >> 31; }
};

// float16: relative errors far below 2^-12.
template <class T>
struct Math : FloatMath {
  static constexpr float EXP_BOUND = float(flashrnn::EXP_BOUND<T>);

  static __device__ __forceinline__ float exp(float x) { return fast_exp2(x * LOG2_E); }
  static __device__ __forceinline__ float sigmoid(float x) { return fast_reciprocal(1.f + exp(-x)); }
  static __device__ __forceinline__ float tanh(float x) {
    const float far = fmaf(-2.f, fast_reciprocal(1.f + exp(2.f * x)), 1.f);  // within 1e-7, which near 0 is much
    return fabsf(x) < 0.02f ? x * fmaf(x * x, -1.f / 3.f, 1.f) : far;
  }
  static __device__ __forceinline__ float log_sigmoid(float x) {
    const float s = exp(-fabsf(x)), log1p = s < 0.02f ? s * fmaf(s, fmaf(s, 1.f / 3.f, -0.5f), 1.f) : LN_2 * fast_log2(1.f + s);
    return min(x, 0.f) - log1p;
  }
  static __device__ __forceinline__ float divide(float x, float y) { return x * fast_reciprocal(y); }
};

// bfloat16: the hardware's tanh, within 2^-11.
template <>
struct Math<bf16> : Math<f16> {
  static constexpr float EXP_BOUND = float(flashrnn::EXP_BOUND<bf16>);

  static __device__ __forceinline__ float tanh(float x) { return fast_tanh(x); }
  static __device__ __forceinline__ float sigmoid(float x) { return fmaf(fast_tanh(0.5f * x), 0.5f, 0.5f); }
};

// float32: the library's functions.
template <>
struct Math<float> : FloatMath {
  static constexpr float EXP_BOUND = float(flashrnn::EXP_BOUND<float>);

  static __device__ __forceinline__ float exp(float x) { return expf(x); }
  static __device__ __forceinline__ float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
  static __device__ __forceinline__ float tanh(float x) { return tanhf(x); }
  static __device__ __forceinline__ float log_sigmoid(float x) { return min(x, 0.f) - log1pf(expf(-fabsf(x))); }
  static __device__ __forceinline__ float divide(float x, float y) { return x / y; }
};

// x held in [-bound, bound]; NaN stays NaN.
__device__ __forceinline__ float clamp(float x, float bound) { return x > bound ? bound : x < -bound ? -bound : x; }

}  // namespace flashrnn
