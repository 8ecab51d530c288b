// Gradients through the activations, given their values: exact where they saturate, thanks to one rounding for s - s^2.
#pragma once

namespace flashrnn {

// grad * s * (1 - s), where s = sigmoid(x).
template <class Math, class S>
__device__ __forceinline__ S through_sigmoid(S grad, S s) {
  return grad * Math::multiply_add(-s, s, s);
}

// grad * (1 - y^2), where y = tanh(x).
template <class Math, class S>
__device__ __forceinline__ S through_tanh(S grad, S y) {
  return grad * Math::multiply_add(-y, y, S(1));
}

}  // namespace flashrnn
