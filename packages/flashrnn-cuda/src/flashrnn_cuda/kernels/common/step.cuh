// One step of one unit of one batch row, with the options that every cell shares. In padding nothing happens; `reset` is never
// true there.
#pragma once

#include "common/math.cuh"

namespace flashrnn {

// Arrays cannot be empty: elman saves nothing.
template <class Cell>
constexpr int SAVED_SIZE = Cell::SAVED > 0 ? Cell::SAVED : 1;

__host__ __device__ constexpr bool has_bit(unsigned set, int i) { return set >> i & 1; }

// gate: pre-activations. state: old in, new out. out: what is returned. clip: of h, negative for none.
template <class Cell>
__device__ __forceinline__ void forward_step(const float (&gate)[Cell::GATES], float (&state)[Cell::STATES],
                                             float (&saved)[SAVED_SIZE<Cell>], float (&out)[Cell::STATES], bool padding,
                                             bool reset, float clip) {
  float now[Cell::STATES];
#pragma unroll
  for (int s = 0; s < Cell::STATES; s++) now[s] = reset ? 0.f : state[s];
  Cell::step(gate, now, saved);
  if (clip >= 0.f) now[0] = clamp(now[0], clip);
#pragma unroll
  for (int s = 0; s < Cell::STATES; s++) {
    if (!padding) state[s] = now[s];
    out[s] = padding ? 0.f : now[s];
  }
}

// d_state: gradients of a step's old states, h's along its direct path, to which R's product comes. clip: negative for none.
// padding, reset: those of the step whose old states these are.
template <int STATES>
__device__ __forceinline__ void receive(float (&d_state)[STATES], float product, bool padding, bool reset, float clip) {
  if (padding) return;
  d_state[0] += product;
  if (clip >= 0.f) d_state[0] = clamp(d_state[0], clip);
#pragma unroll
  for (int s = 0; s < STATES; s++)
    if (reset) d_state[s] = 0.f;
}

// d_state: gradients of the new states in, without those from outside; of the old ones out. old, now: as they are stored.
template <class Cell>
__device__ __forceinline__ void backward_step(float (&d_state)[Cell::STATES], float (&d_gate)[Cell::GATES],
                                              const float (&outside)[Cell::STATES], const float (&saved)[SAVED_SIZE<Cell>],
                                              const float (&old)[Cell::STATES], const float (&now)[Cell::STATES], bool padding,
                                              bool reset, float stored_clip) {
  float d_now[Cell::STATES], before[Cell::STATES];
#pragma unroll
  for (int s = 0; s < Cell::STATES; s++) {
    d_now[s] = d_state[s] + outside[s];
    before[s] = reset ? 0.f : old[s];
  }
  if (stored_clip >= 0.f && fabsf(now[0]) >= stored_clip) d_now[0] = 0.f;
  Cell::step_backward(d_now, d_gate, saved, before, now);
#pragma unroll
  for (int s = 0; s < Cell::STATES; s++)
    if (!padding) d_state[s] = has_bit(Cell::CONSTANT, s) ? 0.f : d_now[s];
#pragma unroll
  for (int g = 0; g < Cell::GATES; g++)
    if (padding) d_gate[g] = 0.f;
}

}  // namespace flashrnn
