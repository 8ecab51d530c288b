// What both fused passes do around the loop over time: load the weights, know their rows, walk over pieces; and the product.
#pragma once

#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/arguments.cuh"

namespace flashrnn {

// A value that the type knows.
template <bool VALUE>
struct Constant {
  static constexpr bool value = VALUE;
};

// The weights of one warp as the a operands of TILES x STEPS calls of mma: the first KEPT steps in registers, the rest in
// shared memory, 16 bytes a lane.
template <class T, int TILES, int STEPS, int KEPT>
struct WarpWeights {
  static constexpr int SHARED_BYTES = (STEPS - KEPT) * TILES * 512;  // a warp
  uint kept[TILES][KEPT > 0 ? KEPT : 1][4];
  Piece16* rest;

  // word(q, i) is word i of row lane / 4 of half q % 2 of tile q / 2.
  template <class Word>
  __device__ __forceinline__ void load(char* memory, int lane, Word word) {
    rest = reinterpret_cast<Piece16*>(memory) + lane;
#pragma unroll
    for (int q = 0; q < 2 * TILES; q++) {
#pragma unroll
      for (int step = 0; step < KEPT; step++)
#pragma unroll
        for (int i = 0; i < 2; i++) kept[q / 2][step][2 * i + q % 2] = word(q, step * MMA_WORDS + i * 4 + lane % 4);
#pragma unroll 4
      for (int step = KEPT; step < STEPS; step++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          rest[((step - KEPT) * TILES + q / 2) * 32].words[2 * i + q % 2] = word(q, step * MMA_WORDS + i * 4 + lane % 4);
    }
  }

  // The a operand of a step that is kept, known at compile time; and of one that is not.
  __device__ __forceinline__ void from_registers(uint (&a)[4], int m, int step) const {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = kept[m][step][i];
  }
  __device__ __forceinline__ void from_memory(uint (&a)[4], int m, int step) const {
    const Piece16 piece = rest[((step - KEPT) * TILES + m) * 32];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = piece.words[i];
  }
};

// c[2 m + half] += the product of the rows 8 * half to 8 * half + 7 of tile m with the rows in shared memory, 8 for every 2 of
// LANE_ROWS.
template <class T, int TILES, int STEPS, int KEPT, int COUNT, int LANE_ROWS>
__device__ __forceinline__ void multiply(float (&c)[COUNT][LANE_ROWS], const WarpWeights<T, TILES, STEPS, KEPT>& weights,
                                         const char* operand, int pitch, int lane) {
  static_assert(COUNT >= 2 * TILES, "two rows of c a tile");
  constexpr int COLUMNS = LANE_ROWS / 2;
  // Operands in registers at a time.
  constexpr int GROUP = COLUMNS == 1 && STEPS % 4 + KEPT % 4 == 0 ? 4 : STEPS % 2 + KEPT % 2 == 0 ? 2 : 1;
  // Sums that do not wait for each other: four calls of mma on their way hide the time that one takes.
  constexpr bool UNROLLED = sizeof(T) == 2;  // float32 has no registers to spare
  constexpr int WANTED = TILES * COLUMNS >= 4 ? 1 : TILES * COLUMNS >= 2 ? 2 : 4, AT_HAND = UNROLLED ? STEPS : GROUP;
  constexpr int CHAINS = AT_HAND >= WANTED ? WANTED : AT_HAND >= 2 ? 2 : 1;
  float sum[CHAINS][COLUMNS][TILES][4];
#pragma unroll
  for (int chain = 0; chain < CHAINS; chain++)
#pragma unroll
    for (int n = 0; n < COLUMNS; n++)
#pragma unroll
      for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[chain][n][m][i] = chain == 0 ? c[2 * m + i / 2][2 * n + i % 2] : 0.f;
  const auto group = [&](int first, auto kept) {
    uint b[COLUMNS][GROUP][2];
#pragma unroll
    for (int n = 0; n < COLUMNS; n++) load_operand<GROUP>(b[n], operand + n * 8 * pitch + first * MMA_WORDS * 4, pitch, lane);
#pragma unroll
    for (int i = 0; i < GROUP; i++)
#pragma unroll
      for (int m = 0; m < TILES; m++) {
        uint a[4];
        if constexpr (decltype(kept)::value)
          weights.from_registers(a, m, first + i);
        else
          weights.from_memory(a, m, first + i);
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) mma<T>(sum[(UNROLLED ? first + i : i) % CHAINS][n][m], a, b[n][i]);
      }
  };
#pragma unroll
  for (int first = 0; first < KEPT; first += GROUP) group(first, Constant<true>{});
  constexpr int AT_ONCE = UNROLLED ? STEPS : 1;
#pragma unroll AT_ONCE
  for (int first = KEPT; first < STEPS; first += GROUP) group(first, Constant<false>{});
#pragma unroll
  for (int n = 0; n < COLUMNS; n++)
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        float& total = c[2 * m + i / 2][2 * n + i % 2];
        if constexpr (CHAINS == 4)
          total = (sum[0][n][m][i] + sum[1][n][m][i]) + (sum[2][n][m][i] + sum[3][n][m][i]);
        else
          total = CHAINS == 2 ? sum[0][n][m][i] + sum[CHAINS - 1][n][m][i] : sum[0][n][m][i];
      }
}

// Warps that make one product together: each over one of SPLIT parts of k, where the one with part 0 leads and gets the sum; or,
// if SPLIT is 1, each its own rows. Between two sums all warps of the CTA meet.
template <int SPLIT, int COUNT, int LANE_ROWS>
struct Team {
  static constexpr int BYTES = (SPLIT - 1) * COUNT * LANE_ROWS * 32 * 4;  // of shared memory
  int index, part;
  float* memory;

  __device__ __forceinline__ Team(char* memory_, int index_, int part_)
      : index(index_), part(part_), memory(reinterpret_cast<float*>(memory_ + index_ * BYTES)) {}

  template <int SIZE>
  __device__ __forceinline__ void add_up(float (&product)[SIZE][LANE_ROWS], int lane) const {
    static_assert(SIZE >= COUNT, "the sums come first");
    if constexpr (SPLIT > 1) {
      if (part > 0)
#pragma unroll
        for (int q = 0; q < COUNT; q++)
#pragma unroll
          for (int j = 0; j < LANE_ROWS; j++) at(part, q, j, lane) = product[q][j];
      asm volatile("bar.sync %0, %1;" ::"r"(1 + index), "n"(32 * SPLIT) : "memory");
      if (part == 0)
#pragma unroll
        for (int from = 1; from < SPLIT; from++)
#pragma unroll
          for (int q = 0; q < COUNT; q++)
#pragma unroll
            for (int j = 0; j < LANE_ROWS; j++) product[q][j] += at(from, q, j, lane);
    }
  }

  __device__ __forceinline__ float& at(int from, int q, int j, int lane) const {
    return memory[(((from - 1) * COUNT + q) * LANE_ROWS + j) * 32 + lane];
  }
};

// The batch rows of a lane in its CTA's tile, 2 of every 8: which there are, where their padding begins, where they are reset.
template <bool MASKED, int LANE_ROWS>
struct TileRows {
  int batch[LANE_ROWS];
  bool valid[LANE_ROWS];
  int length[LANE_ROWS];
  Masks masks;
  int time;

  __device__ __forceinline__ TileRows(const Masks& masks_, const Sizes& sizes, int first_row, int lane)
      : masks(masks_), time(sizes.time) {
#pragma unroll
    for (int j = 0; j < LANE_ROWS; j++) {
      batch[j] = first_row + j / 2 * 8 + 2 * (lane % 4) + j % 2;
      valid[j] = batch[j] < sizes.batch;
      length[j] = MASKED && valid[j] ? masks.length(batch[j], time) : time;
    }
  }

  __device__ __forceinline__ bool padding(int t, int j) const { return MASKED && t >= length[j]; }

  // Whether the states are zero before step t; never in padding.
  __device__ __forceinline__ bool resets(int t, int j) const {
    return MASKED && t < length[j] && valid[j] && masks.reset(batch[j], t);
  }
};

// The rows of ARRAYS arrays, ROWS of each and ROW_BYTES long, moved in pieces of PIECE bytes between global and shared memory,
// step after step, by THREADS threads. A thread with few pieces, 4 of 16 bytes or 2 smaller ones, keeps their addresses, which
// take registers; with more it finds them anew each time.
template <int ROW_BYTES, int PIECE, int ARRAYS, int ROWS, int THREADS>
struct Pieces {
  static constexpr int PER_ROW = ROW_BYTES / PIECE;
  static constexpr int TOTAL = ARRAYS * ROWS * PER_ROW, COUNT = (TOTAL + THREADS - 1) / THREADS;
  static constexpr bool KEPT = COUNT <= (PIECE < 16 ? 2 : 4);
  static constexpr int SLOTS = KEPT && COUNT > 0 ? COUNT : 1;

  struct Place {
    char* global;  // at step 0; null if there is no such piece
    int64 stride;  // from step to step
    int shared;
  };
  Place kept[SLOTS];
  int thread;

  // place(array, row, byte) gives the place of a piece, and whether a row exists.
  template <class Find>
  __device__ __forceinline__ Pieces(int thread_, Find find) : thread(thread_) {
    if constexpr (KEPT)
#pragma unroll
      for (int i = 0; i < COUNT; i++) kept[i] = at(i, find);
  }

  template <class Find>
  __device__ __forceinline__ Place at(int i, Find find) const {
    const int index = thread + i * THREADS;
    if (index >= TOTAL) return {};
    return find(index / (ROWS * PER_ROW), index / PER_ROW % ROWS, index % PER_ROW * PIECE);
  }

  // move(global, shared) for each piece in step i.
  template <class Find, class Move>
  __device__ __forceinline__ void step(int i, Find find, Move move) const {
    if constexpr (KEPT) {
#pragma unroll
      for (int k = 0; k < COUNT; k++)
        if (kept[k].global != nullptr) move(kept[k].global + i * kept[k].stride, kept[k].shared);
    } else {
#pragma unroll 1
      for (int k = 0; k < COUNT; k++) {
        const Place place = at(k, find);
        if (place.global != nullptr) move(place.global + i * place.stride, place.shared);
      }
    }
  }
};

// Shared memory holds finite numbers from the start: rows and units that do not exist compute with them.
template <int BYTES, int THREADS>
__device__ __forceinline__ void clear_shared(char* memory) {
  for (int i = threadIdx.x * 16; i < BYTES; i += THREADS * 16) *reinterpret_cast<Piece16*>(memory + i) = Piece16{};
  __syncthreads();
}

}  // namespace flashrnn
