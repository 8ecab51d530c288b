"""The functions that cells are made of, in float32; and gradients through them, given their values.

MATH says how exact they are. "float32": off by some 1e-7 of the result; exp(x) by as much as x is off, some 1e-6 near its
bounds. "float16": the same but for results below 1e-38, which are 0. "bfloat16": tanh and sigmoid are the hardware's, and
log1p is off by some 1e-7 of 1.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def exp(x, MATH: tl.constexpr):
    """e^x."""
    if MATH == "float32":
        return tl.exp(x)
    else:
        return instruction("ex2.approx.ftz.f32 $0, $1;", x * 1.4426950408889634)


@triton.jit
def log(x, MATH: tl.constexpr):
    """The natural logarithm."""
    if MATH == "float32":
        return tl.log(x)
    else:
        return instruction("lg2.approx.ftz.f32 $0, $1;", x) * 0.6931471805599453


@triton.jit
def reciprocal(x, MATH: tl.constexpr):
    """1 / x."""
    if MATH == "float32":
        return 1 / x
    else:
        return instruction("rcp.approx.ftz.f32 $0, $1;", x)


@triton.jit
def hardware_tanh(x):
    """tanh within 2^-11."""
    return instruction("tanh.approx.f32 $0, $1;", x)


@triton.jit
def sigmoid(x, MATH: tl.constexpr):
    """1 / (1 + exp(-x))."""
    if MATH == "bfloat16":
        return 0.5 * hardware_tanh(0.5 * x) + 0.5
    else:
        return reciprocal(1 + exp(-x, MATH), MATH)


@triton.jit
def tanh(x, MATH: tl.constexpr):
    """(exp(x) - exp(-x)) / (exp(x) + exp(-x))."""
    if MATH == "bfloat16":
        return hardware_tanh(x)
    else:
        return tl.where(tl.abs(x) < 0.4, tanh_near_zero(x), 2 * sigmoid(2 * x, MATH) - 1)


@triton.jit
def tanh_near_zero(x):
    """tanh for abs(x) < 0.4, where 2 sigmoid(2 x) - 1 cancels.

    The polynomial is the best of its degree for the relative error: 2.1e-7 at most, rounding included. With it that of tanh
    is 4.1e-7 at most, on both sides of zero, where exp and the quotient are rounded correctly.
    """
    s = x * x
    return x * (1 + s * (-0.33331883 + s * (0.13277629 + s * -0.047794223)))


@triton.jit
def log1p(s, MATH: tl.constexpr):
    """log(1 + s) for s in 0..1.

    It is 2 artanh(t) with t = s / (2 + s), by the best polynomial of its degree for the relative error, which is 2.0e-7 at
    most, rounding included.
    """
    if MATH == "bfloat16":
        return log(1 + s, MATH)
    else:
        t = s * reciprocal(2 + s, MATH)
        u = t * t
        twice = t + t
        return twice + twice * (u * (0.33333209 + u * (0.20010763 + u * (0.14000902 + u * 0.14005996))))


@triton.jit
def instruction(text: tl.constexpr, x):
    """What this instruction makes of x."""
    return tl.inline_asm_elementwise(text, "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def through_sigmoid(grad, s):
    """grad * s * (1 - s), where s = sigmoid(x)."""
    return grad * s * (1 - s)


@triton.jit
def through_tanh(grad, y):
    """grad * (1 - y^2), where y = tanh(x)."""
    return grad * (1 - y) * (1 + y)


@triton.jit
def negated(x):
    """-x with the sign of zeros: what Triton makes of `-x` is 0 - x, and 0 - 0 is not -0."""
    return x * -1.0


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
