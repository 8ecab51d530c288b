// The fused forward pass: one CTA computes all steps of one head for one tile of 8 batch rows.
//
// Compute warps keep R in registers as the a operand of mma. A warp owns 8 * BLOCKS units with all their gates, so that the
// pointwise step happens in the registers the product ends in. Transfer warps bring Wx into a ring in shared memory, several
// steps ahead, and take the results out, a step behind. One barrier a step keeps them together.
//
// In step t: buffer(t) of the exchange holds h(t - 1), the ring Wx(t + 1) to Wx(t + STAGES - 2), results(t - 1) what else
// step t - 1 gave.
#pragma once

#include "common/arguments.cuh"
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/step.cuh"
#include "exchange/local.cuh"
#include "fused/parts.cuh"

namespace flashrnn {

struct ForwardArguments {
  Sizes sizes;
  Weights weights;
  States initial, last;
  Masks masks;
  Arrays input;          // Wx
  Arrays states, saved;  // out
  float clip;            // of h; negative: none
};

// Config: T, Cell, D (head_dim, rounded up to 16), BLOCKS, KEPT (steps of R in registers), TRANSFER_WARPS, STAGES, PIECE,
// MASKED, SAVE, LIMITED (h is clipped).
template <class Config>
struct ForwardPlan {
  using T = typename Config::T;
  using Cell = typename Config::Cell;
  static constexpr int D = Config::D, BLOCKS = Config::BLOCKS, STAGES = Config::STAGES;
  static constexpr int STATES = Cell::STATES, GATES = Cell::GATES;
  static constexpr int RECURRENT = Cell::RECURRENT_GATES, INPUT = Cell::INPUT_GATES, FIRST_INPUT = GATES - INPUT;
  static constexpr int SAVED = Config::SAVE ? Cell::SAVED : 0;
  static constexpr int TILES = (RECURRENT * BLOCKS + 1) / 2;              // of 16 gate rows a warp
  static constexpr int STEPS = D * int(sizeof(T)) / (4 * MMA_WORDS);      // calls of mma along k
  static constexpr int COMPUTE_WARPS = D / (8 * BLOCKS);
  static constexpr int COMPUTE_THREADS = 32 * COMPUTE_WARPS, TRANSFER_THREADS = 32 * Config::TRANSFER_WARPS;
  static constexpr int THREADS = COMPUTE_THREADS + TRANSFER_THREADS;
  using Exchange = Local<T, D>;
  using Weights = WarpWeights<T, TILES, STEPS, Config::KEPT>;
  // h goes out from the exchange, unless masks make what is returned differ from what the next step reads.
  static constexpr int FIRST_STAGED = Config::MASKED ? 0 : 1;
  static constexpr int PITCH = D * int(sizeof(T)) + 16, ARRAY = 8 * PITCH;
  // Two sets of an exchange buffer and what else goes out; then the ring; then weights.
  static constexpr int RESULTS = Exchange::BYTES + (STATES - FIRST_STAGED + SAVED) * ARRAY, RING = STAGES * INPUT * ARRAY;
  static constexpr int SHARED_BYTES = 2 * RESULTS + RING + COMPUTE_WARPS * Weights::SHARED_BYTES;

  char* memory;

  __device__ __forceinline__ Exchange exchange() const { return {memory, RESULTS}; }
  // Where in a set the states, and after them what is saved, lie.
  static __device__ __forceinline__ int offset(int array) {
    return array < FIRST_STAGED ? 0 : Exchange::BYTES + (array - FIRST_STAGED) * ARRAY;
  }
  // The set that step t fills.
  __device__ __forceinline__ char* results(int t) const { return memory + (t + 1 & 1) * RESULTS; }
  __device__ __forceinline__ char* input(int t) const { return memory + 2 * RESULTS + t % STAGES * (INPUT * ARRAY); }
  __device__ __forceinline__ char* weights(int warp) const {
    return memory + 2 * RESULTS + RING + warp * Weights::SHARED_BYTES;
  }
};

// -------------------------------------------------------------------------------------------------------- transfer warps

template <class Config>
__device__ __forceinline__ void transfer_forward(const ForwardPlan<Config>& plan, const ForwardArguments& args, int first_row,
                                                 int head, int thread) {
  using Plan = ForwardPlan<Config>;
  constexpr int AHEAD = Config::STAGES - 1, PENDING = Config::STAGES - 3;  // step t needs what comes for t + 1
  using Inputs = Pieces<Config, Plan::INPUT, Plan::TRANSFER_THREADS>;
  using Outputs = Pieces<Config, Plan::STATES + Plan::SAVED, Plan::TRANSFER_THREADS>;
  const auto exists = [&](int row, int byte) {
    return first_row + row < args.sizes.batch && byte < args.sizes.head_dim * int(sizeof(typename Plan::T));
  };
  const auto find_input = [&](int gate, int row, int byte) -> typename Inputs::Place {
    if (!exists(row, byte)) return {};
    return {args.input.at(gate, first_row + row, 0, head) + byte, args.input.time, gate * Plan::ARRAY + row * Plan::PITCH + byte};
  };
  const auto find_output = [&](int array, int row, int byte) -> typename Outputs::Place {
    if (!exists(row, byte)) return {};
    const int b = first_row + row, shared = Plan::offset(array) + row * Plan::PITCH + byte;
    if (array < Plan::STATES) return {args.states.at(array, b, 0, head) + byte, args.states.time, shared};
    return {args.saved.at(array - Plan::STATES, b, 0, head) + byte, args.saved.time, shared};
  };
  const Inputs inputs(thread, find_input);
  const Outputs outputs(thread, find_output);
  const auto fetch = [&](int t) {
    if (t < args.sizes.time)
      inputs.step(t, find_input, [&](const char* from, int to) { copy_in<Config::PIECE>(plan.input(t) + to, from); });
    commit_copies();
  };
  const auto write = [&](int t) {
    outputs.step(t, find_output, [&](char* to, int from) { copy_out<Config::PIECE>(to, plan.results(t) + from); });
  };

  for (int t = 0; t < AHEAD; t++) fetch(t);
  wait_for_copies<PENDING>();
  plan.exchange().arrive_and_wait();
  for (int t = 0; t < args.sizes.time; t++) {
    fetch(t + AHEAD);
    if (t > 0) write(t - 1);
    wait_for_copies<PENDING>();
    plan.exchange().arrive_and_wait();
  }
  write(args.sizes.time - 1);
}

// --------------------------------------------------------------------------------------------------------- compute warps

template <class Config>
__device__ __forceinline__ void compute_forward(const ForwardPlan<Config>& plan, const ForwardArguments& args, int first_row,
                                                int head, int thread) {
  using Plan = ForwardPlan<Config>;
  using T = typename Plan::T;
  using Cell = typename Plan::Cell;
  constexpr int BLOCKS = Plan::BLOCKS, GATES = Plan::GATES, STATES = Plan::STATES;
  const int lane = thread % 32, warp_unit = thread / 32 * 8 * BLOCKS, unit = warp_unit + lane / 4, T_ = args.sizes.time;
  const auto exchange = plan.exchange();

  typename Plan::Weights weights;  // row q: gate q / BLOCKS of unit block q % BLOCKS
  weights.load(plan.weights(thread / 32), lane, [&](int q) {
    return q / BLOCKS < Plan::RECURRENT ? args.weights.row(q / BLOCKS, head, unit + q % BLOCKS * 8) : nullptr;
  });
  float bias[GATES][BLOCKS];
#pragma unroll
  for (int gate = 0; gate < GATES; gate++)
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
      bias[gate][block] = load_bias<T>(args.weights, args.sizes, gate - (GATES - Cell::BIAS_GATES), head, unit + block * 8);

  TileRows<Config::MASKED> rows(args.masks, args.sizes, first_row, lane);
  float state[BLOCKS][2][STATES];
#pragma unroll
  for (int block = 0; block < BLOCKS; block++) {
    const int d = unit + block * 8;
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int s = 0; s < STATES; s++)
        state[block][j][s] = rows.valid[j] && d < args.sizes.head_dim ? args.initial.load(s, rows.batch[j], head, d) : 0.f;
    exchange.put(0, warp_unit + block * 8, lane, rows.resets(0, 0) ? 0.f : state[block][0][0],
                 rows.resets(0, 1) ? 0.f : state[block][1][0]);
  }
  exchange.arrive_and_wait();

  float input[Plan::INPUT * BLOCKS][2];
  const auto load_input = [&](int t) {
    load_tiles<T>(input, plan.input(t) + warp_unit * int(sizeof(T)), Plan::PITCH, lane,
                  [](int i) { return i / BLOCKS * Plan::ARRAY + i % BLOCKS * 8 * int(sizeof(T)); });
  };
  load_input(0);

  for (int t = 0; t < T_; t++) {
    float gate[GATES * BLOCKS + 1][2];  // one more for an odd number of gate blocks
#pragma unroll
    for (int q = 0; q <= GATES * BLOCKS; q++)
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int g = q / BLOCKS, i = q - Plan::FIRST_INPUT * BLOCKS;
        gate[q][j] = g < GATES ? bias[g][q % BLOCKS] : 0.f;
        if (g < GATES && i >= 0) gate[q][j] += rows.padding(t, j) ? 0.f : input[i][j];
      }
    multiply(gate, weights, exchange.buffer(t), Plan::Exchange::PITCH, lane);
    load_input(t + 1);

#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      float saved[2][SAVED_SIZE<Cell>], out[2][STATES], next_h[2];
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float pre[GATES];
#pragma unroll
        for (int g = 0; g < GATES; g++) pre[g] = gate[g * BLOCKS + block][j];
        forward_step<Cell>(pre, state[block][j], saved[j], out[j], rows.padding(t, j), rows.resets(t, j),
                           Config::LIMITED ? args.clip : -1.f);
        next_h[j] = rows.resets(t + 1, j) ? 0.f : state[block][j][0];
      }
      const int first = warp_unit + block * 8, offset = first * int(sizeof(T));
      exchange.put(t + 1, first, lane, next_h[0], next_h[1]);
#pragma unroll
      for (int s = Plan::FIRST_STAGED; s < STATES; s++)
        store_tile<T>(plan.results(t) + Plan::offset(s) + offset, Plan::PITCH, lane, out[0][s], out[1][s]);
#pragma unroll
      for (int k = 0; k < Plan::SAVED; k++)
        store_tile<T>(plan.results(t) + Plan::offset(STATES + k) + offset, Plan::PITCH, lane, saved[0][k], saved[1][k]);
    }
    exchange.arrive_and_wait();
  }

#pragma unroll
  for (int block = 0; block < BLOCKS; block++)
#pragma unroll
    for (int j = 0; j < 2; j++)
#pragma unroll
      for (int s = 0; s < STATES; s++)
        if (rows.valid[j] && unit + block * 8 < args.sizes.head_dim)
          args.last.store(s, rows.batch[j], head, unit + block * 8, state[block][j][s]);
}

template <class Config>
__device__ __forceinline__ void fused_forward(const ForwardArguments& args) {
  using Plan = ForwardPlan<Config>;
  extern __shared__ __align__(16) char memory[];
  const Plan plan{memory};
  const int thread = threadIdx.x, head = blockIdx.x % args.sizes.heads, first_row = blockIdx.x / args.sizes.heads * 8;
  clear_shared<Plan::SHARED_BYTES, Plan::THREADS>(memory);
  if (thread < Plan::COMPUTE_THREADS)
    compute_forward(plan, args, first_row, head, thread);
  else
    transfer_forward(plan, args, first_row, head, thread - Plan::COMPUTE_THREADS);
}

}  // namespace flashrnn
