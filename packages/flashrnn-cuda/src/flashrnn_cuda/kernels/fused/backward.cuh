// The fused backward pass: a CTA, or several that share its units, takes one head and one tile of batch rows through all
// steps, last one first.
//
// A warp owns 8 * BLOCKS units. In step t it adds what comes from outside to the gradients of its units' states, takes them
// through the cell, and puts the gate gradients where the CTA's product with R^T reads them, whose sums over all CTAs are the
// gradient of h of the step before. R^T is the a operand of mma: rows as the exchange shares them out, columns those of the
// CTA. Transfer warps bring in what forward left and take the gate gradients out. Where k is long, SPLIT warps share it out:
// the owner and, from among the transfer warps, its helpers. The gradient of R is a product over all steps, made after this
// kernel; that of b is summed here.
//
// Steps are counted in the order of computation: step i is time T - 1 - i. Step i fills results(i) with its gate gradients;
// the ring holds the inputs of step i + 1 and what follows.
#pragma once

#include "common/arguments.cuh"
#include "common/math.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/step.cuh"
#include "exchange/local.cuh"
#include "fused/parts.cuh"
#include "fused/product.cuh"

namespace flashrnn {

__host__ __device__ constexpr int count_bits(unsigned set) { return set == 0 ? 0 : int(set & 1) + count_bits(set >> 1); }
// The i-th member of the set.
__host__ __device__ constexpr int member(unsigned set, int i) {
  int bit = 0;
  while (!has_bit(set, bit) || i-- > 0) bit++;
  return bit;
}
// How many members of the set come before i.
__host__ __device__ constexpr int rank_of(unsigned set, int i) { return count_bits(set & ((1u << i) - 1)); }

struct BackwardArguments {
  int64 first_group;  // of the launch; a group is a head and a tile of batch rows
  Sizes sizes;
  Weights weights;
  States initial, d_last, d_initial;  // d_initial: out; null: not asked for
  Masks masks;
  char* mailbox;        // of the exchange, if it goes through global memory
  Arrays states, saved;
  Arrays d_states;      // from outside; null: zero
  Arrays d_input;       // out, of the gates that have an input part: dWx
  Arrays d_others;      // out, of the gates before them
  float* d_bias;        // out, [tile, bias gate, head, unit]; null: not asked for
  float stored_clip;    // the clip of h as it looks in T; negative: none
  float gradient_clip;  // negative: none
  int cut;              // no gradient through R
};

// Config: T, Cell, Exchange, D (head_dim, rounded up), COLUMNS (8 batch rows each), BLOCKS (of 8 units, a team), SPLIT (warps of
// a team), KEPT and HELPERS_KEPT (steps of R in registers, of who leads a team and of who helps), TRANSFER_WARPS, STAGES, PIECE,
// MASKED, LIMITED (something is clipped or cut), OUTSIDE (a gradient of states is given).
template <class Config>
struct BackwardShape {
  using T = typename Config::T;
  using Cell = typename Config::Cell;
  using Exchange = typename Config::Exchange;
  static constexpr int D = Config::D, UNITS = D / Exchange::CTAS, BLOCKS = Config::BLOCKS, STAGES = Config::STAGES;
  static constexpr int COLUMNS = Config::COLUMNS, ROWS = 8 * COLUMNS, LANE_ROWS = 2 * COLUMNS;
  static constexpr int STATES = Cell::STATES, GATES = Cell::GATES, RECURRENT = Cell::RECURRENT_GATES, SAVED = Cell::SAVED;
  static constexpr int FIRST_INPUT = GATES - Cell::INPUT_GATES;
  static constexpr int TEAMS = UNITS / (8 * BLOCKS), SPLIT = Config::SPLIT, HELPERS = TEAMS * (SPLIT - 1);
  static constexpr int KEPT = Config::KEPT, HELPERS_KEPT = Config::HELPERS_KEPT;
  static constexpr int COMPUTE_THREADS = 32 * TEAMS, TRANSFER_THREADS = 32 * Config::TRANSFER_WARPS;
  static_assert(HELPERS == 0 || HELPERS == Config::TRANSFER_WARPS, "those who help are those who transfer");
  static constexpr int THREADS = COMPUTE_THREADS + TRANSFER_THREADS;
  using Gather = typename Exchange::template GatherGates<T, UNITS, RECURRENT, COLUMNS>;
  using Reduce = typename Exchange::template Reduce<UNITS, BLOCKS, SPLIT, COLUMNS>;  // to the gradient of h
  // Of the product: the gates that are gathered, one after the other; the units of a warp's team.
  static constexpr int GATE = Exchange::GATHERS * UNITS, K = RECURRENT * GATE;
  static constexpr int PARTS = Reduce::SHARES_ROWS ? 1 : SPLIT, ROW_BLOCKS = Reduce::ROW_BLOCKS;
  static __device__ __forceinline__ int first_unit() { return Exchange::rank() * UNITS; }
};

template <class Config>
struct BackwardPlan : BackwardShape<Config> {
  using Shape = BackwardShape<Config>;
  using Gates = typename Shape::Gather;
  using Reduce = typename Shape::Reduce;
  using Products = flashrnn::Products<Shape>;
  using Lead = typename Products::Lead;
  using Help = typename Products::Help;
  // States that are read: those before step t go through the ring, and were those after it in the step before.
  static constexpr unsigned NEW = Shape::Cell::READS_NEW | (Config::LIMITED ? 1u : 0u), READ = Shape::Cell::READS_OLD | NEW;
  static constexpr unsigned OUTSIDE = Config::OUTSIDE ? ((1u << Shape::STATES) - 1) & ~Shape::Cell::CONSTANT : 0u;
  static constexpr int FIRST_STATE = Shape::SAVED, FIRST_OUTSIDE = Shape::SAVED + count_bits(READ);
  static constexpr int INPUTS = FIRST_OUTSIDE + count_bits(OUTSIDE), STATES_READ = count_bits(READ);
  static constexpr int PITCH = Shape::UNITS * int(sizeof(typename Shape::T)) + 16, ARRAY = Shape::ROWS * PITCH;
  // Two sets of the gates that the product reads and those that it does not; then the ring; weights; initial states; sums; what
  // else the exchange needs.
  static constexpr int RESULTS = Gates::SET_BYTES + (Shape::GATES - Shape::RECURRENT) * ARRAY;
  static constexpr int WEIGHTS = 2 * RESULTS + Shape::STAGES * INPUTS * ARRAY;
  static constexpr int INITIAL = WEIGHTS + Products::WEIGHT_BYTES;
  static constexpr int SUMS = INITIAL + Shape::LANE_ROWS * Shape::BLOCKS * STATES_READ * Shape::COMPUTE_THREADS * 4;
  static constexpr int MORE = SUMS + Products::SUM_BYTES, REDUCE = MORE + Gates::MORE_BYTES;
  static constexpr int SHARED_BYTES = REDUCE + Reduce::BYTES;

  static constexpr int64 MAILBOX = Gates::MAILBOX_BYTES;
  char *memory, *mailbox;

  __device__ __forceinline__ BackwardPlan(char* memory_, char* mailbox_) : memory(memory_), mailbox(mailbox_) {}
  __device__ __forceinline__ Gates gates() const { return {memory, RESULTS, memory + MORE, mailbox}; }
  __device__ __forceinline__ Reduce reduce() const { return {memory + REDUCE}; }
  __device__ __forceinline__ Lead leader(int team) const { return {gates(), memory + SUMS, team, 0}; }
  __device__ __forceinline__ Help helper(int team, int part) const { return {gates(), memory + SUMS, team, part}; }
  __device__ __forceinline__ char* weights(int team, int part) const {
    return memory + WEIGHTS + Products::weights(team, part);
  }
  // Where in a set the gradient of a gate lies, row by row.
  static __device__ __forceinline__ int offset(int gate, int row) {
    return gate < Shape::RECURRENT ? Gates::own(gate, row)
                                   : Gates::SET_BYTES + (gate - Shape::RECURRENT) * ARRAY + row * PITCH;
  }
  // The set that step i fills.
  __device__ __forceinline__ char* results(int i) const { return memory + (i & 1) * RESULTS; }
  __device__ __forceinline__ char* input(int i) const { return memory + 2 * RESULTS + i % Shape::STAGES * (INPUTS * ARRAY); }
  // An initial state of a row of a unit that this thread owns, in float32.
  __device__ __forceinline__ float& initial(int state, int block, int j, int thread) const {
    const int index = (rank_of(READ, state) * Shape::BLOCKS + block) * Shape::LANE_ROWS + j;
    return reinterpret_cast<float*>(memory + INITIAL)[index * Shape::COMPUTE_THREADS + thread];
  }
};

// The rows of R^T that make what a warp computes; the exchange says for which units.
template <class Config>
__device__ __forceinline__ auto rows_of_weights(const BackwardArguments& args, int head, int lane) {
  using Plan = BackwardPlan<Config>;
  return [&args, head, lane](int team, int part, int q, int k) {
    const int first = Plan::Reduce::unit(Plan::first_unit(), team, part, q);
    if (first < 0) return 0u;  // never; without a branch the compiler loads all at once, and has no registers left
    const int out = Plan::Exchange::template gathered<Plan::UNITS>(k % Plan::GATE);
    return load_word<typename Plan::T, true>(args.weights, args.sizes.head_dim, k / Plan::GATE, head, out, first + lane / 4);
  };
}

// -------------------------------------------------------------------------------------------------------- transfer warps

template <class Config>
__device__ __forceinline__ void transfer_backward(const BackwardPlan<Config>& plan, const BackwardArguments& args, int first_row,
                                                  int head, int thread) {
  using Plan = BackwardPlan<Config>;
  constexpr int STAGES = Config::STAGES, PENDING = STAGES - 2;  // step i ends with what comes for i + 1
  constexpr int SIZE = int(sizeof(typename Plan::T)), ROW = Plan::UNITS * SIZE, THREADS = Plan::TRANSFER_THREADS;
  using Inputs = Pieces<ROW, Config::PIECE, Plan::INPUTS - Plan::STATES_READ, Plan::ROWS, THREADS>;  // of the step itself
  using Before = Pieces<ROW, Config::PIECE, Plan::STATES_READ, Plan::ROWS, THREADS>;                 // states before it
  using Outputs = Pieces<ROW, Config::PIECE, Plan::GATES, Plan::ROWS, THREADS>;
  const int skipped = plan.first_unit() * SIZE;  // of a row in global memory
  const int last_t = args.sizes.time - 1;
  const auto exists = [&](int row, int byte) {
    return first_row + row < args.sizes.batch && skipped + byte < args.sizes.head_dim * SIZE;
  };
  // Array x of `from` at time t, array `slot` of the ring.
  const auto place = [&](const Arrays& from, int x, int t, int slot, int row, int byte) -> typename Inputs::Place {
    if (!exists(row, byte)) return {};
    return {from.at(x, first_row + row, t, head) + skipped + byte, -from.time, slot * Plan::ARRAY + row * Plan::PITCH + byte};
  };
  const auto find_input = [&](int i, int row, int byte) {
    if (i < Plan::SAVED) return place(args.saved, i, last_t, i, row, byte);
    const int outside = i - Plan::SAVED;
    return place(args.d_states, member(Plan::OUTSIDE, outside), last_t, Plan::FIRST_OUTSIDE + outside, row, byte);
  };
  const auto find_before = [&](int i, int row, int byte) -> typename Before::Place {
    const auto found = place(args.states, member(Plan::READ, i), last_t - 1, Plan::FIRST_STATE + i, row, byte);
    return {found.global, found.stride, found.shared};
  };
  const auto find_output = [&](int gate, int row, int byte) -> typename Outputs::Place {
    const bool is_input = gate >= Plan::FIRST_INPUT;
    if (!exists(row, byte) || (is_input ? args.d_input.data : args.d_others.data) == nullptr) return {};
    const int b = first_row + row, shared = Plan::offset(gate, row) + byte;
    if (is_input) return {args.d_input.at(gate - Plan::FIRST_INPUT, b, last_t, head) + skipped + byte, -args.d_input.time, shared};
    return {args.d_others.at(gate, b, last_t, head) + skipped + byte, -args.d_others.time, shared};
  };
  const Inputs inputs(thread, find_input);
  const Before before(thread, find_before);
  const Outputs outputs(thread, find_output);
  // Where teams are split, these warps make the parts of the products that their leaders do not.
  const int lane = thread % 32, team = thread / 32 % Plan::TEAMS, part = 1 + thread / 32 / Plan::TEAMS;
  auto product = plan.helper(team, part);
  if constexpr (Plan::SPLIT > 1) product.load(plan.weights(team, part), lane, rows_of_weights<Config>(args, head, lane));
  const auto help = [&](int i) {
    if constexpr (Plan::SPLIT > 1)
      if (!Config::LIMITED || !args.cut)
        product.help(i, lane, [&](const auto& made) { plan.reduce().send(i, made, team, part, lane); });
  };
  const auto fetch = [&](int i) {
    const auto copy = [&](const char* from, int to) { copy_in<Config::PIECE>(plan.input(i) + to, from); };
    if (i <= last_t) inputs.step(i, find_input, copy);
    if (i < last_t) before.step(i, find_before, copy);  // before the first step are the initial states, read elsewhere
    commit_copies();
  };
  const auto write = [&](int i) {
    outputs.step(i, find_output, [&](char* to, int from) { copy_out<Config::PIECE>(to, plan.results(i) + from); });
  };

  for (int i = 0; i < STAGES; i++) fetch(i);
  wait_for_copies<PENDING>();
  __syncthreads();
  const auto transfer = [&](int done) {  // the last step that all warps have done
    if (done >= 0) {
      fetch(done + STAGES);
      write(done);
    }
    wait_for_copies<PENDING>();
  };
  constexpr bool EARLY = Plan::Gates::EARLY;  // then it is sync that waits for others; else total, after the products
  for (int i = 0; i <= last_t; i++) {
    plan.gates().template sync<Plan::THREADS>(i, [&] {
      if (EARLY) transfer(i - 1);
    });
    help(i);
    if (!EARLY) transfer(i);
  }
  if (EARLY) write(last_t);
}

// --------------------------------------------------------------------------------------------------------- compute warps

// What comes through R, and all that reaches the old states of step t + 1, seen from step t (-1: the initial states).
// exists(block): units that do not exist stay 0, where 0 times infinity would make NaN of them, and they of all units.
// meanwhile() comes while sums of other CTAs are on their way.
template <class Config, class Exists, class Meanwhile>
__device__ __forceinline__ void receive(float (&d_state)[Config::BLOCKS][2 * Config::COLUMNS][BackwardPlan<Config>::STATES],
                                        const typename BackwardPlan<Config>::Lead& product, int team,
                                        const BackwardPlan<Config>& plan, const BackwardArguments& args,
                                        const TileRows<Config::MASKED, 2 * Config::COLUMNS>& rows, int t, int lane,
                                        Exists exists, Meanwhile meanwhile) {
  using Plan = BackwardPlan<Config>;
  constexpr int COUNT = (Plan::ROW_BLOCKS + 1) / 2 * 2;  // of whole tiles
  float made[COUNT][Plan::LANE_ROWS] = {}, total[Config::BLOCKS][Plan::LANE_ROWS] = {};
  const int i = args.sizes.time - 2 - t;  // of step t + 1
  const bool flows = !Config::LIMITED || !args.cut;
  if (flows) {
    product.lead(i, made, lane);
    plan.reduce().send(i, made, team, 0, lane);
  }
  meanwhile();
  if (flows) plan.reduce().total(i, total, made, team, lane);
#pragma unroll
  for (int block = 0; block < Config::BLOCKS; block++)
#pragma unroll
    for (int j = 0; j < Plan::LANE_ROWS; j++)
      receive(d_state[block][j], total[block][j], rows.padding(t + 1, j) || !exists(block), rows.resets(t + 1, j),
              Config::LIMITED ? args.gradient_clip : -1.f);
}

template <class Config>
__device__ __forceinline__ void compute_backward(const BackwardPlan<Config>& plan, const BackwardArguments& args, int first_row,
                                                 int head, int thread) {
  using Plan = BackwardPlan<Config>;
  using T = typename Plan::T;
  using Cell = typename Plan::Cell;
  constexpr int BLOCKS = Plan::BLOCKS, GATES = Plan::GATES, STATES = Plan::STATES;
  constexpr int SAVED = SAVED_SIZE<Cell>, INPUTS = Plan::INPUTS, SIZE = int(sizeof(T)), LANE_ROWS = Plan::LANE_ROWS;
  const int lane = thread % 32, warp = thread / 32, warp_unit = warp * 8 * BLOCKS, last_t = args.sizes.time - 1;
  const int unit = plan.first_unit() + warp_unit + lane / 4;  // in the head
  const auto gates = plan.gates();
  const auto exists = [&](int block) { return unit + block * 8 < args.sizes.head_dim; };

  auto product = plan.leader(warp);
  product.load(plan.weights(warp, 0), lane, rows_of_weights<Config>(args, head, lane));
  const TileRows<Config::MASKED, LANE_ROWS> rows(args.masks, args.sizes, first_row, lane);
  float d_state[BLOCKS][LANE_ROWS][STATES], now[BLOCKS][LANE_ROWS][STATES], d_bias[GATES][BLOCKS] = {};
#pragma unroll
  for (int block = 0; block < BLOCKS; block++)
#pragma unroll
    for (int j = 0; j < LANE_ROWS; j++)
#pragma unroll
      for (int s = 0; s < STATES; s++) {
        const bool there = rows.valid[j] && exists(block), flows = !has_bit(Cell::CONSTANT, s);
        d_state[block][j][s] = there && flows ? args.d_last.load(s, rows.batch[j], head, unit + block * 8) : 0.f;
        if (has_bit(Plan::READ, s) && there)
          plan.initial(s, block, j, thread) = args.initial.load(s, rows.batch[j], head, unit + block * 8);
        now[block][j][s] = 0.f;
        if (has_bit(Plan::NEW, s) && there)
          now[block][j][s] = to_float(reinterpret_cast<const T*>(args.states.at(s, rows.batch[j], last_t, head))[unit + block * 8]);
      }
  __syncthreads();
  float input[INPUTS * BLOCKS][LANE_ROWS];
  const auto load_input = [&](int i) {
    load_tiles<T>(input, plan.input(i) + warp_unit * SIZE, Plan::PITCH, lane,
                  [](int x) { return x / BLOCKS * Plan::ARRAY + x % BLOCKS * 8 * int(sizeof(T)); });
  };
  load_input(0);

  const auto step = [&](int i, auto at_start) {
    constexpr bool AT_START = decltype(at_start)::value;  // the initial states are before the step
    const int t = last_t - i;
#pragma unroll
    for (int block = 0; block < BLOCKS; block++) {
      float d_gate[GATES][LANE_ROWS];
#pragma unroll
      for (int j = 0; j < LANE_ROWS; j++) {
        const bool padding = rows.padding(t, j);
        float saved[SAVED], outside[STATES] = {}, old[STATES] = {}, d_gate_[GATES];
#pragma unroll
        for (int k = 0; k < Plan::SAVED; k++) saved[k] = input[k * BLOCKS + block][j];
#pragma unroll
        for (int s = 0; s < STATES; s++) {
          if (has_bit(Plan::READ, s)) {
            old[s] = AT_START ? plan.initial(s, block, j, thread)
                              : input[(Plan::FIRST_STATE + rank_of(Plan::READ, s)) * BLOCKS + block][j];
          }
          if (has_bit(Plan::OUTSIDE, s) && !padding)
            outside[s] = input[(Plan::FIRST_OUTSIDE + rank_of(Plan::OUTSIDE, s)) * BLOCKS + block][j];
        }
        backward_step<Cell>(d_state[block][j], d_gate_, outside, saved, old, now[block][j], padding, rows.resets(t, j),
                            Config::LIMITED ? args.stored_clip : -1.f);
#pragma unroll
        for (int s = 0; s < STATES; s++) now[block][j][s] = old[s];
#pragma unroll
        for (int g = 0; g < GATES; g++) {
          d_gate[g][j] = d_gate_[g];
          d_bias[g][block] += d_gate_[g];  // rows and units that do not exist have zeros everywhere, here too
        }
      }
#pragma unroll
      for (int g = 0; g < GATES; g++) {
        if (g < Plan::RECURRENT)
          gates.put(i, g, warp_unit + block * 8, lane, d_gate[g]);
        else
          store_tiles<T>(plan.results(i) + Plan::offset(g, 0) + (warp_unit + block * 8) * SIZE, Plan::PITCH, lane, d_gate[g]);
      }
    }
    gates.template send<BLOCKS>(i, warp_unit, lane);
    gates.template sync<Plan::THREADS>(i, [] {});
    receive<Config>(d_state, product, warp, plan, args, rows, t - 1, lane, exists, [&] {
      if (!AT_START) load_input(i + 1);
    });
  };
  for (int i = 0; i < last_t; i++) step(i, Constant<false>{});
  step(last_t, Constant<true>{});

  const int tile = first_row / Plan::ROWS;
#pragma unroll
  for (int block = 0; block < BLOCKS; block++) {
    const int d = unit + block * 8;
    if (args.d_initial.data != nullptr)
#pragma unroll
      for (int j = 0; j < LANE_ROWS; j++)
#pragma unroll
        for (int s = 0; s < STATES; s++)
          if (rows.valid[j] && exists(block)) args.d_initial.store(s, rows.batch[j], head, d, d_state[block][j][s]);
#pragma unroll
    for (int g = 0; g < GATES; g++) {
      float sum = d_bias[g][block];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int64 index = ((int64(tile) * Cell::BIAS_GATES + g - (GATES - Cell::BIAS_GATES)) * args.sizes.heads + head) *
                          args.sizes.head_dim + d;
      if (args.d_bias != nullptr && lane % 4 == 0 && g >= GATES - Cell::BIAS_GATES && exists(block)) args.d_bias[index] = sum;
    }
  }
}

template <class Config>
__device__ __forceinline__ void fused_backward(const BackwardArguments& args) {
  using Plan = BackwardPlan<Config>;
  extern __shared__ __align__(16) char memory[];
  const int thread = threadIdx.x, group = int(args.first_group) + Plan::Exchange::group();
  const int head = group % args.sizes.heads, first_row = group / args.sizes.heads * Plan::ROWS;
  const Plan plan{memory, args.mailbox + group * Plan::MAILBOX};
  clear_shared<Plan::SHARED_BYTES, Plan::THREADS>(memory);
  plan.reduce().begin();
  if (thread < Plan::COMPUTE_THREADS)
    compute_backward(plan, args, first_row, head, thread);
  else
    transfer_backward(plan, args, first_row, head, thread - Plan::COMPUTE_THREADS);
  plan.reduce().end();
}

}  // namespace flashrnn
