// The CTAs of a tile form a cluster (compute capability 9.0 and up) and store into each other's shared memory. Each buffer has
// an mbarrier that counts the bytes that have come, so that no step waits for a barrier between CTAs: use i / 2 of a buffer is
// complete when one local thread has said how many bytes will come, and all have. What the interface means: local.cuh.
#pragma once

#include "exchange/local.cuh"

namespace flashrnn {

// What lies at `address` in this CTA's shared memory, in that of another CTA of the cluster.
__device__ __forceinline__ uint of_peer(uint address, int rank) {
  uint there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// 16 bytes into the memory of a peer, counted by the barrier there.
__device__ __forceinline__ void store_async(uint to, const Piece16& piece, uint barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
               "r"(piece.words[0]), "r"(piece.words[1]), "r"(piece.words[2]), "r"(piece.words[3]), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void synchronize_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// The mbarriers of two buffers; INCOMING bytes come for each use of one.
template <int INCOMING>
struct Arrivals {
  static constexpr int BYTES = 16;
  char* memory;

  __device__ __forceinline__ uint barrier(int i) const { return shared_address(memory + (i & 1) * 8); }

  __device__ __forceinline__ void expect(int i) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier(i)), "r"(INCOMING) : "memory");
  }

  // By every thread of the cluster.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(i)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      for (int i = 0; i < 2; i++) expect(i);
    }
    synchronize_cluster();
  }

  // One thread announces the next use of the buffer as soon as this one is complete.
  __device__ __forceinline__ void wait(int i) const {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier(i)),
        "r"(i / 2 & 1)
        : "memory");
    if (threadIdx.x == 0) expect(i);
  }
};

template <int CTAS_>
struct Cluster {
  static constexpr int CTAS = CTAS_;
  static constexpr int GATHERS = 1;
  static __device__ __forceinline__ int rank() { return int(blockIdx.x % CTAS); }
  static __device__ __forceinline__ int group() { return int(blockIdx.x / CTAS); }
  template <int UNITS>
  static __device__ __forceinline__ int gathered(int x) {
    return rank() * UNITS + x;
  }

  // A CTA stores its own units into the buffers of all the others.
  template <class T, int UNITS, int PARTS, int COLUMNS>
  struct Gather : GatherInPlace<Cluster, T, UNITS, PARTS, COLUMNS> {
    using Base = GatherInPlace<Cluster, T, UNITS, PARTS, COLUMNS>;
    static constexpr int SIZE = int(sizeof(T)), PIECES = 8 * 8 * SIZE / 16;  // of 16 bytes, a block of 8 units and 8 rows
    using Arrivals = flashrnn::Arrivals<8 * COLUMNS * PARTS * UNITS * SIZE * (CTAS - 1)>;
    static constexpr int MORE_BYTES = Arrivals::BYTES;

    __device__ __forceinline__ Gather(char* sets, int distance, char* more, char* mailbox)
        : Base{sets, distance, more, mailbox} {}
    __device__ __forceinline__ Arrivals arrivals() const { return {this->more}; }

    __device__ __forceinline__ void begin() const { arrivals().begin(); }
    // No CTA ends while another may still store into its memory.
    __device__ __forceinline__ void end() const { synchronize_cluster(); }

    // Each lane takes one piece of a block to every (32 / PIECES)-th CTA.
    template <int COUNT>
    __device__ __forceinline__ void send(int i, int unit, int lane) const {
      __syncwarp();
      const uint barrier = arrivals().barrier(i);
#pragma unroll
      for (int k = 0; k < PARTS * COUNT * COLUMNS; k++) {
        const int block = k / COLUMNS % COUNT, row = k % COLUMNS * 8 + lane % 8;
        const int byte = (unit + block * 8) * SIZE + lane / 8 % (PIECES / 8) * 16;
        const char* const from = this->buffer(i) + Base::own(k / (COLUMNS * COUNT), row) + byte;
        const Piece16 piece = *reinterpret_cast<const Piece16*>(from);
#pragma unroll
        for (int next = 0; next < CTAS; next += 32 / PIECES) {
          const int peer = next + lane / PIECES;
          if (peer < CTAS && peer != rank()) store_async(of_peer(shared_address(from), peer), piece, of_peer(barrier, peer));
        }
      }
    }

    __device__ __forceinline__ void wait(int i) const { arrivals().wait(i); }
  };

  template <class T, int UNITS, int PARTS, int COLUMNS>
  using GatherGates = Local::GatherGates<T, UNITS, PARTS, COLUMNS>;

  // The warps of a CTA share the units of all CTAs, those of a team too if there are enough; what a CTA has computed for a unit
  // goes to a place of its own in the owner's buffer [CTAS][UNITS][rows], in float32. The owner adds up, always in the same order.
  template <int UNITS, int BLOCKS, int SPLIT, int COLUMNS>
  struct Reduce {
    static constexpr int TEAM_TILES = CTAS * BLOCKS / 2;  // of 16 units
    static_assert(TEAM_TILES * 2 == CTAS * BLOCKS, "whole tiles");
    static constexpr bool SHARES_ROWS = TEAM_TILES % SPLIT == 0;
    static constexpr int ROW_PARTS = SHARES_ROWS ? SPLIT : 1, TILES = TEAM_TILES / ROW_PARTS, ROW_BLOCKS = 2 * TILES;  // a warp
    static constexpr int BUFFER = CTAS * UNITS * 8 * COLUMNS * 4;
    using Arrivals = flashrnn::Arrivals<BUFFER>;
    static constexpr int BYTES = 2 * BUFFER + Arrivals::BYTES;
    char* memory;

    __device__ __forceinline__ Arrivals arrivals() const { return {memory + 2 * BUFFER}; }
    // Among the units of the cluster.
    static __device__ __forceinline__ int row(int team, int part, int q) {
      return ((team * ROW_PARTS + part % ROW_PARTS) * ROW_BLOCKS + q) * 8;
    }
    static __device__ __forceinline__ int unit(int first_unit, int team, int part, int q) {
      return first_unit - rank() * UNITS + row(team, part, q);
    }

    __device__ __forceinline__ void begin() const { arrivals().begin(); }
    __device__ __forceinline__ void end() const { synchronize_cluster(); }

    // Where this lane's sums of a unit that CTA `from` has made begin, rows `row` and on.
    __device__ __forceinline__ char* place(int i, int from, int unit, int row) const {
      return memory + (i & 1) * BUFFER + ((from * UNITS + unit) * 8 * COLUMNS + row) * 4;
    }

    // Two neighbouring lanes swap, so that each has four rows of one unit: 16 bytes. `column`: which 8 rows.
    __device__ __forceinline__ void send_tile(int i, int first_unit, int column, const float* upper, const float* lower,
                                              int lane) const {
      const bool odd = lane % 2 == 1;
      float swapped[2];
#pragma unroll
      for (int j = 0; j < 2; j++) swapped[j] = __shfl_xor_sync(~0u, odd ? upper[j] : lower[j], 1);
      const Piece16 piece = {__float_as_uint(odd ? swapped[0] : upper[0]), __float_as_uint(odd ? swapped[1] : upper[1]),
                             __float_as_uint(odd ? lower[0] : swapped[0]), __float_as_uint(odd ? lower[1] : swapped[1])};
      const int unit = first_unit + lane / 4 + (odd ? 8 : 0), owner = unit / UNITS;
      const char* const there = place(i, rank(), unit % UNITS, column * 8 + lane % 4 / 2 * 4);
      store_async(of_peer(shared_address(there), owner), piece, of_peer(arrivals().barrier(i), owner));
    }

    __device__ __forceinline__ void send(int i, const float (&product)[2 * TILES][2 * COLUMNS], int team, int part,
                                         int lane) const {
      if (!SHARES_ROWS && part > 0) return;
#pragma unroll
      for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
          send_tile(i, row(team, part, 2 * m), n, product[2 * m] + 2 * n, product[2 * m + 1] + 2 * n, lane);
    }

    __device__ __forceinline__ void total(int i, float (&total)[BLOCKS][2 * COLUMNS],
                                          const float (&product)[2 * TILES][2 * COLUMNS], int team, int lane) const {
      arrivals().wait(i);
#pragma unroll
      for (int block = 0; block < BLOCKS; block++)
#pragma unroll
        for (int n = 0; n < COLUMNS; n++) {
          const int unit = (team * BLOCKS + block) * 8 + lane / 4, row = n * 8 + lane % 4 * 2;
          float2 sum = {0.f, 0.f};
#pragma unroll
          for (int from = 0; from < CTAS; from++) {
            const float2 part = *reinterpret_cast<const float2*>(place(i, from, unit, row));
            sum.x += part.x, sum.y += part.y;
          }
          total[block][2 * n] = sum.x, total[block][2 * n + 1] = sum.y;
        }
    }
  };
};

}  // namespace flashrnn
