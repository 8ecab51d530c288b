// How the CTAs that share a head and a tile of batch rows work together: here there is but one.
//
// A CTA owns UNITS units. An exchange says how many CTAs there are (CTAS), which one this is (rank) and of which tile (group),
// and offers two ways of handing on. Both want begin() and end() around all else by every thread, and count what is handed on,
// i = 0, 1, 2, ...: no CTA can be two steps ahead of another, since each step needs something from all of them.
//
// Gather: what each CTA knows of its own units, all CTAs get, PARTS numbers a unit and row. There are two sets of memory, for i
// in turn, that begin with SET_BYTES of the gathering; MORE_BYTES of it are elsewhere.
//   own(part, row) where in a set the units of this CTA lie
//   put(i, ...)    a block of 8 units, by the warp that owns them
//   send(i, ...)   the blocks that the warp has put, on their way
//   sync(i, f)     by every thread, THREADS in all, after what it has put; then that of all is there for each. f() comes
//                  while others are waited for, when all have called sync(i) or, if EARLY, have left sync(i - 1)
//   wait(i)        then, by each thread that reads buffer(i): what the others have sent is there too
//   buffer(i)      rows of [PARTS][CTAS][UNITS], PITCH bytes apart, until sync(i + 1)
//   Product        how the warps make the product with what is gathered: fused/product.cuh
//
// On the way back each CTA multiplies the gates of so many CTAs as it GATHERS them from; 1: its own alone.
//   GatherGates    how, a Gather
//   gathered(x)    the unit of the head that is the x-th of those gathered
//
// Reduce: of what each CTA has computed for all units, the owners get the sums. The warps of a team share the product out, by
// its rows if SHARES_ROWS, else along k, so that the leader alone has something to send.
//   ROW_BLOCKS     of 8 units that a warp computes
//   unit(...)      the first unit of row block q of part `part` of a team
//   send(i, ...)   what a warp has computed, on its way
//   total(i, ...)  then, by the leader: the sums for the units that its team owns
#pragma once

#include "common/memory.cuh"
#include "fused/product.cuh"

namespace flashrnn {

// A gathering into the sets themselves: the units of a CTA lie among all others.
template <class Exchange, class T, int UNITS, int PARTS, int COLUMNS>
struct GatherInPlace {
  template <class Shape, int KEPT>
  using Product = TeamProduct<Shape, KEPT>;
  static constexpr int SIZE = int(sizeof(T)), PITCH = PARTS * Exchange::CTAS * UNITS * SIZE + 16;
  static constexpr int SET_BYTES = 8 * COLUMNS * PITCH, MORE_BYTES = 0, MAILBOX_BYTES = 0;
  static constexpr bool EARLY = false;
  char* sets;
  int distance;  // from one set to the other
  char *more, *mailbox;

  __device__ __forceinline__ void begin() const {}
  __device__ __forceinline__ void end() const {}

  __device__ __forceinline__ char* buffer(int i) const { return sets + (i & 1) * distance; }
  static __device__ __forceinline__ int own(int part, int row) {
    return row * PITCH + (part * Exchange::CTAS + Exchange::rank()) * UNITS * SIZE;
  }

  __device__ __forceinline__ void put(int i, int part, int unit, int lane, const float (&x)[2 * COLUMNS]) const {
    store_tiles<T>(buffer(i) + own(part, 0) + unit * SIZE, PITCH, lane, x);
  }
  // COUNT blocks of each part, from `unit` on.
  template <int COUNT>
  __device__ __forceinline__ void send(int i, int unit, int lane) const {}

  template <int THREADS, class Meanwhile>
  __device__ __forceinline__ void sync(int i, Meanwhile meanwhile) const {
    __syncthreads();
    meanwhile();
  }
  __device__ __forceinline__ void wait(int i) const {}
};

struct Local {
  static constexpr int CTAS = 1;
  static constexpr int GATHERS = 1;
  static __device__ __forceinline__ int rank() { return 0; }
  static __device__ __forceinline__ int group() { return int(blockIdx.x); }
  template <int UNITS>
  static __device__ __forceinline__ int gathered(int x) {
    return x;
  }

  template <class T, int UNITS, int PARTS, int COLUMNS>
  using Gather = GatherInPlace<Local, T, UNITS, PARTS, COLUMNS>;
  template <class T, int UNITS, int PARTS, int COLUMNS>
  using GatherGates = Gather<T, UNITS, PARTS, COLUMNS>;

  // Each team computes the products of its own units, its warps along parts of k.
  template <int UNITS, int BLOCKS, int SPLIT, int COLUMNS>
  struct Reduce {
    static constexpr bool SHARES_ROWS = false;
    static constexpr int ROW_BLOCKS = BLOCKS, TILES = (BLOCKS + 1) / 2;
    static constexpr int BYTES = 0;
    char* memory;

    static __device__ __forceinline__ int unit(int first_unit, int team, int part, int q) {
      return first_unit + (team * BLOCKS + q) * 8;
    }

    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void end() const {}

    __device__ __forceinline__ void send(int i, const float (&product)[2 * TILES][2 * COLUMNS], int team, int part,
                                         int lane) const {}

    __device__ __forceinline__ void total(int i, float (&total)[BLOCKS][2 * COLUMNS],
                                          const float (&product)[2 * TILES][2 * COLUMNS], int team, int lane) const {
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int j = 0; j < 2 * COLUMNS; j++) total[block][j] = product[block][j];
    }
  };
};

}  // namespace flashrnn
