// GRU, reset after the product:  h' = s(z) h + (1 - s(z)) tanh(n + s(r) g), with g = R_g h + b_g and n = Wx_n + b_n.
// What a cell is: see cells/lstm.cuh.
#pragma once

#include "cells/activations.cuh"

namespace flashrnn {

template <class Math>
struct Gru {
  using S = typename Math::Scalar;
  static constexpr int STATES = 1, GATES = 4, RECURRENT_GATES = 3, INPUT_GATES = 3, BIAS_GATES = 4, SAVED = 4;
  static constexpr unsigned READS_OLD = 0b1, READS_NEW = 0, CONSTANT = 0;

  static __device__ __forceinline__ void step(const S (&gate)[GATES], S (&state)[STATES], S (&saved)[SAVED]) {
    const S g = gate[0], r = Math::sigmoid(gate[1]), z = Math::sigmoid(gate[2]), n = Math::tanh(gate[3] + r * g);
    state[0] = z * state[0] + (S(1) - z) * n;
    saved[0] = g, saved[1] = r, saved[2] = z, saved[3] = n;
  }

  static __device__ __forceinline__ void step_backward(S (&d_state)[STATES], S (&d_gate)[GATES], const S (&saved)[SAVED],
                                                       const S (&old)[STATES], const S (&)[STATES]) {
    const S g = saved[0], r = saved[1], z = saved[2], n = saved[3], dh = d_state[0];
    const S dn = through_tanh<Math>(dh * (S(1) - z), n);
    d_gate[0] = dn * r;
    d_gate[1] = through_sigmoid<Math>(dn * g, r);
    d_gate[2] = through_sigmoid<Math>(dh * (old[0] - n), z);
    d_gate[3] = dn;
    d_state[0] = dh * z;
  }
};

}  // namespace flashrnn
