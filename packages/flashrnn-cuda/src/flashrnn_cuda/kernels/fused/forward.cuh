// The fused forward pass: a CTA, or several that share its units, computes all steps of one head for one tile of batch rows.
//
// Compute warps keep R in registers as the a operand of mma. A warp owns 8 * BLOCKS units with all their gates, so that the
// pointwise step happens in the registers the product ends in. Transfer warps bring Wx into a ring in shared memory, several
// steps ahead, and take the results out, a step behind; where k is long, they help with the product, SPLIT warps an owner.
//
// Units are counted within the CTA, but for the rows of R and the columns of gathered h, where they are counted in the head.
//
// In step t: buffer(t) of the gathering holds h(t - 1), the ring Wx(t + 1) and what follows, results(t - 1) what else step
// t - 1 gave.
#pragma once

#include "common/arguments.cuh"
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/step.cuh"
#include "fused/parts.cuh"
#include "fused/product.cuh"

namespace flashrnn {

struct ForwardArguments {
  int64 first_group;  // of the launch; a group is a head and a tile of batch rows
  Sizes sizes;
  Weights weights;
  States initial, last;
  Masks masks;
  char* mailbox;         // of the exchange, if it goes through global memory
  Arrays input;          // Wx
  Arrays states, saved;  // out
  float clip;            // of h; negative: none
};

// Config: T, Cell, Exchange, D (head_dim, rounded up), COLUMNS (8 batch rows each), BLOCKS (of 8 units, a team), SPLIT (warps of
// a team), KEPT and HELPERS_KEPT (steps of R in registers, of who leads a team and of who helps), TRANSFER_WARPS, STAGES, PIECE,
// MASKED, SAVE, LIMITED (h is clipped).
template <class Config>
struct ForwardShape {
  using T = typename Config::T;
  using Cell = typename Config::Cell;
  using Exchange = typename Config::Exchange;
  static constexpr int D = Config::D, UNITS = D / Exchange::CTAS, BLOCKS = Config::BLOCKS, STAGES = Config::STAGES;
  static constexpr int COLUMNS = Config::COLUMNS, ROWS = 8 * COLUMNS, LANE_ROWS = 2 * COLUMNS;
  using Gather = typename Exchange::template Gather<T, UNITS, 1, COLUMNS>;  // of h
  static constexpr int STATES = Cell::STATES, GATES = Cell::GATES;
  static constexpr int RECURRENT = Cell::RECURRENT_GATES, INPUT = Cell::INPUT_GATES, FIRST_INPUT = GATES - INPUT;
  static constexpr int SAVED = Config::SAVE ? Cell::SAVED : 0;
  static constexpr int TEAMS = UNITS / (8 * BLOCKS), SPLIT = Config::SPLIT, HELPERS = TEAMS * (SPLIT - 1);
  static constexpr int KEPT = Config::KEPT, HELPERS_KEPT = Config::HELPERS_KEPT;
  static constexpr int COMPUTE_THREADS = 32 * TEAMS, TRANSFER_THREADS = 32 * Config::TRANSFER_WARPS;
  static_assert(HELPERS == 0 || HELPERS == Config::TRANSFER_WARPS, "those who help are those who transfer");
  static constexpr int THREADS = COMPUTE_THREADS + TRANSFER_THREADS;
  static constexpr int K = D, PARTS = SPLIT, ROW_BLOCKS = RECURRENT * BLOCKS;  // of the product: gate by gate
  static __device__ __forceinline__ int first_unit() { return Exchange::rank() * UNITS; }
};

template <class Config>
struct ForwardPlan : ForwardShape<Config> {
  using Shape = ForwardShape<Config>;
  using Gather = typename Shape::Gather;
  using Products = flashrnn::Products<Shape>;
  using Lead = typename Products::Lead;
  using Help = typename Products::Help;
  // h goes out from where it is put, unless masks make what is returned differ from what the next step reads.
  static constexpr int FIRST_STAGED = Config::MASKED ? 0 : 1;
  static constexpr int PITCH = Shape::UNITS * int(sizeof(typename Shape::T)) + 16, ARRAY = Shape::ROWS * PITCH;
  // Two sets of h and what else goes out; then the ring; weights; sums; what else the exchange needs.
  static constexpr int RESULTS = Gather::SET_BYTES + (Shape::STATES - FIRST_STAGED + Shape::SAVED) * ARRAY;
  static constexpr int WEIGHTS = 2 * RESULTS + Shape::STAGES * Shape::INPUT * ARRAY;
  static constexpr int SUMS = WEIGHTS + Products::WEIGHT_BYTES;
  static constexpr int MORE = SUMS + Products::SUM_BYTES;
  static constexpr int SHARED_BYTES = MORE + Gather::MORE_BYTES;

  static constexpr int64 MAILBOX = Gather::MAILBOX_BYTES;
  char *memory, *mailbox;

  __device__ __forceinline__ ForwardPlan(char* memory_, char* mailbox_) : memory(memory_), mailbox(mailbox_) {}
  __device__ __forceinline__ Gather gather() const { return {memory, RESULTS, memory + MORE, mailbox}; }
  __device__ __forceinline__ Lead leader(int team) const { return {gather(), memory + SUMS, team, 0}; }
  __device__ __forceinline__ Help helper(int team, int part) const { return {gather(), memory + SUMS, team, part}; }
  __device__ __forceinline__ char* weights(int team, int part) const {
    return memory + WEIGHTS + Products::weights(team, part);
  }
  // Where in a set a row of the states, and after them of what is saved, lies.
  static __device__ __forceinline__ int offset(int array, int row) {
    return array < FIRST_STAGED ? Gather::own(0, row) : Gather::SET_BYTES + (array - FIRST_STAGED) * ARRAY + row * PITCH;
  }
  // The set that step t fills.
  __device__ __forceinline__ char* results(int t) const { return memory + (t + 1 & 1) * RESULTS; }
  __device__ __forceinline__ char* input(int t) const {
    return memory + 2 * RESULTS + t % Shape::STAGES * (Shape::INPUT * ARRAY);
  }
};

// The rows of R that make the gates of a team.
template <class Config>
__device__ __forceinline__ auto rows_of_weights(const ForwardArguments& args, int head, int lane) {
  using Plan = ForwardPlan<Config>;
  return [&args, head, lane](int team, int part, int q, int k) {
    const int unit = Plan::first_unit() + (team * Plan::BLOCKS + q % Plan::BLOCKS) * 8 + lane / 4;
    return load_word<typename Plan::T, false>(args.weights, args.sizes.head_dim, q / Plan::BLOCKS, head, unit, k);
  };
}

// -------------------------------------------------------------------------------------------------------- transfer warps

template <class Config>
__device__ __forceinline__ void transfer_forward(const ForwardPlan<Config>& plan, const ForwardArguments& args, int first_row,
                                                 int head, int thread) {
  using Plan = ForwardPlan<Config>;
  constexpr int STAGES = Config::STAGES, PENDING = STAGES - 3;  // step t needs what comes for t + 1
  constexpr int SIZE = int(sizeof(typename Plan::T)), ROW = Plan::UNITS * SIZE;
  using Inputs = Pieces<ROW, Config::PIECE, Plan::INPUT, Plan::ROWS, Plan::TRANSFER_THREADS>;
  using Outputs = Pieces<ROW, Config::PIECE, Plan::STATES + Plan::SAVED, Plan::ROWS, Plan::TRANSFER_THREADS>;
  const int skipped = plan.first_unit() * SIZE;  // of a row in global memory
  const auto exists = [&](int row, int byte) {
    return first_row + row < args.sizes.batch && skipped + byte < args.sizes.head_dim * SIZE;
  };
  const auto find_input = [&](int gate, int row, int byte) -> typename Inputs::Place {
    if (!exists(row, byte)) return {};
    return {args.input.at(gate, first_row + row, 0, head) + skipped + byte, args.input.time,
            gate * Plan::ARRAY + row * Plan::PITCH + byte};
  };
  const auto find_output = [&](int array, int row, int byte) -> typename Outputs::Place {
    if (!exists(row, byte)) return {};
    const int b = first_row + row, shared = Plan::offset(array, row) + byte;
    if (array < Plan::STATES) return {args.states.at(array, b, 0, head) + skipped + byte, args.states.time, shared};
    return {args.saved.at(array - Plan::STATES, b, 0, head) + skipped + byte, args.saved.time, shared};
  };
  const Inputs inputs(thread, find_input);
  const Outputs outputs(thread, find_output);
  // Where teams are split, these warps make the parts of the products that their leaders do not.
  constexpr bool HELPS = Plan::SPLIT > 1;
  const int lane = thread % 32, team = thread / 32 % Plan::TEAMS, part = 1 + thread / 32 / Plan::TEAMS;
  const auto gather = plan.gather();
  auto product = plan.helper(team, part);
  if constexpr (HELPS) product.load(plan.weights(team, part), lane, rows_of_weights<Config>(args, head, lane));
  const auto fetch = [&](int t) {
    if (t < args.sizes.time)
      inputs.step(t, find_input, [&](const char* from, int to) { copy_in<Config::PIECE>(plan.input(t) + to, from); });
    commit_copies();
  };
  const auto write = [&](int t) {
    outputs.step(t, find_output, [&](char* to, int from) { copy_out<Config::PIECE>(to, plan.results(t) + from); });
  };

  for (int t = 0; t < STAGES; t++) fetch(t);
  wait_for_copies<PENDING>();
  __syncthreads();
  gather.template sync<Plan::THREADS>(0, [] {});
  for (int t = 0; t < args.sizes.time; t++) {
    if constexpr (HELPS) product.help(t, lane, [](const auto&) {});
    gather.template sync<Plan::THREADS>(t + 1, [&] {
      const int done = t - Plan::Gather::EARLY;  // the last step that all warps have done
      if (done >= 0) {
        fetch(done + STAGES);
        write(done);
      }
      wait_for_copies<PENDING>();
    });
  }
  if (Plan::Gather::EARLY) write(args.sizes.time - 1);
}

// --------------------------------------------------------------------------------------------------------- compute warps

template <class Config>
__device__ __forceinline__ void compute_forward(const ForwardPlan<Config>& plan, const ForwardArguments& args, int first_row,
                                                int head, int thread) {
  using Plan = ForwardPlan<Config>;
  using T = typename Plan::T;
  using Cell = typename Plan::Cell;
  constexpr int BLOCKS = Plan::BLOCKS, GATES = Plan::GATES, STATES = Plan::STATES, LANE_ROWS = Plan::LANE_ROWS;
  const int lane = thread % 32, warp = thread / 32, warp_unit = warp * 8 * BLOCKS, T_ = args.sizes.time;
  const int unit = plan.first_unit() + warp_unit + lane / 4;  // in the head
  const auto gather = plan.gather();
  const auto exists = [&](int block) { return unit + block * 8 < args.sizes.head_dim; };

  auto product = plan.leader(warp);
  product.load(plan.weights(warp, 0), lane, rows_of_weights<Config>(args, head, lane));
  float bias[GATES][BLOCKS];
#pragma unroll
  for (int gate = 0; gate < GATES; gate++)
#pragma unroll
    for (int block = 0; block < BLOCKS; block++)
      bias[gate][block] = load_bias<T>(args.weights, args.sizes, gate - (GATES - Cell::BIAS_GATES), head, unit + block * 8);

  TileRows<Config::MASKED, LANE_ROWS> rows(args.masks, args.sizes, first_row, lane);
  float state[BLOCKS][LANE_ROWS][STATES];
#pragma unroll
  for (int block = 0; block < BLOCKS; block++) {
    const int d = unit + block * 8;
    float h[LANE_ROWS];
#pragma unroll
    for (int j = 0; j < LANE_ROWS; j++) {
#pragma unroll
      for (int s = 0; s < STATES; s++)
        state[block][j][s] = rows.valid[j] && exists(block) ? args.initial.load(s, rows.batch[j], head, d) : 0.f;
      h[j] = rows.resets(0, j) ? 0.f : state[block][j][0];
    }
    gather.put(0, 0, warp_unit + block * 8, lane, h);
  }
  gather.template send<BLOCKS>(0, warp_unit, lane);
  __syncthreads();
  gather.template sync<Plan::THREADS>(0, [] {});

  float input[Plan::INPUT * BLOCKS][LANE_ROWS];
  const auto load_input = [&](int t) {
    load_tiles<T>(input, plan.input(t) + warp_unit * int(sizeof(T)), Plan::PITCH, lane,
                  [](int i) { return i / BLOCKS * Plan::ARRAY + i % BLOCKS * 8 * int(sizeof(T)); });
  };
  load_input(0);

  for (int t = 0; t < T_; t++) {
    float gate[GATES * BLOCKS + 1][LANE_ROWS];  // one more for an odd number of gate blocks
#pragma unroll
    for (int q = 0; q <= GATES * BLOCKS; q++)
#pragma unroll
      for (int j = 0; j < LANE_ROWS; j++) {
        const int g = q / BLOCKS, i = q - Plan::FIRST_INPUT * BLOCKS;
        gate[q][j] = g < GATES ? bias[g][q % BLOCKS] : 0.f;
        if (g < GATES && i >= 0) gate[q][j] += rows.padding(t, j) ? 0.f : input[i][j];
      }
    product.lead(t, gate, lane);
    load_input(t + 1);

#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      float saved[SAVED_SIZE<Cell>][LANE_ROWS], out[STATES][LANE_ROWS], next_h[LANE_ROWS];
#pragma unroll
      for (int j = 0; j < LANE_ROWS; j++) {
        float pre[GATES], saved_[SAVED_SIZE<Cell>], out_[STATES];
#pragma unroll
        for (int g = 0; g < GATES; g++) pre[g] = gate[g * BLOCKS + block][j];
        forward_step<Cell>(pre, state[block][j], saved_, out_, rows.padding(t, j), rows.resets(t, j),
                           Config::LIMITED ? args.clip : -1.f);
        // Units that do not exist stay 0: a row with an infinite h has NaN there, which all units would get.
        next_h[j] = rows.resets(t + 1, j) || !exists(block) ? 0.f : state[block][j][0];
#pragma unroll
        for (int s = 0; s < STATES; s++) out[s][j] = out_[s];
#pragma unroll
        for (int k = 0; k < Plan::SAVED; k++) saved[k][j] = saved_[k];
      }
      gather.put(t + 1, 0, warp_unit + block * 8, lane, next_h);
      if (block == BLOCKS - 1) gather.template send<BLOCKS>(t + 1, warp_unit, lane);
      const int offset = (warp_unit + block * 8) * int(sizeof(T));
#pragma unroll
      for (int s = Plan::FIRST_STAGED; s < STATES; s++)
        store_tiles<T>(plan.results(t) + Plan::offset(s, 0) + offset, Plan::PITCH, lane, out[s]);
#pragma unroll
      for (int k = 0; k < Plan::SAVED; k++)
        store_tiles<T>(plan.results(t) + Plan::offset(STATES + k, 0) + offset, Plan::PITCH, lane, saved[k]);
    }
    gather.template sync<Plan::THREADS>(t + 1, [] {});
  }
  gather.wait(T_);

#pragma unroll
  for (int block = 0; block < BLOCKS; block++)
#pragma unroll
    for (int j = 0; j < LANE_ROWS; j++)
#pragma unroll
      for (int s = 0; s < STATES; s++)
        if (rows.valid[j] && exists(block))
          args.last.store(s, rows.batch[j], head, unit + block * 8, state[block][j][s]);
}

template <class Config>
__device__ __forceinline__ void fused_forward(const ForwardArguments& args) {
  using Plan = ForwardPlan<Config>;
  extern __shared__ __align__(16) char memory[];
  const int thread = threadIdx.x, group = int(args.first_group) + Plan::Exchange::group();
  const int head = group % args.sizes.heads, first_row = group / args.sizes.heads * Plan::ROWS;
  const Plan plan{memory, args.mailbox + group * Plan::MAILBOX};
  clear_shared<Plan::SHARED_BYTES, Plan::THREADS>(memory);
  plan.gather().begin();
  if (thread < Plan::COMPUTE_THREADS)
    compute_forward(plan, args, first_row, head, thread);
  else
    transfer_forward(plan, args, first_row, head, thread - Plan::COMPUTE_THREADS);
  plan.gather().end();
}

}  // namespace flashrnn
