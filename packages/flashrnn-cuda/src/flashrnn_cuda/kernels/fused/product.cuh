// The product of R and h(t - 1) on the way forward: which warp makes what part of it, and how the owners of units get theirs.
//
// A warp is one of a team, its part 0 if it owns units. Every warp that takes part loads its part of R. Then, in each step t,
//   lead(t, gate, lane)  by an owner: adds the product to the gates of its units
//   help(t, lane)        by every other
// Shape: that of fused/forward.cuh.
#pragma once

#include "common/arguments.cuh"
#include "fused/parts.cuh"

namespace flashrnn {

// h lies in shared memory. The warps of a team multiply with the rows of R of its own units, each along its part of k.
template <class Shape>
struct TeamProduct {
  using T = typename Shape::T;
  using Gather = typename Shape::Gather;
  static constexpr int BLOCKS = Shape::BLOCKS, SPLIT = Shape::SPLIT, LANE_ROWS = Shape::LANE_ROWS;
  static constexpr int TILES = (Shape::RECURRENT * BLOCKS + 1) / 2;                     // of 16 gate rows
  static constexpr int STEPS = Shape::D * int(sizeof(T)) / (4 * MMA_WORDS) / SPLIT;    // calls of mma along k
  using Weights = WarpWeights<T, TILES, STEPS, Shape::KEPT>;
  using Team = flashrnn::Team<SPLIT, 2 * TILES, LANE_ROWS>;
  static constexpr int SUM_BYTES = Shape::TEAMS * Team::BYTES;
  Gather gather;
  Team team;
  Weights weights;

  __device__ __forceinline__ TeamProduct(const Gather& gather_, char* sums, int index, int part)
      : gather(gather_), team{sums, index, part} {}

  // Row block q is gate q / BLOCKS of unit block q % BLOCKS of the team.
  __device__ __forceinline__ void load(const flashrnn::Weights& R, const Sizes& sizes, int head, char* memory, int lane) {
    weights.load(memory, lane, [&](int q, int i) -> uint {
      if (q / BLOCKS >= Shape::RECURRENT) return 0;
      const int out = Shape::first_unit() + (team.index * BLOCKS + q % BLOCKS) * 8 + lane / 4;
      const int in = (team.part * STEPS * MMA_WORDS + i) * 4 / int(sizeof(T));
      return load_word<T, false>(R, sizes.head_dim, q / BLOCKS, head, out, in);
    });
  }

  template <int COUNT>
  __device__ __forceinline__ void lead(int t, float (&gate)[COUNT][LANE_ROWS], int lane) const {
    gather.wait(t);
    multiply(gate, weights, gather.buffer(t) + team.part * STEPS * MMA_WORDS * 4, Gather::PITCH, lane);
    team.add_up(gate, lane);
  }

  __device__ __forceinline__ void help(int t, int lane) const {
    if constexpr (SPLIT > 1) {
      float product[2 * TILES][LANE_ROWS] = {};
      lead(t, product, lane);
    }
  }
};

// h lies in a mailbox. Every warp fetches its part of k right into operands, and multiplies that with the rows of R of all units
// of the CTA; the owners, one of each 8 units, add up what all warps have made.
template <class Shape>
struct MailProduct {
  using T = typename Shape::T;
  using Gather = typename Shape::Gather;
  static constexpr int RECURRENT = Shape::RECURRENT, TEAMS = Shape::TEAMS, WARPS = TEAMS * Shape::SPLIT, OTHERS = WARPS - 1;
  static constexpr int ROW_BLOCKS = TEAMS * RECURRENT, TILES = (ROW_BLOCKS + 1) / 2;
  // Groups of 64 bytes of a row of h: a warp's; and how many of them in a look.
  static constexpr int GROUPS = (Gather::PIECES + 4 * WARPS - 1) / (4 * WARPS), STEPS = 2 * GROUPS;
  static constexpr int LOOKS = (GROUPS + 3) / 4, AT_ONCE = (GROUPS + LOOKS - 1) / LOOKS;
  static constexpr int CHAINS = TILES > 1 ? 1 : 2;  // of sums that do not wait for each other
  static constexpr int SUM_BYTES = TEAMS * OTHERS * RECURRENT * 32 * int(sizeof(float2));
  static_assert(Shape::BLOCKS == 1 && Shape::SPLIT > 1, "a block of units an owner, and those who help it");
  using Weights = WarpWeights<T, TILES, STEPS, Shape::KEPT>;
  Gather gather;
  float2* sums;
  int warp;
  Weights weights;

  __device__ __forceinline__ MailProduct(const Gather& gather_, char* sums_, int index, int part)
      : gather(gather_), sums(reinterpret_cast<float2*>(sums_)), warp(part * TEAMS + index) {}

  // Whose row block q is; those of the owner itself come first.
  __device__ __forceinline__ int team(int q) const { return (q / RECURRENT + warp) % TEAMS; }

  // Row block q is gate q % RECURRENT of the units of a team. Lane q holds the words 4q to 4q + 3 of the 16 of a group: the
  // first two are its operands in the first call of mma, the others in the second.
  __device__ __forceinline__ void load(const flashrnn::Weights& R, const Sizes& sizes, int head, char* memory, int lane) {
    weights.load(memory, lane, [&](int q, int i) -> uint {
      if (q >= ROW_BLOCKS) return 0;
      const int step = i / MMA_WORDS, word = (warp * GROUPS + step / 2) * 16 + lane % 4 * 4 + step % 2 * 2 + i / 4 % 2;
      const int out = Shape::first_unit() + team(q) * 8 + lane / 4;
      return load_word<T, false>(R, sizes.head_dim, q % RECURRENT, head, out, word * 4 / int(sizeof(T)));
    });
  }

  // Where an owner finds a gate of its units, by the i-th of the others.
  __device__ __forceinline__ float2* sum(int owner, int i, int gate, int lane) const {
    return sums + ((owner * OTHERS + i) * RECURRENT + gate) * 32 + lane;
  }

  // It looks for the next pieces while it multiplies these. take(q, x) for each row block.
  template <class Take>
  __device__ __forceinline__ void make(int t, int lane, Take take) const {
    const auto look = [&](int i) -> typename Gather::template Look<AT_ONCE> {
      return {gather, t, (warp * GROUPS + i * AT_ONCE) * 4, (warp + 1) * GROUPS * 4, lane};
    };
    float c[CHAINS][TILES][4] = {};
    auto now = look(0);
#pragma unroll
    for (int i = 0; i < LOOKS; i++) {
      const auto next = i + 1 < LOOKS ? look(i + 1) : now;
      now.wait();
#pragma unroll
      for (int step = i * AT_ONCE * 2; step < (i + 1) * AT_ONCE * 2 && step < STEPS; step++) {
        const Piece16& piece = now.pieces[step / 2 - i * AT_ONCE];
        const uint b[2] = {piece.words[step % 2 * 2], piece.words[step % 2 * 2 + 1]};
#pragma unroll
        for (int m = 0; m < TILES; m++) {
          uint a[4];
          if (step < Shape::KEPT)
            weights.from_registers(a, m, step);
          else
            weights.from_memory(a, m, step);
          mma<T>(c[step % CHAINS][m], a, b);
        }
      }
      now = next;
    }
#pragma unroll
    for (int q = 0; q < ROW_BLOCKS; q++) {
      float2 x = {c[0][q / 2][q % 2 * 2], c[0][q / 2][q % 2 * 2 + 1]};
      if (CHAINS == 2) x = {x.x + c[1 % CHAINS][q / 2][q % 2 * 2], x.y + c[1 % CHAINS][q / 2][q % 2 * 2 + 1]};
      take(q, x);
    }
  }

  __device__ __forceinline__ void hand_over(int q, int lane, float2 x) const {
    const int owner = team(q);
    *sum(owner, warp - (warp > owner), q % RECURRENT, lane) = x;
  }

  template <int COUNT>
  __device__ __forceinline__ void lead(int t, float (&gate)[COUNT][2], int lane) const {
    make(t, lane, [&](int q, float2 x) {
      if (q < RECURRENT) {
        gate[q][0] += x.x;
        gate[q][1] += x.y;
      } else {
        hand_over(q, lane, x);
      }
    });
    __syncthreads();
    const float2* const mine = sum(warp, 0, 0, lane);
#pragma unroll
    for (int g = 0; g < RECURRENT; g++) {
      float2 x[OTHERS];
#pragma unroll
      for (int i = 0; i < OTHERS; i++) x[i] = mine[(i * RECURRENT + g) * 32];
#pragma unroll
      for (int apart = 1; apart < OTHERS; apart *= 2)
#pragma unroll
        for (int i = 0; i + apart < OTHERS; i += 2 * apart) x[i] = {x[i].x + x[i + apart].x, x[i].y + x[i + apart].y};
      gate[g][0] += x[0].x;
      gate[g][1] += x[0].y;
    }
  }

  __device__ __forceinline__ void help(int t, int lane) const {
    make(t, lane, [&](int q, float2 x) { hand_over(q, lane, x); });
    __syncthreads();
  }
};

}  // namespace flashrnn
