"""The functions that cells are made of, in float32; and gradients through them, given their values."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    """tanh(x), off by some 1e-7 at most."""
    return 2 * sigmoid(2 * x) - 1


@triton.jit
def log_sigmoid(x):
    """log(sigmoid(x)), without overflow."""
    return tl.minimum(x, 0.0) - tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def through_sigmoid(grad, s):
    """grad * s * (1 - s), where s = sigmoid(x)."""
    return grad * s * (1 - s)


@triton.jit
def through_tanh(grad, y):
    """grad * (1 - y^2), where y = tanh(x)."""
    return grad * (1 - y) * (1 + y)


@triton.jit
def is_negative(x):
    """The sign bit of a float32: -0.0 has one."""
    return x.to(tl.int32, bitcast=True) < 0


@triton.jit
def at_most(x, bound):
    """min(x, bound); NaN stays NaN."""
    return tl.where(x > bound, bound, x)


@triton.jit
def clamp(x, bound):
    """x held in [-bound, bound]; NaN stays NaN."""
    return tl.where(x < -bound, -bound, at_most(x, bound))
