// sLSTM: exponential input and forget gates, a normaliser n and a stabiliser m (Beck et al. 2024, xLSTM).
//
//   l  = logsigmoid(f) + m;   m' = i where n == 0, else max(i, l)
//   i* = exp(i - m');         f* = exp(l - m'), but 0 where n == 0 and c == 0, or l - m' > bound
//   c' = f* c + i* tanh(z);   n' = max(f* n + i*, 1);   h' = s(o) c' / n'
//
// m is a constant for differentiation. What is saved survives rounding to 16 bits: one of i*, f* is exactly 1, so one number
// keeps both (f* where i* is 1, -i* where f* is); s(-f), the slope of logsigmoid, is negative where the 1 of the max won.
// What a cell is: see cells/lstm.cuh.
#pragma once

#include "cells/activations.cuh"

namespace flashrnn {

template <class Math>
struct Slstm {
  using S = typename Math::Scalar;
  static constexpr int STATES = 4, GATES = 4, RECURRENT_GATES = 4, INPUT_GATES = 4, BIAS_GATES = 4, SAVED = 4;
  static constexpr unsigned READS_OLD = 0b0110, READS_NEW = 0b0110, CONSTANT = 0b1000;

  static __device__ __forceinline__ void step(const S (&gate)[GATES], S (&state)[STATES], S (&saved)[SAVED]) {
    const S i = gate[0], f = gate[1], z = Math::tanh(gate[2]), o = Math::sigmoid(gate[3]);
    const S c = state[1], n = state[2], decayed = Math::log_sigmoid(f) + state[3];
    const S m = n == S(0) ? i : Math::max(i, decayed);
    const S i_star = Math::exp(i - m);
    const S exponent = decayed - m;  // positive only where n == 0
    const S f_star = (n == S(0) && c == S(0)) || exponent > Math::EXP_BOUND ? S(0) : Math::exp(exponent);
    const S total = f_star * n + i_star;
    const bool one_won = total < S(1);
    state[1] = f_star * c + i_star * z;
    state[2] = one_won ? S(1) : total;
    state[3] = m;
    state[0] = o * Math::divide(state[1], state[2]);
    const S keep_f = Math::sigmoid(-f);
    saved[0] = i_star == S(1) ? f_star : -i_star;
    saved[1] = one_won ? -keep_f : keep_f;
    saved[2] = z, saved[3] = o;
  }

  static __device__ __forceinline__ void step_backward(S (&d_state)[STATES], S (&d_gate)[GATES], const S (&saved)[SAVED],
                                                       const S (&old)[STATES], const S (&now)[STATES]) {
    const bool forget_is_one = Math::is_negative(saved[0]), one_won = Math::is_negative(saved[1]);
    const S i_star = forget_is_one ? -saved[0] : S(1), f_star = forget_is_one ? S(1) : saved[0];
    // n' is 1 at least; it is 0 only where there is no unit, and nothing may become NaN.
    const S n_new = Math::max(now[2], S(1)), z = saved[2], o = saved[3], dh = d_state[0];
    const S ratio = Math::divide(now[1], n_new), d_ratio = Math::divide(dh * o, n_new);
    const S dc = d_state[1] + d_ratio;
    const S dn = one_won ? S(0) : d_state[2] - d_ratio * ratio;
    d_gate[0] = (dc * z + dn) * i_star;
    d_gate[1] = (dc * old[1] + dn * old[2]) * f_star * Math::abs(saved[1]);
    d_gate[2] = through_tanh<Math>(dc * i_star, z);
    d_gate[3] = through_sigmoid<Math>(dh * ratio, o);
    d_state[0] = S(0);
    d_state[1] = dc * f_star;
    d_state[2] = dn * f_star;
    d_state[3] = S(0);
  }
};

}  // namespace flashrnn
