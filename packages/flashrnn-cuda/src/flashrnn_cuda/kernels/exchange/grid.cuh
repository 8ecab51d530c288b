// The CTAs of a tile lie anywhere on the GPU and hand on through L2; a cooperative launch keeps them all running. The mailbox
// in global memory is a ring of SLOTS buffers whose words are EMPTY until their owner has written them: the data are the flag,
// and neither a fence nor a barrier stands between the CTAs. What the interface means: local.cuh.
//
// A CTA that has all of buffer(i - 1) knows that every CTA has left buffer(i - 2): each may empty its own part of that, and does
// so for CLEARED buffers at a time. All see them empty (fence, barrier) when they have what was sent CLEARED + 1 steps later;
// they look there again SLOTS steps after the oldest of these was sent.
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
// shortest with this many clocks between the last own part sent and the first look.
constexpr int PAUSE = 150;

__device__ __forceinline__ void pause(int clocks) {
  const long long start = clock64();
  while (clock64() - start < clocks) {
  }
}

// EVERY: only the CTAs that many apart work together, so that there are as many exchanges in a group, each with its own
// mailbox.
template <int CTAS_, int EVERY = 1>
struct Grid {
  static constexpr int CTAS = CTAS_, GATHERS = CTAS;
  static __device__ __forceinline__ int rank() { return int(blockIdx.x / EVERY % CTAS); }
  static __device__ __forceinline__ int group() { return int(blockIdx.x / (EVERY * CTAS)); }
  template <int UNITS>
  static __device__ __forceinline__ int gathered(int x) {
    return x;
  }

  // A set holds the units of this CTA, [PARTS][rows][UNITS]; what is gathered lies elsewhere. A mailbox: SLOTS buffers of
  // pieces of 16 bytes, by 8 rows, block of 8 units, row.
  template <class T, int UNITS, int PARTS, int COLUMNS>
  struct Gather {
    static constexpr int SIZE = int(sizeof(T)), WIDTH = PARTS * CTAS * UNITS, PER_ROW = 8 * SIZE / 16;
    static constexpr int PIECES = 8 * PER_ROW, COLUMN = WIDTH / 8 * PIECES;  // of a block of 8 units and 8 rows; of 8 rows
    static constexpr int PITCH = WIDTH * SIZE + 16, OWN_PITCH = UNITS * SIZE + 16;
    static constexpr bool EARLY = true;
    static constexpr int MORE_BYTES = 8 * COLUMNS * PITCH;
    static constexpr int SET_BYTES = PARTS * 8 * COLUMNS * OWN_PITCH;
    static constexpr int SLOTS = 16, CLEARED = 4, SLOT = COLUMNS * COLUMN * 16;
    static constexpr int MAILBOX_BYTES = EVERY * SLOTS * SLOT;  // of a group
    static_assert(SLOTS > 2 * CLEARED + 2, "what is cleared is seen in time");
    char* sets;
    int distance;
    char *more, *mailbox;

    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void end() const {}

    __device__ __forceinline__ char* buffer(int i) const { return more; }
    static __device__ __forceinline__ int own(int part, int row) { return (part * 8 * COLUMNS + row) * OWN_PITCH; }
    __device__ __forceinline__ char* set(int i) const { return sets + (i & 1) * distance; }
    __device__ __forceinline__ char* slot(int i) const {
      return mailbox + (int(blockIdx.x) % EVERY * SLOTS + i % SLOTS) * SLOT;
    }
    // Where the units of this CTA begin among the pieces of 8 rows in a slot.
    static __device__ __forceinline__ int own_pieces(int part) { return (part * CTAS + rank()) * (UNITS / 8 * PIECES); }

    __device__ __forceinline__ void put(int i, int part, int unit, int lane, const float (&x)[2 * COLUMNS]) const {
      store_tiles<T>(set(i) + own(part, 0) + unit * SIZE, OWN_PITCH, lane, x);
    }

    template <int COUNT>
    __device__ __forceinline__ void send(int i, int unit, int lane) const {
      __syncwarp();
#pragma unroll
      for (int x = lane; x < PARTS * COUNT * COLUMNS * PIECES; x += 32) {
        const int part = x / (COUNT * COLUMNS * PIECES), column = x / (COUNT * PIECES) % COLUMNS, piece = x % (COUNT * PIECES);
        const int row = column * 8 + piece / PER_ROW % 8, place = own_pieces(part) + unit / 8 * PIECES + column * COLUMN + piece;
        const int byte = unit * SIZE + piece / PIECES * 8 * SIZE + piece % PER_ROW * 16;
        Piece16 mail = *reinterpret_cast<const Piece16*>(set(i) + own(part, row) + byte);
#pragma unroll
        for (int k = 0; k < 4; k++)
          if (mail.words[k] == EMPTY) mail.words[k] = QUIET_NAN;
        store_mail(slot(i) + place * 16, mail);
      }
    }

    // All meet, so that none looks long before this CTA's own part is on its way, and that none overwrites what another reads.
    // Then the last warp clears up while all others fetch what every CTA has sent.
    template <int THREADS, class Meanwhile>
    __device__ __forceinline__ void sync(int i, Meanwhile meanwhile) const {
      const int thread = int(threadIdx.x);
      meanwhile();
      __syncthreads();
      pause(PAUSE);
      if (thread < THREADS - 32)
        fetch<THREADS - 32>(i, thread);
      else if (i % CLEARED == CLEARED - 1)
        clear(i, thread % 32);
      __syncthreads();
    }

    // Empties what this CTA has sent in the steps i - 1 - CLEARED to i - 2.
    __device__ __forceinline__ void clear(int i, int lane) const {
      constexpr int OWN = UNITS / 8 * PIECES, ALL = COLUMNS * PARTS * OWN;
      asm volatile("fence.acq_rel.gpu;" ::: "memory");  // what was emptied before
#pragma unroll
      for (int back = 2; back < 2 + CLEARED; back++)
        if (i >= back)
          for (int x = lane; x < ALL; x += 32)
            store_mail(slot(i - back) + (x / (PARTS * OWN) * COLUMN + own_pieces(x / OWN % PARTS) + x % OWN) * 16,
                       {EMPTY, EMPTY, EMPTY, EMPTY});
    }

    // Look q of a thread is at piece thread + q % EACH * THREADS of the 8 rows q / EACH.
    template <int THREADS>
    __device__ __forceinline__ void fetch(int i, int thread) const {
      constexpr int EACH = (COLUMN + THREADS - 1) / THREADS, COUNT = COLUMNS * EACH;
      constexpr int ROUNDS = (COUNT + 13) / 14, AT_ONCE = (COUNT + ROUNDS - 1) / ROUNDS;  // looks on their way at a time
      static_assert(THREADS % PIECES == 0, "a thread keeps to one place in each block");
      const char* const from = slot(i) + thread * 16;
      char* const to = buffer(i) + thread / PER_ROW % 8 * PITCH + thread / PIECES * 8 * SIZE + thread % PER_ROW * 16;
#pragma unroll
      for (int first = 0; first < COUNT; first += AT_ONCE) {
        uint missing = 0;
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
          if (first + k < COUNT && thread + (first + k) % EACH * THREADS < COLUMN) missing |= 1u << k;
        while (missing != 0) {
          Piece16 piece[AT_ONCE];
#pragma unroll
          for (int k = 0; k < AT_ONCE; k++)
            if (missing >> k & 1)
              piece[k] = load_mail(from + ((first + k) / EACH * COLUMN + (first + k) % EACH * THREADS) * 16);
#pragma unroll
          for (int k = 0; k < AT_ONCE; k++)
            if ((missing >> k & 1) && has_arrived(piece[k])) {
              char* const there = to + (first + k) / EACH * 8 * PITCH + (first + k) % EACH * (THREADS / PIECES * 8 * SIZE);
              *reinterpret_cast<Piece16*>(there) = piece[k];
              missing ^= 1u << k;
            }
        }
      }
    }

    __device__ __forceinline__ void wait(int i) const {}
  };

  template <class T, int UNITS, int PARTS, int COLUMNS>
  using GatherGates = Gather<T, UNITS, PARTS, COLUMNS>;

  // Every CTA has the gates of all units, and computes the products of its own.
  template <int UNITS, int BLOCKS, int SPLIT, int COLUMNS>
  using Reduce = Local::Reduce<UNITS, BLOCKS, SPLIT, COLUMNS>;
};

}  // namespace flashrnn
