"""The simple recurrent network:  h' = tanh(g). What a cell is: see cells/lstm.py."""

from __future__ import annotations

import triton
import triton.language as tl

from .activations import tanh, through_tanh


@triton.jit
def elman_step(g, MATH: tl.constexpr):
    """The new h; it is the activation too."""
    return tanh(g, MATH)


@triton.jit
def elman_step_backward(dh, h_new):
    """The gradient of g."""
    return through_tanh(dh, h_new)
