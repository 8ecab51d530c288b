// LSTM with the gates i, f, z, o:  c' = s(f) c + s(i) tanh(z);  h' = s(o) tanh(c').
//
// A cell is a template over its Math (a Scalar type and functions of it). Its counts follow core's CellSpec: gates with a
// recurrent part stand first, those with an input part or a bias last. READS_OLD and READS_NEW are sets of states, bit s
// for state s, that step_backward reads; CONSTANT those that pass no gradient.
#pragma once

#include "cells/activations.cuh"

namespace flashrnn {

template <class Math>
struct Lstm {
  using S = typename Math::Scalar;
  static constexpr int STATES = 2, GATES = 4, RECURRENT_GATES = 4, INPUT_GATES = 4, BIAS_GATES = 4, SAVED = 4;
  static constexpr unsigned READS_OLD = 0b10, READS_NEW = 0b10, CONSTANT = 0;

  // gate: pre-activations. state: old (h, c) in, new out. saved: the activations.
  static __device__ __forceinline__ void step(const S (&gate)[GATES], S (&state)[STATES], S (&saved)[SAVED]) {
    const S i = Math::sigmoid(gate[0]), f = Math::sigmoid(gate[1]), z = Math::tanh(gate[2]), o = Math::sigmoid(gate[3]);
    const S c = f * state[1] + i * z;
    state[1] = c;
    state[0] = o * Math::tanh(c);
    saved[0] = i, saved[1] = f, saved[2] = z, saved[3] = o;
  }

  // d_state: gradients of the new states in, of the old ones out (h: its direct path only). d_gate: of the pre-activations.
  static __device__ __forceinline__ void step_backward(S (&d_state)[STATES], S (&d_gate)[GATES], const S (&saved)[SAVED],
                                                       const S (&old)[STATES], const S (&now)[STATES]) {
    const S i = saved[0], f = saved[1], z = saved[2], o = saved[3], tanh_c = Math::tanh(now[1]);
    const S dh = d_state[0], dc = d_state[1] + through_tanh<Math>(dh * o, tanh_c);
    d_gate[0] = through_sigmoid<Math>(dc * z, i);
    d_gate[1] = through_sigmoid<Math>(dc * old[1], f);
    d_gate[2] = through_tanh<Math>(dc * i, z);
    d_gate[3] = through_sigmoid<Math>(dh * tanh_c, o);
    d_state[0] = S(0);
    d_state[1] = dc * f;
  }
};

}  // namespace flashrnn
