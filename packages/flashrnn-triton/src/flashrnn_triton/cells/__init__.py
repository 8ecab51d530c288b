"""The cells, one file each; and the two functions by which the kernels reach them.

A kernel has names for four gates, states and activations, as many as any cell has. What a cell lacks goes through untouched,
and the compiler drops it.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from .elman import elman_step, elman_step_backward
from .gru import gru_step, gru_step_backward
from .lstm import lstm_step, lstm_step_backward
from .slstm import slstm_step, slstm_step_backward


class Reads(NamedTuple):
    """The states that a cell's `step_backward` reads, bit s for state s: before the step, and after it."""

    old: int
    new: int


READS = {
    "elman": Reads(old=0, new=0b1),
    "gru": Reads(old=0b1, new=0),
    "lstm": Reads(old=0b10, new=0b10),
    "slstm": Reads(old=0b110, new=0b110),
}


@triton.jit
def step(CELL: tl.constexpr, MATH: tl.constexpr, DTYPE: tl.constexpr, g0, g1, g2, g3, h, c, n, m):
    """Pre-activations and old states to new states (h, c, n, m) and activations (4), which will be stored as DTYPE."""
    if CELL == "elman":
        h = elman_step(g0, MATH)
    elif CELL == "gru":
        h, g0, g1, g2, g3 = gru_step(g0, g1, g2, g3, h, MATH)
    elif CELL == "lstm":
        h, c, g0, g1, g2, g3 = lstm_step(g0, g1, g2, g3, c, MATH)
    else:
        h, c, n, m, g0, g1, g2, g3 = slstm_step(g0, g1, g2, g3, c, n, m, MATH, DTYPE)
    return h, c, n, m, g0, g1, g2, g3


@triton.jit
def step_backward(CELL: tl.constexpr, MATH: tl.constexpr, dh, dc, dn, a0, a1, a2, a3, h_old, c_old, n_old, h, c, n):
    """Gradients of new states, activations and states to the gradients of the gates (4) and of the old (h, c, n)."""
    if CELL == "elman":
        a0 = elman_step_backward(dh, h)
        dh = tl.zeros_like(dh)
    elif CELL == "gru":
        a0, a1, a2, a3, dh = gru_step_backward(dh, a0, a1, a2, a3, h_old)
    elif CELL == "lstm":
        a0, a1, a2, a3, dc = lstm_step_backward(dh, dc, a0, a1, a2, a3, c_old, c, MATH)
        dh = tl.zeros_like(dh)
    else:
        a0, a1, a2, a3, dc, dn = slstm_step_backward(dh, dc, dn, a0, a1, a2, a3, c_old, n_old, c, n, MATH)
        dh = tl.zeros_like(dh)
    return a0, a1, a2, a3, dh, dc, dn
