// A 16 x 8 tile of a product on the tensor cores: c += a b, accumulated in float.
//
// Matrices are seen as 32-bit words along k: one word holds two 16-bit elements or one float. A call consumes 8 words of k.
// With r = lane / 4 and q = lane % 4, a lane holds
//   a: [row r, word q], [row r + 8, word q], [row r, word q + 4], [row r + 8, word q + 4]
//   b: [column r, word q], [column r, word q + 4]
//   c: [row r, columns 2q, 2q + 1], [row r + 8, columns 2q, 2q + 1]
#pragma once

#include "common/types.cuh"

namespace flashrnn {

constexpr int MMA_WORDS = 8;

template <class T>
__device__ __forceinline__ void mma(float (&c)[4], const uint (&a)[4], const uint (&b)[2]);

template <>
__device__ __forceinline__ void mma<bf16>(float (&c)[4], const uint (&a)[4], const uint (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
__device__ __forceinline__ void mma<f16>(float (&c)[4], const uint (&a)[4], const uint (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Volatile, as what makes its operands is: in this order few of them are alive at a time.
__device__ __forceinline__ void mma_tf32(float (&c)[4], const uint (&a)[4], const uint (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// A float as the sum of two TF32 numbers, within 2^-23 of it. Volatile, so that the parts are made where they are used:
// moved out of a loop over time they would take twice the registers of what they came from.
__device__ __forceinline__ void split_tf32(uint x, uint& high, uint& low) {
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(__uint_as_float(x)));
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(low) : "f"(__uint_as_float(x) - __uint_as_float(high)));
}

// Three TF32 products make one that is as exact as float32. Tensor cores cut off what is below the last bit of c, which adds
// up over a long k: so these start from zero, and what joins them to c is an addition that rounds.
template <>
__device__ __forceinline__ void mma<float>(float (&c)[4], const uint (&a)[4], const uint (&b)[2]) {
  uint a_high[4], a_low[4], b_high[2], b_low[2];
#pragma unroll
  for (int i = 0; i < 4; i++) split_tf32(a[i], a_high[i], a_low[i]);
#pragma unroll
  for (int i = 0; i < 2; i++) split_tf32(b[i], b_high[i], b_low[i]);
  float part[4] = {};
  mma_tf32(part, a_low, b_high);
  mma_tf32(part, a_high, b_low);
  mma_tf32(part, a_high, b_high);
#pragma unroll
  for (int i = 0; i < 4; i++) c[i] += part[i];
}

}  // namespace flashrnn
