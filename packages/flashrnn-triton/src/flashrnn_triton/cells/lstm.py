"""LSTM with the gates i, f, z, o:  c' = s(f) c + s(i) tanh(z);  h' = s(o) tanh(c').

A cell is two functions of float32 tiles, all of one shape; MATH says how exact they are, see activations.py. `step` takes
the pre-activations of the gates and the old states, and returns the new states and the activations to be saved.
`step_backward` takes the gradients of the new states, what was saved and the states it needs, and returns the gradients of
the gates and of the old states; that of h along its direct path only. Which states it needs stands in cells/__init__.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .activations import sigmoid, tanh, through_sigmoid, through_tanh


@triton.jit
def lstm_step(i, f, z, o, c, MATH: tl.constexpr):
    """The new h and c, and the activations i, f, z, o."""
    i, f, z, o = sigmoid(i, MATH), sigmoid(f, MATH), tanh(z, MATH), sigmoid(o, MATH)
    c = f * c + i * z
    return o * tanh(c, MATH), c, i, f, z, o


@triton.jit
def lstm_step_backward(dh, dc, i, f, z, o, c_old, c_new, MATH: tl.constexpr):
    """The gradients of i, f, z, o, and of the old c."""
    tanh_c = tanh(c_new, MATH)
    dc += through_tanh(dh * o, tanh_c)
    di = through_sigmoid(dc * z, i)
    df = through_sigmoid(dc * c_old, f)
    dz = through_tanh(dc * i, z)
    do = through_sigmoid(dh * tanh_c, o)
    return di, df, dz, do, dc * f
