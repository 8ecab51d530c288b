"""What kernels are given by value, packed as the structs in kernels/ lay it out.

The functions give the fields of one struct, in order; FORWARD, BACKWARD, ... are the formats of the whole arguments,
padded at the end ("0P") as structs are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from struct import Struct
from typing import Optional

import torch
from torch import Tensor

from flashrnn.problem import Inputs, Problem

Fields = tuple[float, ...]

SIZES, WEIGHTS, STATES, MASKS, ARRAYS = "4i", "P4qP2q", "P4q", "PP3q", "P4q"
FIRST = Struct("q")
LOOP = SIZES + WEIGHTS + STATES
FORWARD = Struct(FIRST.format + LOOP + STATES + MASKS + "P" + 3 * ARRAYS + "f" + "0P")
BACKWARD = Struct(FIRST.format + LOOP + 2 * STATES + MASKS + "P" + 5 * ARRAYS + "Pffi" + "0P")
ALTERNATING_FORWARD = Struct(LOOP + STATES + MASKS + 3 * ARRAYS + "PPPqf" + "0P")
ALTERNATING_BACKWARD = Struct(LOOP + 2 * STATES + MASKS + 5 * ARRAYS + "PPPqffi" + "0P")
WEIGHT_GRADIENT = Struct(SIZES + STATES + MASKS + 3 * ARRAYS + "Piii" + "0P")
SUMS = Struct(2 * "PPqqq" + "0P")
REPLAY = Struct(LOOP + MASKS + 3 * ARRAYS + "f" + "0P")

NONE = -1.0
"""No clipping."""

DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}


def pack(layout: Struct, *parts: Sequence[float]) -> bytes:
    """The arguments of a kernel, from the fields of its parts."""
    return layout.pack(*chain.from_iterable(parts))


def starting_at(first_group: int, arguments: bytes) -> bytes:
    """The arguments of a fused pass for a launch that starts at another group."""
    return FIRST.pack(first_group) + arguments[FIRST.size :]


def sizes(problem: Problem) -> Fields:
    """B, T, NH, D."""
    return problem.batch_size, problem.sequence_size, problem.num_heads, problem.head_dim


def arrays(x: Optional[Tensor]) -> Fields:
    """x [array, B, T, NH, D]; strides in bytes."""
    if x is None:
        return 0, 0, 0, 0, 0
    size, (array, batch, time, head, _) = x.element_size(), x.stride()
    return x.data_ptr(), array * size, batch * size, time * size, head * size


def weights(R: Tensor, b: Tensor) -> Fields:
    """R [gate, head, out, in], strides in bytes, and b [gate, head, unit], strides in elements."""
    size, (b_gate, b_head, _) = R.element_size(), b.stride()
    return R.data_ptr(), *(stride * size for stride in R.stride()), b.data_ptr(), b_gate, b_head


def states(x: Optional[Tensor]) -> Fields:
    """x [NS, B, NH, D] of any dtype; strides in elements."""
    if x is None:
        return 0, 0, 0, 0, 0
    state, batch, head, _ = x.stride()
    return x.data_ptr(), state, batch, head, DTYPES[x.dtype]


def parts(x: Optional[Tensor], total: Optional[Tensor]) -> Fields:
    """Float32 parts x [part, ...], and their sum of any dtype; both contiguous."""
    if x is None or total is None:
        return 0, 0, 0, 0, 0
    return x.data_ptr(), total.data_ptr(), total.numel(), len(x), DTYPES[total.dtype]


def masks(inputs: Inputs) -> Fields:
    """lengths [B] and resets [B, T]."""
    lengths, resets = inputs.lengths, inputs.resets
    return (
        0 if lengths is None else lengths.data_ptr(),
        0 if resets is None else resets.data_ptr(),
        0 if lengths is None else lengths.stride(0),
        *((0, 0) if resets is None else resets.stride()),
    )


def or_none(clipval: Optional[float]) -> float:
    """A clip value as kernels take it: negative is none."""
    return NONE if clipval is None else clipval


def piece_bytes(tensors: Sequence[Optional[Tensor]]) -> int:
    """In how large pieces the rows of all these tensors can be moved: 16 bytes, 4 or 2."""
    bits = 0  # of all addresses and distances: the lowest one that is set bounds the piece
    for x in tensors:
        if x is not None:
            size = x.element_size()
            bits |= x.data_ptr() | x.shape[-1] * size
            for stride in x.stride()[:-1]:
                bits |= stride * size
    return 16 if bits % 16 == 0 else 4 if bits % 4 == 0 else 2
