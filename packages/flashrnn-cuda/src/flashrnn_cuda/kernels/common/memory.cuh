// Moving data: between global and shared memory in pieces, and between shared memory and the registers of a warp in tiles.
#pragma once

#include "common/types.cuh"

namespace flashrnn {

// Arrays (gates, states or activations) of rows [head_dim]: a tensor [array, batch, time, heads, head_dim]; strides in bytes,
// head_dim contiguous. Null: not given, or not asked for.
struct Arrays {
  char* data;
  int64 array, batch, time, head;

  __device__ __forceinline__ char* at(int i, int b, int t, int n) const {
    return data + i * array + b * batch + t * time + n * head;
  }
};

__device__ __forceinline__ uint shared_address(const void* p) { return uint(__cvta_generic_to_shared(p)); }

// ---------------------------------------------------------------------------------------------------------------- pieces

// Copy BYTES (16, 4 or 2), aligned to as much, into shared memory; 16 and 4 in the background.
template <int BYTES>
__device__ __forceinline__ void copy_in(char* to, const char* from) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
  else if constexpr (BYTES == 4)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
  else
    *reinterpret_cast<unsigned short*>(to) = *reinterpret_cast<const unsigned short*>(from);
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most PENDING of this thread's committed groups are still on their way.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

struct alignas(16) Piece16 {
  uint words[4];
};

template <int BYTES>
__device__ __forceinline__ void copy_out(char* to, const char* from) {
  if constexpr (BYTES == 16)
    *reinterpret_cast<Piece16*>(to) = *reinterpret_cast<const Piece16*>(from);
  else if constexpr (BYTES == 4)
    *reinterpret_cast<uint*>(to) = *reinterpret_cast<const uint*>(from);
  else
    *reinterpret_cast<unsigned short*>(to) = *reinterpret_cast<const unsigned short*>(from);
}

// ----------------------------------------------------------------------------------------------------------------- tiles
// A tile is 8 batch rows x 8 units in shared memory, rows `pitch` bytes apart (a multiple of 16). In registers it lies as the
// result of mma does: lane (r = lane / 4, q = lane % 4) holds unit r of rows 2q and 2q + 1.

// COUNT tiles of 16-bit elements, or of floats, under each other for every 2 of LANE_ROWS; tile i at `base` + offset(i).
template <class T, int COUNT, int LANE_ROWS, class Offset>
__device__ __forceinline__ void load_tiles(float (&x)[COUNT][LANE_ROWS], const char* base, int pitch, int lane, Offset offset) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
#pragma unroll
      for (int j = 0; j < LANE_ROWS; j++)
        x[i][j] = *reinterpret_cast<const float*>(base + offset(i) + (j / 2 * 8 + 2 * (lane % 4) + j % 2) * pitch + lane / 4 * 4);
  } else {
    constexpr int COLUMNS = LANE_ROWS / 2, TOTAL = COUNT * COLUMNS;
#pragma unroll
    for (int first = 0; first < TOTAL; first += 4) {
      const int mine = first + lane / 8 < TOTAL ? first + lane / 8 : TOTAL - 1;
      uint words[4];
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "r"(shared_address(base + offset(mine / COLUMNS) + (mine % COLUMNS * 8 + lane % 8) * pitch))
                   : "memory");
#pragma unroll
      for (int i = 0; i < 4; i++)
        if (first + i < TOTAL) {
          float two[2];
          unpack<T>(words[i], two);
#pragma unroll
          for (int j = 0; j < 2; j++) x[(first + i) / COLUMNS][(first + i) % COLUMNS * 2 + j] = two[j];
        }
    }
  }
}

// What a lane holds of a tile, rounded to 16 bits and turned: of row r, units 2q and 2q + 1.
template <class T>
__device__ __forceinline__ uint turned(float first, float second) {
  uint word;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(word) : "r"(pack<T>(first, second)));
  return word;
}

// The reverse of load_tiles, one tile, rounded to T.
template <class T>
__device__ __forceinline__ void store_tile(char* tile, int pitch, int lane, float first, float second) {
  if constexpr (sizeof(T) == 4) {
    char* to = tile + 2 * (lane % 4) * pitch + lane / 4 * 4;
    *reinterpret_cast<float*>(to) = first;
    *reinterpret_cast<float*>(to + pitch) = second;
  } else {
    *reinterpret_cast<uint*>(tile + lane / 4 * pitch + lane % 4 * 4) = turned<T>(first, second);
  }
}

// Tiles under each other, one for every 2 of LANE_ROWS.
template <class T, int LANE_ROWS>
__device__ __forceinline__ void store_tiles(char* tile, int pitch, int lane, const float (&x)[LANE_ROWS]) {
#pragma unroll
  for (int j = 0; j < LANE_ROWS; j += 2) store_tile<T>(tile + j * 4 * pitch, pitch, lane, x[j], x[j + 1]);
}

// The b operands of COUNT calls of mma: 8 rows of shared memory, `pitch` bytes apart, from `base` on.
template <int COUNT>
__device__ __forceinline__ void load_operand(uint (&b)[COUNT][2], const char* base, int pitch, int lane) {
  const uint address = shared_address(base + lane % 8 * pitch + lane / 8 * 16);
#pragma unroll
  for (int k = 0; k + 1 < COUNT; k += 2)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(b[k][0]), "=r"(b[k][1]), "=r"(b[k + 1][0]), "=r"(b[k + 1][1])
                 : "r"(address + k * 32)
                 : "memory");
  if constexpr (COUNT % 2 == 1)
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(b[COUNT - 1][0]), "=r"(b[COUNT - 1][1])
                 : "r"(shared_address(base + lane % 8 * pitch + lane / 8 % 2 * 16) + (COUNT - 1) * 32)
                 : "memory");
}

}  // namespace flashrnn
