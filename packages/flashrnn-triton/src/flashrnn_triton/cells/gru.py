"""GRU, reset after the product:  h' = s(z) h + (1 - s(z)) tanh(n + s(r) g), with g = R_g h + b_g and n = Wx_n + b_n.

What a cell is: see cells/lstm.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .activations import sigmoid, tanh, through_sigmoid, through_tanh


@triton.jit
def gru_step(g, r, z, n, h, MATH: tl.constexpr):
    """The new h and the activations g, r, z, n."""
    r, z = sigmoid(r, MATH), sigmoid(z, MATH)
    n = tanh(n + r * g, MATH)
    return z * h + (1 - z) * n, g, r, z, n


@triton.jit
def gru_step_backward(dh, g, r, z, n, h_old):
    """The gradients of g, r, z, n, and of the old h along its direct path."""
    dn = through_tanh(dh * (1 - z), n)
    dz = through_sigmoid(dh * (h_old - n), z)
    dr = through_sigmoid(dn * g, r)
    return dn * r, dr, dz, dn, dh * z
