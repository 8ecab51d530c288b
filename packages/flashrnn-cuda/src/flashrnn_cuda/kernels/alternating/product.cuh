// The recurrent product of one item, R read from L2: its K is shared out among the warps of a CTA, then summed.
//
// Rows of both operands are whole chunks of 64 bytes along k. Four lanes read a chunk, 16 bytes each, and hand words 0, 1 and
// 2, 3 of what they hold to two calls of mma: in another order along k than the matrix has, but the same for both operands.
#pragma once

#include "common/memory.cuh"
#include "common/mma.cuh"

namespace flashrnn {

constexpr int CHUNK = 64, WARPS = 8, THREADS = 32 * WARPS;

// R does not change while the kernel runs, so L1 may keep it.
__device__ __forceinline__ Piece16 load_constant(const char* p) {
  Piece16 x;
  asm("ld.global.nc.v4.u32 {%0,%1,%2,%3}, [%4];"
      : "=r"(x.words[0]), "=r"(x.words[1]), "=r"(x.words[2]), "=r"(x.words[3])
      : "l"(p));
  return x;
}

// What other CTAs wrote is in L2.
__device__ __forceinline__ Piece16 load_shared_by_ctas(const char* p) {
  Piece16 x;
  asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.words[0]), "=r"(x.words[1]), "=r"(x.words[2]), "=r"(x.words[3])
               : "l"(p)
               : "memory");
  return x;
}

// TILES tiles of 16 rows of R, with COLUMNS blocks of 8 batch rows.
template <class T, int TILES, int COLUMNS>
struct Product {
  static constexpr int SHARED_BYTES = WARPS * TILES * COLUMNS * 4 * 32 * 4;
  float* sums;  // [warp][tile][column][4][lane]

  // row(q): the row of R for row q % 2 * 8 + lane / 4 of tile q / 2, null for zeros. column(c): the row that enters with batch
  // row 8 c + lane / 4. All threads call it.
  template <class Row, class Column>
  __device__ __forceinline__ void compute(int chunks, Row row, Column column) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sum[TILES][COLUMNS][4] = {};
    const char *a_row[2 * TILES], *b_row[COLUMNS];
#pragma unroll
    for (int q = 0; q < 2 * TILES; q++) a_row[q] = row(q);
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) b_row[c] = column(c);
    constexpr int AT_ONCE = COLUMNS > 2 ? 2 : 4;  // chunks on their way
#pragma unroll AT_ONCE
    for (int chunk = warp; chunk < chunks; chunk += WARPS) {
      const int byte = chunk * CHUNK + lane % 4 * 16;
      Piece16 a[2 * TILES], b[COLUMNS];
#pragma unroll
      for (int q = 0; q < 2 * TILES; q++) a[q] = a_row[q] == nullptr ? Piece16{} : load_constant(a_row[q] + byte);
#pragma unroll
      for (int c = 0; c < COLUMNS; c++) b[c] = load_shared_by_ctas(b_row[c] + byte);
#pragma unroll
      for (int half = 0; half < 4; half += 2)
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
          for (int c = 0; c < COLUMNS; c++) {
            const uint x[4] = {a[2 * m].words[half], a[2 * m + 1].words[half], a[2 * m].words[half + 1],
                               a[2 * m + 1].words[half + 1]};
            const uint y[2] = {b[c].words[half], b[c].words[half + 1]};
            mma<T>(sum[m][c], x, y);
          }
    }
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
      for (int c = 0; c < COLUMNS; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) sums[index(warp, m, c, i) + lane] = sum[m][c][i];
    __syncthreads();
  }

  // Element (row r of q, batch row x) of the product, once all of compute is done.
  __device__ __forceinline__ float element(int q, int r, int x) const {
    const int i = q % 2 * 2 + x % 2, lane = r * 4 + x % 8 / 2;
    float total = 0.f;
#pragma unroll
    for (int warp = 0; warp < WARPS; warp++) total += sums[index(warp, q / 2, x / 8, i) + lane];
    return total;
  }

  static __device__ __forceinline__ int index(int warp, int m, int c, int i) {
    return (((warp * TILES + m) * COLUMNS + c) * 4 + i) * 32;
  }
};

}  // namespace flashrnn
