"""The gradient of R after the loop over time: by gate and head the sum over rows and steps of (gate gradient) x (h before).

A program sums one part of the rows and steps; the parts are added up afterwards, in a fixed order.
"""

# Without `from __future__ import annotations`: the interpreter of Triton 3.0 wants types, not their names.
from collections.abc import Sequence
from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrnn.problem import Inputs, Problem

from .launch import as_bytes, head_constants, run_time, sizes, strides
from .plan import plan_weights


@triton.jit(do_not_specialize=[*run_time(initial="bn", h="btn", d_gates="btgn"), "SIZE"])
def weight_gradient_kernel(
    d_gates,
    h,
    initial,
    resets,
    parts,
    B: tl.int32,
    T: tl.int32,
    NH: tl.int32,
    SIZE: tl.int64,
    initial_b: tl.int64,
    initial_n: tl.int64,
    h_b: tl.int64,
    h_t: tl.int64,
    h_n: tl.int64,
    d_gates_b: tl.int64,
    d_gates_t: tl.int64,
    d_gates_g: tl.int64,
    d_gates_n: tl.int64,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_K: tl.constexpr,
    UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid: gates times heads; parts.

    d_gates [B, T, gates, NH, D]; h [B, T, NH, D] after each step; initial [B, NH, D]; resets [B, T], contiguous.
    Out: parts [parts, gates, NH, D, D]. Row b at step t is number b * T + t; a part has SIZE of them, a multiple of BLOCK_K.
    """
    gate, head = tl.program_id(0) // NH, tl.program_id(0) % NH
    units = tl.arange(0, BLOCK_D)
    total = tl.zeros((BLOCK_D, BLOCK_D), tl.float32)
    d_gates += (gate * d_gates_g + head * d_gates_n) * UNIT
    h += head * h_n * UNIT
    first = tl.program_id(1) * SIZE
    end = tl.minimum(first + SIZE, B.to(tl.int64) * T)
    for number in tl.range(first, end, BLOCK_K, num_stages=STAGES):
        step = (number % T).to(tl.int32) + tl.arange(0, BLOCK_K)
        b = number // T + step // T
        t = step % T
        there = b < B
        g = tl.load(
            d_gates + (b * d_gates_b + t * d_gates_t)[None, :] * UNIT + units[:, None],
            there[None, :] & (units < D)[:, None],
            0.0,
        )
        after = there & (t > 0)
        if resets is not None:
            kept = tl.load(resets + b * T + t, there, 1) == 0
            after = after & kept
        x = tl.load(
            h + (b * h_b + (t - 1) * h_t)[:, None] * UNIT + units[None, :], after[:, None] & (units < D)[None, :], 0.0
        )
        if initial is not None:
            at_first = there & (t == 0)
            if resets is not None:
                at_first = at_first & kept
            x0 = tl.load(
                initial + (b * initial_b + head * initial_n)[:, None] * UNIT + units[None, :],
                at_first[:, None] & (units < D)[None, :],
                0.0,
            )
            x = tl.where(at_first[:, None], x0.to(x.dtype), x)
        total += tl.dot(g, x, input_precision=PRECISION)
    place = units[:, None] * D + units[None, :]
    part = (tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * (D * D)
    tl.store(parts + part + place, total, (units[:, None] < D) & (units[None, :] < D))


def fill_weight_gradient(
    problem: Problem, inputs: Inputs, states: Tensor, d_gates: Sequence[Optional[Tensor]], into: Tensor
) -> None:
    """Fill the gradient of R [NR, NH, D, D].

    Args:
        problem, inputs: as the backward pass got them.
        states: [NS, B, T, NH, D], as forward returned them.
        d_gates: the gradients of all gates in order, in tensors [B, T, gates, NH, D]; those with a recurrent part are first.
        into: filled.
    """
    first = 0
    for some in d_gates:
        if some is not None:
            target = into[first : first + some.shape[2]]
            target.copy_(weight_gradient_parts(problem, inputs, states, some[:, :, : len(target)]).sum(0))
            first += len(target)


def weight_gradient_parts(problem: Problem, inputs: Inputs, states: Tensor, d_gates: Tensor) -> Tensor:
    """The gradients of the matrices of these gates in parts, [parts, gates, NH, D, D] float32."""
    tuning = plan_weights(problem, gates=d_gates.shape[2])
    shape = (tuning.parts, d_gates.shape[2], problem.num_heads, problem.head_dim, problem.head_dim)
    parts = torch.empty(shape, dtype=torch.float32, device=problem.device)
    initial = None if inputs.states is None else inputs.states[0]
    weight_gradient_kernel[(shape[1] * shape[2], tuning.parts)](
        d_gates,
        states[0],
        initial,
        as_bytes(inputs.resets),
        parts,
        **sizes(problem),
        **strides(problem, initial=(initial, "bn"), h=(states[0], "btn"), d_gates=(d_gates, "btgn")),
        **head_constants(problem),
        **tuning.keywords(),
    )
    return parts
