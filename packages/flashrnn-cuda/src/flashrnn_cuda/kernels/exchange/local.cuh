// How the CTAs that share a head and a batch tile hand each other what the next step's product reads: here there is but one,
// so shared memory and its barrier do.
//
// An exchange keeps two buffers [8 rows][WIDTH elements], `distance` bytes apart, and offers
//   buffer(i)         what step i reads, i counted in the order of computation
//   put(i, ...)       a tile of what step i will read
//   arrive_and_wait() after it, all of what was put is there for everyone
#pragma once

#include "common/memory.cuh"

namespace flashrnn {

template <class T, int WIDTH>
struct Local {
  static constexpr int PITCH = WIDTH * int(sizeof(T)) + 16;
  static constexpr int BYTES = 8 * PITCH;  // of one buffer
  char* memory;
  int distance;

  __device__ __forceinline__ char* buffer(int i) const { return memory + (i & 1) * distance; }

  __device__ __forceinline__ void put(int i, int first_unit, int lane, float row0, float row1) const {
    store_tile<T>(buffer(i) + first_unit * int(sizeof(T)), PITCH, lane, row0, row1);
  }

  __device__ __forceinline__ void arrive_and_wait() const { __syncthreads(); }
};

}  // namespace flashrnn
