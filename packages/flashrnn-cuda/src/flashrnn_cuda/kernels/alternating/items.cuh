// The work of the alternating kernels, cut into items, and how CTAs wait for each other.
//
// An item is UNITS units of one head for one tile of batch rows; all items of a head and a tile form a group, and need each
// other's results once a step. Each CTA takes its items in the same order in every step, and all CTAs are resident, so that
// whoever waits, waits for somebody who runs.
#pragma once

#include "common/arguments.cuh"

namespace flashrnn {

struct Item {
  int head, first_row, first_unit, group;
};

template <int UNITS, int ROWS>
struct Items {
  int blocks, groups, heads;

  __device__ __forceinline__ explicit Items(const Sizes& sizes)
      : blocks((sizes.head_dim + UNITS - 1) / UNITS),
        groups((sizes.batch + ROWS - 1) / ROWS * sizes.heads),
        heads(sizes.heads) {}

  __device__ __forceinline__ int64 count() const { return int64(blocks) * groups; }
  __device__ __forceinline__ Item operator[](int64 i) const {
    const int group = int(i / blocks);
    return {group % heads, group / heads * ROWS, int(i % blocks) * UNITS, group};
  }
};

// How many times items of each group have said that they are done.
struct Arrivals {
  unsigned* counts;

  // All threads have written what the group will read.
  __device__ __forceinline__ void arrive(int group) const {
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counts + group) : "memory");
  }

  // Until there were so many arrivals; what was written before them can then be read.
  __device__ __forceinline__ void wait(int group, unsigned expected) const {
    if (threadIdx.x == 0) {
      unsigned seen;
      do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counts + group) : "memory");
      while (seen < expected);
    }
    __syncthreads();
  }
};

}  // namespace flashrnn
