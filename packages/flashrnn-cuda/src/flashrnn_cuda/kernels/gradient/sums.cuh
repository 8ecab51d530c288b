// The gradients of R and b from their parts, summed in float32 in a fixed order and rounded once.
#pragma once

#include "common/types.cuh"

namespace flashrnn {

// `count` parts of `size` elements each. Null: not asked for.
struct Parts {
  const float* parts;
  void* sum;  // out
  int64 size, count, dtype;

  __device__ __forceinline__ void add_up(int64 i) const {
    float total = 0.f;
#pragma unroll 4
    for (int64 part = 0; part < count; part++) total += parts[part * size + i];
    store_as(sum, i, int(dtype), total);
  }
};

struct SumsArguments {
  Parts R, b;
};

__device__ __forceinline__ void sum_parts(const SumsArguments& args) {
  const int64 i = int64(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < args.R.size)
    args.R.add_up(i);
  else if (i < args.R.size + args.b.size)
    args.b.add_up(i - args.R.size);
}

}  // namespace flashrnn
