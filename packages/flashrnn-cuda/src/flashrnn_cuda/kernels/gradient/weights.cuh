// The gradient of R: for each gate and head the sum over all batch rows and steps of (gate gradient) x (h before), a product
// whose k runs over the steps of one row after the other. For what cuBLAS makes with few CTAs: here one makes a tile of 64 x 64
// for a part of k, so that there are enough; the parts are summed afterwards, in a fixed order.
#pragma once

#include "common/arguments.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"

namespace flashrnn {

struct WeightGradientArguments {
  Sizes sizes;
  States initial;
  Masks masks;
  Arrays h;                // after each step: array 0 of the states
  Arrays d_others;         // of the gates before those with an input part, ...
  Arrays d_input;          // ... and of these
  float* parts;            // out, [part, gate, head, out, in]
  int gates, first_input;  // recurrent gates; the first gate with an input part
  int part_size;           // rows of k in a part
};

constexpr int GRADIENT_TILE = 64, GRADIENT_THREADS = 128, GRADIENT_STAGES = 4;

// Config: T, PIECE.
template <class Config>
struct WeightGradient {
  using T = typename Config::T;
  static constexpr int TILE = GRADIENT_TILE, SIZE = int(sizeof(T)), PIECE = Config::PIECE, STAGES = GRADIENT_STAGES;
  static constexpr int K = 64 / SIZE;  // rows of k at a time
  static constexpr int PITCH = TILE * SIZE + (SIZE == 4 ? 32 : 16);  // either way without bank conflicts
  static constexpr int ARRAY = K * PITCH, SHARED_BYTES = STAGES * 2 * ARRAY;
  static constexpr int STEPS = K * SIZE / (4 * MMA_WORDS), MMA_K = K / STEPS;

  const WeightGradientArguments& args;
  char* memory;
  const Sizes& sizes = args.sizes;
  const int tiles = (sizes.head_dim + TILE - 1) / TILE;
  const int first_in = blockIdx.x % tiles * TILE, first_out = blockIdx.x / tiles % tiles * TILE;
  const int head = blockIdx.x / (tiles * tiles) % sizes.heads, gate = blockIdx.x / (tiles * tiles * sizes.heads);
  const int64 first_k = int64(blockIdx.y) * args.part_size;

  __device__ __forceinline__ char* shared(int stage, int array) const { return memory + (stage % STAGES * 2 + array) * ARRAY; }

  __device__ __forceinline__ const char* d_gate(int b, int t) const {
    return gate < args.first_input ? args.d_others.at(gate, b, t, head)
                                   : args.d_input.at(gate - args.first_input, b, t, head);
  }

  // One piece of the h that entered step t.
  __device__ __forceinline__ void fetch_h(char* to, int b, int t, int unit) const {
    if (t > 0 && !args.masks.reset(b, t)) {
      copy_in<PIECE>(to, args.h.at(0, b, t - 1, head) + unit * SIZE);
      return;
    }
    const bool zero = args.masks.reset(b, t);
#pragma unroll 1
    for (int i = 0; i < PIECE / SIZE; i++)
      reinterpret_cast<T*>(to)[i] = from_float<T>(zero ? 0.f : args.initial.load(0, b, head, unit + i));
  }

  // A row of k: row b at step t, counted on from one block to the next.
  struct Place {
    int b, t, left;  // left: rows of this part from here on
  };

  __device__ __forceinline__ Place place(int row) const {
    const int64 k = first_k + row, end = int64(sizes.batch) * sizes.time;
    const int64 left = (end - first_k < args.part_size ? end - first_k : args.part_size) - row;
    return {int(k / sizes.time), int(k % sizes.time), int(left)};
  }
  __device__ __forceinline__ void advance(Place& p) const {
    p.left -= K;
    p.t += K;
    if (p.t >= sizes.time) {
      p.b += p.t / sizes.time;
      p.t %= sizes.time;
    }
  }

  static constexpr int PER_ROW = TILE * SIZE / PIECE, ROWS_AT_ONCE = GRADIENT_THREADS / PER_ROW;
  static constexpr int ROWS = (K + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE;  // of k, a thread and block
  static_assert(GRADIENT_THREADS % PER_ROW == 0, "a thread keeps to one column of pieces");

  __device__ __forceinline__ void fetch(Place (&places)[ROWS], int block) const {
    const int first = threadIdx.x / PER_ROW, unit = threadIdx.x % PER_ROW * (PIECE / SIZE);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const int row = first + i * ROWS_AT_ONCE;
      Place& p = places[i];
      if (row < K) {
        char* to[2] = {shared(block, 0) + row * PITCH + unit * SIZE, shared(block, 1) + row * PITCH + unit * SIZE};
        if (p.left > 0) {
          if (first_out + unit < sizes.head_dim) copy_in<PIECE>(to[0], d_gate(p.b, p.t) + (first_out + unit) * SIZE);
          if (first_in + unit < sizes.head_dim) fetch_h(to[1], p.b, p.t, first_in + unit);
        } else {
          for (int j = 0; j < PIECE / SIZE; j++) reinterpret_cast<T*>(to[0])[j] = reinterpret_cast<T*>(to[1])[j] = T{};
        }
      }
      advance(p);
    }
    commit_copies();
  }

  // Four 8 x 8 blocks of shared memory [k][column], turned: block i of x at k + first[i], column + second[i].
  static __device__ __forceinline__ void load_turned(uint (&x)[4], const char* array, int k, int column, int lane, bool k_first) {
    if constexpr (SIZE == 4) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int dk = (k_first ? i % 2 : i / 2) * 4, dc = (k_first ? i / 2 : i % 2) * 8;
        x[i] = *reinterpret_cast<const uint*>(array + (k + dk + lane % 4) * PITCH + (column + dc + lane / 4) * 4);
      }
    } else {
      const int i = lane / 8, dk = (k_first ? i % 2 : i / 2) * 8, dc = (k_first ? i / 2 : i % 2) * 8;
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(shared_address(array + (k + dk + lane % 8) * PITCH + (column + dc) * 2))
                   : "memory");
    }
  }

  // Each of the 4 warps makes 32 x 32 of the tile.
  __device__ __forceinline__ void multiply(float (&sum)[2][4][4], int block) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, out = warp / 2 * 32, in = warp % 2 * 32;
    constexpr int AT_ONCE = SIZE == 4 ? 1 : STEPS;
#pragma unroll AT_ONCE
    for (int step = 0; step < STEPS; step++) {
      uint a[2][4], b[2][4];
#pragma unroll
      for (int m = 0; m < 2; m++) load_turned(a[m], shared(block, 0), step * MMA_K, out + 16 * m, lane, false);
#pragma unroll
      for (int n = 0; n < 2; n++) load_turned(b[n], shared(block, 1), step * MMA_K, in + 16 * n, lane, true);
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
          const uint y[2] = {b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]};
          mma<T>(sum[m][n], a[m], y);
        }
    }
  }

  __device__ __forceinline__ void store(const float (&sum)[2][4][4]) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int out = first_out + warp / 2 * 32 + lane / 4, in = first_in + warp % 2 * 32 + lane % 4 * 2;
    const int D = sizes.head_dim;
    float* to = args.parts + ((int64(blockIdx.y) * args.gates + gate) * sizes.heads + head) * D * D;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int row = out + 16 * m + i / 2 * 8, column = in + 8 * n + i % 2;
          if (row < D && column < D) to[int64(row) * D + column] = sum[m][n][i];
        }
  }

  __device__ __forceinline__ void run() const {
    const int blocks = (args.part_size + K - 1) / K;
    for (int i = threadIdx.x * 16; i < SHARED_BYTES; i += GRADIENT_THREADS * 16)
      *reinterpret_cast<Piece16*>(memory + i) = Piece16{};
    __syncthreads();
    float sum[2][4][4] = {};
    Place places[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) places[i] = place(threadIdx.x / PER_ROW + i * ROWS_AT_ONCE);
    for (int block = 0; block < STAGES - 1; block++) fetch(places, block);
    for (int block = 0; block < blocks; block++) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();
      fetch(places, block + STAGES - 1);
      multiply(sum, block);
    }
    store(sum);
  }
};

}  // namespace flashrnn
