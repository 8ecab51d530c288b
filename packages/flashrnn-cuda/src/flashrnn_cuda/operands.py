"""R as the alternating kernels read it: rows padded to whole chunks, turned for the way back; and h before each step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from flashrnn.problem import Inputs, Problem

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


def previous_h(problem: Problem, inputs: Inputs, states: Tensor) -> Tensor:
    """The h that entered each step's product, [B, T, NH, D], rounded as it did."""
    h = states[0]
    shape = (problem.batch_size, 1, problem.num_heads, problem.head_dim)
    first = h.new_zeros(shape) if inputs.states is None else inputs.states[0].to(h.dtype).view(shape)
    before = torch.empty_like(h, memory_format=torch.contiguous_format)
    before[:, :1], before[:, 1:] = first, h[:, :-1]
    return before if inputs.resets is None else before.masked_fill_(inputs.resets[:, :, None, None], 0)
