// The CTAs of a tile lie anywhere on the GPU and hand on through L2; a cooperative launch keeps them all running. The mailbox
// in global memory is a ring of SLOTS buffers whose words are EMPTY until their owner has written them: the data are the flag,
// and neither a fence nor a barrier stands between the CTAs. What the interface means: local.cuh.
//
// Once a CTA has all of buffer(i), every CTA has left buffer(i - 1), and each may empty its own part of that. All see it empty
// (fence, barrier) when they have what was sent three steps later, before they look there again, as buffer(i - 1 + SLOTS).
#pragma once

#include "exchange/local.cuh"

namespace flashrnn {

constexpr uint EMPTY = 0xffffffff, QUIET_NAN = 0x7fffffff;  // rounding makes no NaN but the quiet one

__device__ __forceinline__ Piece16 load_mail(const char* from) {
  Piece16 piece;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(piece.words[0]), "=r"(piece.words[1]), "=r"(piece.words[2]), "=r"(piece.words[3])
               : "l"(from)
               : "memory");
  return piece;
}

__device__ __forceinline__ void store_mail(char* to, const Piece16& piece) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(piece.words[0]), "r"(piece.words[1]),
               "r"(piece.words[2]), "r"(piece.words[3])
               : "memory");
}

__device__ __forceinline__ bool has_arrived(const Piece16& piece) {
  return piece.words[0] != EMPTY && piece.words[1] != EMPTY && piece.words[2] != EMPTY && piece.words[3] != EMPTY;
}

// A look at what is not there yet costs as much as one at what is, and slows down what is on its way. On an H200 a step is
// shortest with this many clocks before the first.
constexpr int PAUSE = 300;

__device__ __forceinline__ void pause(int clocks) {
  const long long start = clock64();
  while (clock64() - start < clocks) {
  }
}

template <int CTAS_>
struct Grid {
  static constexpr int CTAS = CTAS_;
  static constexpr bool GATHERS_GATES = true;
  static __device__ __forceinline__ int rank() { return int(blockIdx.x % CTAS); }
  static __device__ __forceinline__ int group() { return int(blockIdx.x / CTAS); }

  // The mailbox of a group: SLOTS buffers of pieces of 16 bytes, by block of 8 units and row: a tile is contiguous.
  template <class T, int WIDTH>
  struct Gather : Local::Gather<T, WIDTH> {
    using Base = Local::Gather<T, WIDTH>;
    static constexpr int SIZE = int(sizeof(T)), SLOTS = 8, PER_ROW = 8 * SIZE / 16, PIECES = 8 * PER_ROW;  // of a row, a tile
    static constexpr int SLOT = 8 * WIDTH * SIZE, MAILBOX_BYTES = SLOTS * SLOT;

    __device__ __forceinline__ Gather(char* memory, int distance, char* barriers, char* mailbox)
        : Base{memory, distance, barriers, mailbox} {}

    __device__ __forceinline__ char* slot(int i) const { return this->mailbox + i % SLOTS * SLOT; }
    // Where piece x of a buffer lies in shared memory: x counts parts of a row, rows and blocks.
    static __device__ __forceinline__ int place(int x) {
      return x / PER_ROW % 8 * Base::PITCH + x / PIECES * 8 * SIZE + x % PER_ROW * 16;
    }

    // The tiles are those of units first_unit, first_unit + 8, ...
    template <int COUNT>
    __device__ __forceinline__ void send(int i, int first_unit, int lane) const {
      __syncwarp();
#pragma unroll
      for (int x = lane; x < COUNT * PIECES; x += 32) {
        const int index = first_unit / 8 * PIECES + x;
        Piece16 piece = *reinterpret_cast<const Piece16*>(this->buffer(i) + place(index));
#pragma unroll
        for (int k = 0; k < 4; k++)
          if (piece.words[k] == EMPTY) piece.words[k] = QUIET_NAN;
        store_mail(slot(i) + index * 16, piece);
      }
    }

    // The last warp clears up while all others fetch what every CTA has sent.
    template <int THREADS, int PARTS, class Meanwhile>
    __device__ __forceinline__ void sync(int i, Meanwhile meanwhile) const {
      const int thread = int(threadIdx.x);
      __syncthreads();
      meanwhile();
      pause(PAUSE);
      if (thread < THREADS - 32)
        fetch<THREADS - 32>(i, thread);
      else if (i >= 2)
        clear<PARTS>(i - 2, thread % 32);
      __syncthreads();
    }

    // Empties what the CTA has sent as buffer(i). Its own units are PARTS times in a buffer, WIDTH / PARTS apart.
    template <int PARTS>
    __device__ __forceinline__ void clear(int i, int lane) const {
      constexpr int PART = WIDTH / PARTS / 8 * PIECES, OWN = PART / CTAS;
      asm volatile("fence.acq_rel.gpu;" ::: "memory");  // what was emptied a step ago
      for (int x = lane; x < PARTS * OWN; x += 32)
        store_mail(slot(i) + (x / OWN * PART + rank() * OWN + x % OWN) * 16, {EMPTY, EMPTY, EMPTY, EMPTY});
    }

    template <int THREADS>
    __device__ __forceinline__ void fetch(int i, int thread) const {
      constexpr int TOTAL = WIDTH / 8 * PIECES, COUNT = (TOTAL + THREADS - 1) / THREADS;
      constexpr int ROUNDS = (COUNT + 13) / 14, AT_ONCE = (COUNT + ROUNDS - 1) / ROUNDS;  // looks on their way at a time
      static_assert(THREADS % PIECES == 0, "a thread keeps to one place in each tile");
      const char* const from = slot(i) + thread * 16;
      char* const to = this->buffer(i) + place(thread);
#pragma unroll
      for (int first = 0; first < COUNT; first += AT_ONCE) {
        uint missing = 0;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
          if (first + k < COUNT && thread + (first + k) * THREADS < TOTAL) missing |= 1u << k;
        while (missing != 0) {
          Piece16 piece[AT_ONCE];
#pragma unroll
          for (int k = 0; k < AT_ONCE; k++)
            if (missing >> k & 1) piece[k] = load_mail(from + (first + k) * THREADS * 16);
#pragma unroll
          for (int k = 0; k < AT_ONCE; k++)
            if ((missing >> k & 1) && has_arrived(piece[k])) {
              *reinterpret_cast<Piece16*>(to + (first + k) * (THREADS / PIECES * 8 * SIZE)) = piece[k];
              missing ^= 1u << k;
            }
        }
      }
    }

    __device__ __forceinline__ void wait(int i) const {}
  };

  // Every CTA has the gates of all units, and computes the products of its own.
  template <int UNITS, int BLOCKS>
  using Reduce = Local::Reduce<UNITS, BLOCKS>;
};

}  // namespace flashrnn
