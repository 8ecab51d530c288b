// The product of a step, R with h(t - 1) or R^T with the gradients of gates: which warp makes what part of it, and how the
// owners of units get theirs. A warp is one of a team, its part 0 if it owns units.
//
//   load(memory, lane, word)    by every warp that takes part: its part of R. word(team, part, q, k) is the word at element k
//                               of row lane / 4 of row block q of a team
//   lead(i, product, lane)      then, in each step, by an owner: adds the product
//   help(i, lane, made)         by every other; made(product) if what it has made goes elsewhere than to the owner
//
// Shape, of a pass: T, Gather (of the other factor), TEAMS, SPLIT, LANE_ROWS; K, elements along k; PARTS, of k, that the warps
// of a team share; ROW_BLOCKS, of 8 rows, that a warp makes for its team. KEPT: steps whose part of R stays in registers; those
// who help have more of them left than owners.
#pragma once

#include "common/arguments.cuh"
#include "fused/parts.cuh"

namespace flashrnn {

// The products of those who lead and of those who help; the weights of each lie one after the other.
template <class Shape>
struct Products {
  using Lead = typename Shape::Gather::template Product<Shape, Shape::KEPT>;
  using Help = typename Shape::Gather::template Product<Shape, Shape::HELPERS_KEPT>;
  static constexpr int LEADER = Lead::Weights::SHARED_BYTES, HELPER = Help::Weights::SHARED_BYTES;
  static constexpr int WEIGHT_BYTES = Shape::TEAMS * (LEADER + (Shape::SPLIT - 1) * HELPER), SUM_BYTES = Lead::SUM_BYTES;

  static __device__ __forceinline__ int weights(int team, int part) {
    return part == 0 ? team * LEADER : Shape::TEAMS * (LEADER + (part - 1) * HELPER) + team * HELPER;
  }
};

// The other factor lies in shared memory. The warps of a team multiply with the rows of the team, each along its part of k.
template <class Shape, int KEPT>
struct TeamProduct {
  using T = typename Shape::T;
  using Gather = typename Shape::Gather;
  static constexpr int SIZE = int(sizeof(T)), PARTS = Shape::PARTS, LANE_ROWS = Shape::LANE_ROWS;
  static constexpr int TILES = (Shape::ROW_BLOCKS + 1) / 2, STEPS = Shape::K * SIZE / (4 * MMA_WORDS) / PARTS;
  using Weights = WarpWeights<T, TILES, STEPS, KEPT>;
  using Team = flashrnn::Team<PARTS, 2 * TILES, LANE_ROWS>;
  static constexpr int SUM_BYTES = Shape::TEAMS * Team::BYTES;
  Gather gather;
  Team team;
  Weights weights;

  __device__ __forceinline__ TeamProduct(const Gather& gather_, char* sums, int index, int part)
      : gather(gather_), team{sums, index, part} {}

  __device__ __forceinline__ int first_word() const { return team.part % PARTS * STEPS * MMA_WORDS; }

  template <class Word>
  __device__ __forceinline__ void load(char* memory, int lane, Word word) {
    weights.load(memory, lane, [&](int q, int i) -> uint {
      return q < Shape::ROW_BLOCKS ? word(team.index, team.part, q, (first_word() + i) * 4 / SIZE) : 0;
    });
  }

  template <int COUNT>
  __device__ __forceinline__ void lead(int i, float (&product)[COUNT][LANE_ROWS], int lane) const {
    gather.wait(i);
    multiply(product, weights, gather.buffer(i) + first_word() * 4, Gather::PITCH, lane);
    team.add_up(product, lane);
  }

  template <class Made>
  __device__ __forceinline__ void help(int i, int lane, Made made) const {
    float product[2 * TILES][LANE_ROWS] = {};
    lead(i, product, lane);
    made(product);
  }
};

// The other factor lies in a mailbox. Every warp fetches its part of k right into operands, and multiplies that with the rows
// of all teams; the owners, one of each 8 units, add up what all warps have made. They wait for all; the others, who have
// transfers to do, for none: they only arrive at the barrier, which orders what they wrote before what the owners read (PTX ISA,
// bar.arrive). Gather::sync, where all meet, comes before they write the next sums.
template <class Shape, int KEPT>
struct MailProduct {
  using T = typename Shape::T;
  using Gather = typename Shape::Gather;
  static constexpr int COLUMNS = Shape::LANE_ROWS / 2, EACH = Shape::ROW_BLOCKS;
  static constexpr int TEAMS = Shape::TEAMS, WARPS = TEAMS * Shape::SPLIT, OTHERS = WARPS - 1;
  static constexpr int ROW_BLOCKS = TEAMS * EACH, TILES = (ROW_BLOCKS + 1) / 2;
  // Groups of 64 bytes of a row: a warp's; and how many of them in a look.
  static constexpr int GROUPS = (Gather::PIECES + 4 * WARPS - 1) / (4 * WARPS), STEPS = 2 * GROUPS;
  static constexpr int MOST = COLUMNS == 1 ? 4 : 2, LOOKS = (GROUPS + MOST - 1) / MOST, AT_ONCE = (GROUPS + LOOKS - 1) / LOOKS;
  static constexpr int CHAINS = TILES > 1 ? 1 : 2;  // of sums that do not wait for each other
  static constexpr int SUM_BYTES = TEAMS * OTHERS * EACH * COLUMNS * 32 * int(sizeof(float2));
  static_assert(Shape::BLOCKS == 1 && Shape::SPLIT > 1, "a block of units an owner, and those who help it");
  static constexpr int MADE = 1, THREADS = 32 * WARPS;  // a barrier of the CTA, and all of its threads
  using Weights = WarpWeights<T, TILES, STEPS, KEPT>;
  Gather gather;
  float2* sums;
  int warp;
  Weights weights;

  __device__ __forceinline__ MailProduct(const Gather& gather_, char* sums_, int index, int part)
      : gather(gather_), sums(reinterpret_cast<float2*>(sums_)), warp(part * TEAMS + index) {}

  // Whose row block q is; those of the owner itself come first.
  __device__ __forceinline__ int team(int q) const { return (q / EACH + warp) % TEAMS; }

  // Lane q holds the words 4q to 4q + 3 of the 16 of a group: the first two are its operands in the first call of mma, the
  // others in the second.
  template <class Word>
  __device__ __forceinline__ void load(char* memory, int lane, Word word) {
    weights.load(memory, lane, [&](int q, int i) -> uint {
      const int step = i / MMA_WORDS, at = (warp * GROUPS + step / 2) * 16 + lane % 4 * 4 + step % 2 * 2 + i / 4 % 2;
      const int k = at * 4 / int(sizeof(T));
      return q < ROW_BLOCKS && k < Shape::K ? word(team(q), 0, q % EACH, k) : 0;
    });
  }

  // Where an owner finds 8 batch rows of a row block of its own, by the i-th of the others.
  __device__ __forceinline__ float2* sum(int owner, int i, int q, int column, int lane) const {
    return sums + (((owner * OTHERS + i) * EACH + q) * COLUMNS + column) * 32 + lane;
  }

  // It looks for the next pieces while it multiplies these. take(q, column, x) for each row block and 8 batch rows.
  template <class Take>
  __device__ __forceinline__ void make(int i, int lane, Take take) const {
    const auto look = [&](int k) -> typename Gather::template Look<AT_ONCE> {
      return {gather, i, (warp * GROUPS + k * AT_ONCE) * 4, (warp + 1) * GROUPS * 4, lane};
    };
    float c[CHAINS][COLUMNS][TILES][4] = {};
    auto now = look(0);
#pragma unroll
    for (int k = 0; k < LOOKS; k++) {
      const auto next = k + 1 < LOOKS ? look(k + 1) : now;
      now.wait();
#pragma unroll
      for (int step = k * AT_ONCE * 2; step < (k + 1) * AT_ONCE * 2 && step < STEPS; step++) {
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          uint a[4];
          if (step < KEPT)
            weights.from_registers(a, m, step);
          else
            weights.from_memory(a, m, step);
#pragma unroll
          for (int n = 0; n < COLUMNS; n++) {
            const Piece16& piece = now.pieces[n * AT_ONCE + step / 2 - k * AT_ONCE];
            const uint b[2] = {piece.words[step % 2 * 2], piece.words[step % 2 * 2 + 1]};
            mma<T>(c[step % CHAINS][n][m], a, b);
          }
        }
      }
      now = next;
    }
#pragma unroll
    for (int q = 0; q < ROW_BLOCKS; q++)
#pragma unroll
      for (int n = 0; n < COLUMNS; n++) {
        const float* const first = &c[0][n][q / 2][q % 2 * 2];
        const float* const second = &c[1 % CHAINS][n][q / 2][q % 2 * 2];
        take(q, n, CHAINS == 2 ? float2{first[0] + second[0], first[1] + second[1]} : float2{first[0], first[1]});
      }
  }

  __device__ __forceinline__ void hand_over(int q, int column, int lane, float2 x) const {
    const int owner = team(q);
    *sum(owner, warp - (warp > owner), q % EACH, column, lane) = x;
  }

  template <int COUNT>
  __device__ __forceinline__ void lead(int i, float (&product)[COUNT][2 * COLUMNS], int lane) const {
    make(i, lane, [&](int q, int n, float2 x) {
      if (q < EACH) {
        product[q][2 * n] += x.x;
        product[q][2 * n + 1] += x.y;
      } else {
        hand_over(q, n, lane, x);
      }
    });
    asm volatile("bar.sync %0, %1;" ::"n"(MADE), "n"(THREADS) : "memory");
    const float2* const mine = sum(warp, 0, 0, 0, lane);
#pragma unroll
    for (int q = 0; q < EACH * COLUMNS; q++) {
      float2 x[OTHERS];
#pragma unroll
      for (int k = 0; k < OTHERS; k++) x[k] = mine[(k * EACH * COLUMNS + q) * 32];
#pragma unroll
      for (int apart = 1; apart < OTHERS; apart *= 2)
#pragma unroll
        for (int k = 0; k + apart < OTHERS; k += 2 * apart) x[k] = {x[k].x + x[k + apart].x, x[k].y + x[k + apart].y};
      product[q / COLUMNS][q % COLUMNS * 2] += x[0].x;
      product[q / COLUMNS][q % COLUMNS * 2 + 1] += x[0].y;
    }
  }

  template <class Made>
  __device__ __forceinline__ void help(int i, int lane, Made) const {
    make(i, lane, [&](int q, int n, float2 x) { hand_over(q, n, lane, x); });
    asm volatile("bar.arrive %0, %1;" ::"n"(MADE), "n"(THREADS) : "memory");
  }
};

}  // namespace flashrnn
