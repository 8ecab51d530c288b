// The CTAs of a tile lie anywhere on the GPU and hand on through L2; a cooperative launch keeps them all running. What the
// interface means: local.cuh; how a mailbox works: mailbox.cuh.
#pragma once

#include "exchange/local.cuh"
#include "exchange/mailbox.cuh"

namespace flashrnn {

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

  // Each warp gets what it multiplies with right out of the mailbox: a buffer holds pieces of 16 bytes of a row,
  // [COLUMNS][PARTS][PART][8 rows], one of which is what a lane needs for two calls of mma. A set holds the units of this CTA,
  // [PARTS][rows][UNITS], for what is returned. While the owners of units compute and put, all other warps do what comes
  // meanwhile, and clear up.
  template <class T, int UNITS, int PARTS, int COLUMNS>
  struct Mail {
    template <class Shape, int KEPT>
    using Product = MailProduct<Shape, KEPT>;
    static constexpr bool EARLY = true;
    static constexpr int SIZE = int(sizeof(T)), PART = CTAS * UNITS * SIZE / 16, PIECES = PARTS * PART;
    static constexpr int OWN = UNITS * SIZE / 16 * 8;  // of a part and 8 rows
    static constexpr int PITCH = UNITS * SIZE + 16, SET_BYTES = PARTS * 8 * COLUMNS * PITCH, MORE_BYTES = 0;
    static constexpr int COLUMN = PIECES * 128, SLOT = COLUMNS * COLUMN;  // bytes of 8 rows; of all
    static constexpr int MAILBOX_BYTES = SLOTS * SLOT;
    char* sets;
    int distance;
    char *more, *mailbox;

    __device__ __forceinline__ void begin() const {}
    __device__ __forceinline__ void end() const {}
    __device__ __forceinline__ void wait(int i) const {}

    static __device__ __forceinline__ int own(int part, int row) { return (part * 8 * COLUMNS + row) * PITCH; }
    __device__ __forceinline__ char* slot(int i) const { return mailbox + i % SLOTS * SLOT; }

    // On its way from the registers, and into the set.
    __device__ __forceinline__ void put(int i, int part, int unit, int lane, const float (&x)[2 * COLUMNS]) const {
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) {
        char* const to = slot(i) + n * COLUMN + part * (PART * 128) + (rank() * UNITS + unit) * SIZE * 8;
        if constexpr (SIZE == 4) {
          char* const mine = to + lane / 16 * 128 + lane % 4 * 32 + lane / 4 % 4 * 4;
          store_mail(mine, not_empty(__float_as_uint(x[2 * n])));
          store_mail(mine + 16, not_empty(__float_as_uint(x[2 * n + 1])));
        } else {
          store_mail(to + lane * 4, not_empty(turned<T>(x[2 * n], x[2 * n + 1])));
        }
      }
      store_tiles<T>(sets + (i & 1) * distance + own(part, 0) + unit * SIZE, PITCH, lane, x);
    }
    template <int COUNT>
    __device__ __forceinline__ void send(int i, int unit, int lane) const {}

    template <int THREADS, class Meanwhile>
    __device__ __forceinline__ void sync(int i, Meanwhile meanwhile) const {
      const int thread = int(threadIdx.x);
      if (thread >= THREADS - 32 && i % CLEARED == CLEARED - 1)
        clear_mail<COLUMNS * PARTS * OWN>(i - 1, thread % 32, [&](int k, int x) {
          return slot(k) + x / (PARTS * OWN) * COLUMN + (x / OWN % PARTS * PART * 8 + rank() * OWN + x % OWN) * 16;
        });
      meanwhile();
      __syncthreads();
      constexpr int GROUPS = (PIECES + THREADS / 8 - 1) / (THREADS / 8);  // of 4 pieces of 8 rows, a warp
      pause<50 + 100 * GROUPS < 500 ? 50 + 100 * GROUPS : 500>();
    }

    // A look at COUNT pieces of the row lane / 4 of each 8: `first` + lane % 4 and every 4th after it, before `end`.
    template <int COUNT>
    struct Look {
      static constexpr int ALL = COLUMNS * COUNT;
      Piece16 pieces[ALL];
      uint missing;
      const char* from;

      __device__ __forceinline__ Look(const Mail& mail, int i, int first, int end, int lane)
          : pieces{}, missing(0), from(mail.slot(i) + ((first + lane % 4) * 8 + lane / 4) * 16) {
#pragma unroll
        for (int k = 0; k < ALL; k++)
          if (first + lane % 4 + k % COUNT * 4 < min(end, PIECES)) missing |= 1u << k;
        again();
      }
      __device__ __forceinline__ void again() {
#pragma unroll
        for (int k = 0; k < ALL; k++)
          if (missing >> k & 1) pieces[k] = load_mail(from + k / COUNT * COLUMN + k % COUNT * 512);
      }
      // Until all have come; what does not exist is zero.
      __device__ __forceinline__ void wait() {
        while (true) {
#pragma unroll
          for (int k = 0; k < ALL; k++)
            if ((missing >> k & 1) && has_arrived(pieces[k])) missing ^= 1u << k;
          if (missing == 0) break;
          again();
        }
        __syncwarp();
      }
    };
  };

  // A set holds the units of this CTA, [PARTS][rows][UNITS]; what is gathered lies elsewhere in shared memory. A buffer of the
  // mailbox holds pieces of 16 bytes, by 8 rows, block of 8 units, row.
  template <class T, int UNITS, int PARTS, int COLUMNS>
  struct ThroughMemory {
    template <class Shape, int KEPT>
    using Product = TeamProduct<Shape, KEPT>;
    static constexpr int SIZE = int(sizeof(T)), WIDTH = PARTS * CTAS * UNITS, PER_ROW = 8 * SIZE / 16;
    static constexpr int PIECES = 8 * PER_ROW, COLUMN = WIDTH / 8 * PIECES;  // of a block of 8 units and 8 rows; of 8 rows
    static constexpr int OWN = UNITS / 8 * PIECES;  // of a part and 8 rows
    static constexpr int PITCH = WIDTH * SIZE + 16, OWN_PITCH = UNITS * SIZE + 16;
    static constexpr bool EARLY = true;
    static constexpr int MORE_BYTES = 8 * COLUMNS * PITCH;
    static constexpr int SET_BYTES = PARTS * 8 * COLUMNS * OWN_PITCH;
    static constexpr int SLOT = COLUMNS * COLUMN * 16;
    static constexpr int MAILBOX_BYTES = EVERY * SLOTS * SLOT;  // of a group
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
    static __device__ __forceinline__ int own_pieces(int part) { return (part * CTAS + rank()) * OWN; }

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
        for (int k = 0; k < 4; k++) mail.words[k] = not_empty(mail.words[k]);
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
      constexpr int LOOKS = (COLUMNS * COLUMN + THREADS - 33) / (THREADS - 32);  // a thread
      pause<100 + 75 * LOOKS < 400 ? 100 + 75 * LOOKS : 400>();
      if (thread < THREADS - 32)
        fetch<THREADS - 32>(i, thread);
      else if (i % CLEARED == CLEARED - 1)
        clear_mail<COLUMNS * PARTS * OWN>(i, thread % 32, [&](int k, int x) {
          return slot(k) + (x / (PARTS * OWN) * COLUMN + own_pieces(x / OWN % PARTS) + x % OWN) * 16;
        });
      __syncthreads();
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
  using Gather = ThroughMemory<T, UNITS, PARTS, COLUMNS>;
  template <class T, int UNITS, int PARTS, int COLUMNS>
  using GatherGates = Gather<T, UNITS, PARTS, COLUMNS>;

  // Every CTA has the gates of all units, and computes the products of its own.
  template <int UNITS, int BLOCKS, int SPLIT, int COLUMNS>
  using Reduce = Local::Reduce<UNITS, BLOCKS, SPLIT, COLUMNS>;
};

}  // namespace flashrnn
