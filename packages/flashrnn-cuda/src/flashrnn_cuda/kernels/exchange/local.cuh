// How the CTAs that share a head and a tile of batch rows work together: here there is but one.
//
// A CTA owns UNITS units. An exchange says how many CTAs there are (CTAS), which one this is (rank) and of which tile (group),
// and offers two ways of handing on. Both want begin() and end() around all else by every thread, and keep two buffers, for
// i = 0, 1, 2, ... in turn: no CTA can be two steps ahead of another, since each step needs something from all of them.
//
// Gather: what each CTA knows of its own units, all CTAs get.
//   put(i, ...)    a tile, by the warp that owns its units
//   send(i, ...)   the tiles that the warp has put, on their way
//   sync(i, f)     by every thread, after what it has put, and after f(), which may come while others are waited for: what
//                  this CTA has put is there for all of it. THREADS in all; a buffer has PARTS equal parts with all units each
//   wait(i)        then, by each thread that reads buffer(i): what the others have sent is there too
//
// Only with GATHERS_GATES are the gates gathered on the way back; else each CTA has those of its own units.
//
// Reduce: of what each CTA has computed for all units, the owners get the sums.
//   unit(team, q)  the first unit of row block q of a team's product: what it is to compute; -1: nothing
//   run(i, ...)    product in, sums for the units that the team owns out
#pragma once

#include "common/memory.cuh"

namespace flashrnn {

struct Local {
  static constexpr int CTAS = 1;
  static constexpr bool GATHERS_GATES = false;
  static __device__ __forceinline__ int rank() { return 0; }
  static __device__ __forceinline__ int group() { return int(blockIdx.x); }

  // Buffers of [8 rows][WIDTH elements], `distance` bytes apart.
  template <class T, int WIDTH>
  struct Gather {
    static constexpr int PITCH = WIDTH * int(sizeof(T)) + 16;
    static constexpr int BYTES = 8 * PITCH;  // of a buffer
    static constexpr int BARRIER_BYTES = 0, MAILBOX_BYTES = 0;
    char* memory;
    int distance;
    char *barriers, *mailbox;

    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void end() const {}

    __device__ __forceinline__ char* buffer(int i) const { return memory + (i & 1) * distance; }

    __device__ __forceinline__ void put(int i, int first_unit, int lane, float row0, float row1) const {
      store_tile<T>(buffer(i) + first_unit * int(sizeof(T)), PITCH, lane, row0, row1);
    }
    // COUNT tiles, from first_unit on.
    template <int COUNT>
    __device__ __forceinline__ void send(int i, int first_unit, int lane) const {}

    template <int THREADS, int PARTS, class Meanwhile>
    __device__ __forceinline__ void sync(int i, Meanwhile meanwhile) const {
      meanwhile();
      __syncthreads();
    }
    __device__ __forceinline__ void wait(int i) const {}
  };

  // Teams with BLOCKS blocks of 8 units: each computes the products of its own.
  template <int UNITS, int BLOCKS>
  struct Reduce {
    static constexpr int TILES = (BLOCKS + 1) / 2;  // of 16 units, a team
    static constexpr int BYTES = 0;                 // of all buffers
    char* memory;

    static __device__ __forceinline__ int unit(int first_unit, int team, int q) {
      return q < BLOCKS ? first_unit + (team * BLOCKS + q) * 8 : -1;
    }

    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void end() const {}

    __device__ __forceinline__ void run(int i, float (&total)[BLOCKS][2], const float (&product)[2 * TILES][2], int team,
                                        int lane) const {
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int j = 0; j < 2; j++) total[block][j] = product[block][j];
    }
  };
};

}  // namespace flashrnn
