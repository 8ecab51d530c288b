// The mathematics of the CUDA cells, compiled for the host: each function takes and returns plain arrays of one scalar type,
// float for the 16-bit types.
#include <cmath>

#define __device__
#define __forceinline__ inline

#include "cells/elman.cuh"
#include "cells/gru.cuh"
#include "cells/lstm.cuh"
#include "cells/slstm.cuh"
#include "common/bounds.cuh"

// T: what is computed with. Element: what would be stored.
template <class T, class Element>
struct HostMath {
  using Scalar = T;
  static constexpr T EXP_BOUND = T(flashrnn::EXP_BOUND<Element>);

  static T exp(T x) { return std::exp(x); }
  static T tanh(T x) { return std::tanh(x); }
  static T sigmoid(T x) { return T(1) / (T(1) + std::exp(-x)); }
  static T log_sigmoid(T x) { return std::fmin(x, T(0)) - std::log1p(std::exp(-std::fabs(x))); }
  static T multiply_add(T x, T y, T z) { return std::fma(x, y, z); }
  static T divide(T x, T y) { return x / y; }
  static T abs(T x) { return std::fabs(x); }
  static T min(T x, T y) { return std::fmin(x, y); }
  static T max(T x, T y) { return x > y || x != x ? x : y; }
  static bool is_negative(T x) { return std::signbit(x); }
};

template <class Cell, class T>
void step(int count, const T* gates, T* states, T* saved) {
  for (int i = 0; i < count; i++) {
    T gate[Cell::GATES], state[Cell::STATES], kept[Cell::SAVED > 0 ? Cell::SAVED : 1];
    for (int g = 0; g < Cell::GATES; g++) gate[g] = gates[g * count + i];
    for (int s = 0; s < Cell::STATES; s++) state[s] = states[s * count + i];
    Cell::step(gate, state, kept);
    for (int s = 0; s < Cell::STATES; s++) states[s * count + i] = state[s];
    for (int k = 0; k < Cell::SAVED; k++) saved[k * count + i] = kept[k];
  }
}

// Only what READS_OLD and READS_NEW name is handed over; the rest is NaN.
template <class Cell, class T>
void step_backward(int count, T* d_states, const T* saved, const T* old, const T* now, T* d_gates) {
  for (int i = 0; i < count; i++) {
    T d_state[Cell::STATES], before[Cell::STATES], after[Cell::STATES], d_gate[Cell::GATES];
    T kept[Cell::SAVED > 0 ? Cell::SAVED : 1];
    for (int k = 0; k < Cell::SAVED; k++) kept[k] = saved[k * count + i];
    for (int s = 0; s < Cell::STATES; s++) {
      d_state[s] = d_states[s * count + i];
      before[s] = Cell::READS_OLD >> s & 1 ? old[s * count + i] : T(NAN);
      after[s] = Cell::READS_NEW >> s & 1 ? now[s * count + i] : T(NAN);
    }
    Cell::step_backward(d_state, d_gate, kept, before, after);
    for (int s = 0; s < Cell::STATES; s++) d_states[s * count + i] = Cell::CONSTANT >> s & 1 ? T(0) : d_state[s];
    for (int g = 0; g < Cell::GATES; g++) d_gates[g * count + i] = d_gate[g];
  }
}

template <class Cell>
void describe(int* counts) {
  const int found[] = {Cell::STATES,     Cell::GATES, Cell::RECURRENT_GATES, Cell::INPUT_GATES,
                       Cell::BIAS_GATES, Cell::SAVED, int(Cell::CONSTANT)};
  for (int i = 0; i < 7; i++) counts[i] = found[i];
}

#define EXPORT(name, Cell, suffix, T, Element)                                                                      \
  extern "C" void name##_step_##suffix(int count, const T* gates, T* states, T* saved) {                            \
    step<flashrnn::Cell<HostMath<T, Element>>>(count, gates, states, saved);                                        \
  }                                                                                                                 \
  extern "C" void name##_step_backward_##suffix(int count, T* d_states, const T* saved, const T* old, const T* now, \
                                                T* d_gates) {                                                       \
    step_backward<flashrnn::Cell<HostMath<T, Element>>>(count, d_states, saved, old, now, d_gates);                 \
  }
#define EXPORT_CELL(name, Cell)                       \
  EXPORT(name, Cell, float16, float, flashrnn::f16)   \
  EXPORT(name, Cell, bfloat16, float, flashrnn::bf16) \
  EXPORT(name, Cell, float32, float, float)           \
  EXPORT(name, Cell, float64, double, double)         \
  extern "C" void name##_describe(int* counts) { describe<flashrnn::Cell<HostMath<float, float>>>(counts); }

EXPORT_CELL(lstm, Lstm)
EXPORT_CELL(gru, Gru)
EXPORT_CELL(elman, Elman)
EXPORT_CELL(slstm, Slstm)
