"""What kernels are given by value, packed as the structs in kernels/ lay it out.

The functions give the fields of one struct, in order; FORWARD, BACKWARD, ... are the formats of the whole arguments,
padded at the end ("0P") as structs are.
"""

from __future__ import annotations

from struct import Struct
from typing import Optional

import torch
from torch import Tensor

from flashrnn.problem import InputGradients, Inputs, OutputGradients, Outputs, Problem

Fields = tuple[float, ...]
Integers = tuple[int, ...]

SIZES, WEIGHTS, STATES, MASKS, ARRAYS = "4i", "P4qP2q", "P4q", "PP3q", "P4q"
FIRST = Struct("q")
LOOP = SIZES + WEIGHTS + STATES
FORWARD_LOOP, BACKWARD_LOOP = LOOP + STATES + MASKS, LOOP + 2 * STATES + MASKS
FORWARD = Struct(FIRST.format + FORWARD_LOOP + "P" + 3 * ARRAYS + "f" + "0P")
BACKWARD = Struct(FIRST.format + BACKWARD_LOOP + "P" + 5 * ARRAYS + "Pffi" + "0P")
ALTERNATING_FORWARD = Struct(FORWARD_LOOP + 3 * ARRAYS + "PPPqf" + "0P")
ALTERNATING_BACKWARD = Struct(BACKWARD_LOOP + 5 * ARRAYS + "PPPqffi" + "0P")
WEIGHT_GRADIENT = Struct(SIZES + STATES + MASKS + 3 * ARRAYS + "Piii" + "0P")
SUMS = Struct(2 * "PPqqq" + "0P")
REPLAY = Struct(LOOP + MASKS + 3 * ARRAYS + "f" + "0P")

NONE = -1.0
"""No clipping."""

INPUT, SAVED = (2, 0, 1, 3), (1, 3, 0, 2)
"""Where the axes array, B, T, NH are in what belongs to inputs, [B, T, NG, NH, D], and in saved, [T, K, NH, B, D]."""

NOTHING = (0, 0, 0, 0, 0)

DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}


def starting_at(first_group: int, arguments: bytes) -> bytes:
    """The arguments of a fused pass for a launch that starts at another group."""
    return FIRST.pack(first_group) + arguments[FIRST.size :]


def sizes(problem: Problem) -> Fields:
    """B, T, NH, D."""
    return problem.batch_size, problem.sequence_size, problem.num_heads, problem.head_dim


def forward_loop(problem: Problem, R: Tensor, inputs: Inputs, outputs: Outputs) -> Fields:
    """What a loop forward has besides arrays [..., T, ...]."""
    return (
        *sizes(problem),
        *weights(R, inputs.b),
        *states(inputs.states),
        *states(outputs.last_states),
        *masks(inputs),
    )


def backward_loop(problem: Problem, R: Tensor, inputs: Inputs, grads: OutputGradients, into: InputGradients) -> Fields:
    """What a loop backward has besides arrays [..., T, ...]."""
    return (
        *sizes(problem),
        *weights(R, inputs.b),
        *states(inputs.states),
        *states(grads.last_states),
        *states(into.states),
        *masks(inputs),
    )


def arrays(x: Optional[Tensor], axes: Integers = (0, 1, 2, 3)) -> Integers:
    """x [array, B, T, NH, D], or in another order: `axes` are where those but D stand. Strides in bytes."""
    if x is None:
        return NOTHING
    size, strides = x.element_size(), x.stride()
    array, batch, time, head = axes
    return x.data_ptr(), strides[array] * size, strides[batch] * size, strides[time] * size, strides[head] * size


def weights(R: Tensor, b: Tensor) -> Fields:
    """R [gate, head, out, in], strides in bytes, and b [gate, head, unit], strides in elements."""
    size, (b_gate, b_head, _) = R.element_size(), b.stride()
    return R.data_ptr(), *(stride * size for stride in R.stride()), b.data_ptr(), b_gate, b_head


def states(x: Optional[Tensor]) -> Fields:
    """x [NS, B, NH, D] of any dtype; strides in elements."""
    if x is None:
        return NOTHING
    state, batch, head, _ = x.stride()
    return x.data_ptr(), state, batch, head, DTYPES[x.dtype]


def parts(x: Optional[Tensor], total: Optional[Tensor]) -> Fields:
    """Float32 parts x [part, ...], and their sum of any dtype; both contiguous."""
    if x is None or total is None:
        return NOTHING
    return x.data_ptr(), total.data_ptr(), total.numel(), len(x), DTYPES[total.dtype]


def masks(inputs: Inputs) -> Fields:
    """lengths [B] and resets [B, T]."""
    lengths, resets = inputs.lengths, inputs.resets
    if lengths is None and resets is None:
        return NOTHING
    return (
        0 if lengths is None else lengths.data_ptr(),
        0 if resets is None else resets.data_ptr(),
        0 if lengths is None else lengths.stride(0),
        *((0, 0) if resets is None else resets.stride()),
    )


def or_none(clipval: Optional[float]) -> float:
    """A clip value as kernels take it: negative is none."""
    return NONE if clipval is None else clipval


def piece_bytes(problem: Problem, *some: Integers) -> int:
    """In how large pieces the rows of these `arrays`, all of the problem's dtype, can be moved: 16 bytes, 4 or 2."""
    bits = problem.head_dim * problem.dtype.itemsize  # of all addresses and distances: the lowest one set bounds the piece
    for address, array, batch, time, head in some:
        bits |= address | array | batch | time | head
    return largest_piece(bits)


def largest_piece(row_bytes: int) -> int:
    """In how large pieces rows can be moved that are so long, one after the other in memory."""
    return 16 if row_bytes % 16 == 0 else 4 if row_bytes % 4 == 0 else 2
