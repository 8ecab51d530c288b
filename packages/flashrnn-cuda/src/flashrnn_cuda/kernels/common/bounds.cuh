// Half the log of an element type's largest number: `bound` in flashrnn.cells.slstm says what for.
#pragma once

namespace flashrnn {

struct bf16;
struct f16;

template <class T>
constexpr double EXP_BOUND = 0;
template <>
constexpr double EXP_BOUND<f16> = 5.544933244230508;
template <>
constexpr double EXP_BOUND<bf16> = 44.35946260617593;
template <>
constexpr double EXP_BOUND<float> = 44.361419526034176;
template <>
constexpr double EXP_BOUND<double> = 354.891356446692;

}  // namespace flashrnn
