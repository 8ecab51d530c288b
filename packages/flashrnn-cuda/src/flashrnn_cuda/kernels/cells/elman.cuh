// The simple recurrent network:  h' = tanh(g). What a cell is: see cells/lstm.cuh.
#pragma once

#include "cells/activations.cuh"

namespace flashrnn {

template <class Math>
struct Elman {
  using S = typename Math::Scalar;
  static constexpr int STATES = 1, GATES = 1, RECURRENT_GATES = 1, INPUT_GATES = 1, BIAS_GATES = 1, SAVED = 0;
  static constexpr unsigned READS_OLD = 0, READS_NEW = 0b1, CONSTANT = 0;

  // C++ has no arrays of size 0, so `saved` has one element that nobody reads.
  static __device__ __forceinline__ void step(const S (&gate)[GATES], S (&state)[STATES], S (&)[1]) {
    state[0] = Math::tanh(gate[0]);
  }

  static __device__ __forceinline__ void step_backward(S (&d_state)[STATES], S (&d_gate)[GATES], const S (&)[1],
                                                       const S (&)[STATES], const S (&now)[STATES]) {
    d_gate[0] = through_tanh<Math>(d_state[0], now[0]);
    d_state[0] = S(0);
  }
};

}  // namespace flashrnn
