// The pointwise steps of the forward pass again, to save the activations that it did not: the recurrent products of all steps
// are given, so that units do not wait for each other. A thread takes one unit of one batch row through time.
#pragma once

#include "common/arguments.cuh"
#include "common/step.cuh"

namespace flashrnn {

struct ReplayArguments {
  Sizes sizes;
  Weights weights;  // of which only b is read
  States initial;
  Masks masks;
  Arrays input;     // Wx
  Arrays products;  // in float32, by recurrent gate
  Arrays saved;     // out
  float clip;       // of h; negative: none
};

// Config: T, Cell.
template <class Config>
__device__ __forceinline__ void replay(const ReplayArguments& args) {
  using T = typename Config::T;
  using Cell = typename Config::Cell;
  constexpr int GATES = Cell::GATES, STATES = Cell::STATES, FIRST_INPUT = GATES - Cell::INPUT_GATES;
  const Sizes& sizes = args.sizes;
  const int64 index = int64(blockIdx.x) * blockDim.x + threadIdx.x;
  const int d = index % sizes.head_dim, n = index / sizes.head_dim % sizes.heads;
  const int64 b = index / sizes.head_dim / sizes.heads;
  if (b >= sizes.batch) return;

  float bias[GATES], state[STATES];
#pragma unroll
  for (int g = 0; g < GATES; g++) bias[g] = load_bias<T>(args.weights, sizes, g - (GATES - Cell::BIAS_GATES), n, d);
#pragma unroll
  for (int s = 0; s < STATES; s++) state[s] = args.initial.load(s, b, n, d);
  const int length = args.masks.length(b, sizes.time);
#pragma unroll 4
  for (int t = 0; t < sizes.time; t++) {
    float gate[GATES], saved[SAVED_SIZE<Cell>], out[STATES];
    const bool padding = t >= length;
#pragma unroll
    for (int g = 0; g < GATES; g++) {
      gate[g] = bias[g];
      if (g >= FIRST_INPUT && !padding)
        gate[g] += to_float(reinterpret_cast<const T*>(args.input.at(g - FIRST_INPUT, b, t, n))[d]);
      if (g < Cell::RECURRENT_GATES) gate[g] += reinterpret_cast<const float*>(args.products.at(g, b, t, n))[d];
    }
    forward_step<Cell>(gate, state, saved, out, padding, !padding && args.masks.reset(b, t), args.clip);
#pragma unroll
    for (int k = 0; k < Cell::SAVED; k++)
      reinterpret_cast<T*>(args.saved.at(k, b, t, n))[d] = from_float<T>(padding ? 0.f : saved[k]);
  }
}

}  // namespace flashrnn
