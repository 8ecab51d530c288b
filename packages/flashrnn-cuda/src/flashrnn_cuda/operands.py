"""R as the alternating kernels read it: rows padded to whole chunks, turned for the way back; and h before each step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from flashrnn.problem import Inputs

CHUNK, ALIGNMENT = 64, 16
"""In bytes: what kernels read R in."""


def turned(R: Tensor) -> Tensor:
    """R^T as [1, NH, in, NR * out], contiguous."""
    return R.permute(1, 3, 0, 2).flatten(2).contiguous().unsqueeze(0)


def chunked_rows(R: Tensor) -> Tensor:
    """R [gate, head, unit, row] with rows of whole chunks that begin on 16 bytes; itself where it already is so."""
    size = R.element_size()
    missing = -R.shape[-1] % (CHUNK // size)
    if missing:
        return pad(R, (0, missing))
    aligned = all(stride * size % ALIGNMENT == 0 for stride in R.stride()[:-1])
    return R if aligned and R.data_ptr() % ALIGNMENT == 0 else R.contiguous().clone()


def previous_h(inputs: Inputs, states: Tensor) -> Tensor:
    """The h that entered each step's product, [B, T, NH, D], rounded as it did, in the memory order of h.

    One copy of memory moves all rows by a step; what it brings to the first steps is another sequence's and is replaced.
    """
    h = states[0]
    before = torch.empty_like(h)
    time_first = h.stride(0) < h.stride(1)
    moved, kept = (before[:, 1:], h[:, :-1]) if time_first else (rows_of(before)[1:], rows_of(h)[:-1])
    moved.copy_(kept)
    before[:, 0] = 0 if inputs.states is None else inputs.states[0]
    return before if inputs.resets is None else before.masked_fill_(inputs.resets[:, :, None, None], 0)


def rows_of(x: Tensor) -> Tensor:
    """x [B, T, NH, D], contiguous, as [B * T, NH, D]."""
    return x.view(-1, *x.shape[2:])
