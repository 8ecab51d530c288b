"""The forward pass: one launch, whose programs loop over time with R on the chip."""

# Without `from __future__ import annotations`: the interpreter of Triton 3.0 wants types, not their names.
from typing import Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrnn.problem import Inputs, Outputs, Problem

from .cells import step
from .cells.activations import clamp
from .launch import as_bytes, as_float, constants, contiguous, run_time, sizes, strides
from .plan import plan, programs
from .tiles import columns_of, known_units, lengths_of, load, load_last, matrix, place, product, reset_of, store, tile_of


@triton.jit
def preactivation(
    k: tl.constexpr,
    NG: tl.constexpr,
    NR: tl.constexpr,
    NW: tl.constexpr,
    R,
    x,
    Wx,
    gate_stride,
    tile,
    running,
    bias,
    UNIT: tl.constexpr,
    SHARES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Of gate k, a float32 tile: the sum of the parts it has."""
    total = load_last(k, NG, NW, Wx, gate_stride, tile, running, UNIT) + bias
    if k < NR:
        total += product(R, x, SHARES, PRECISION)
    return total


@triton.jit(do_not_specialize=run_time(Wx="btgn", initial="sbn", states="sbtn", last="sbn"))
def forward_kernel(
    Wx,
    R,
    b,
    initial,
    lengths,
    resets,
    states,
    last,
    saved,
    clipval,
    B: tl.int32,
    T: tl.int32,
    NH: tl.int32,
    Wx_b: tl.int64,
    Wx_t: tl.int64,
    Wx_g: tl.int64,
    Wx_n: tl.int64,
    initial_s: tl.int64,
    initial_b: tl.int64,
    initial_n: tl.int64,
    states_s: tl.int64,
    states_b: tl.int64,
    states_t: tl.int64,
    states_n: tl.int64,
    last_s: tl.int64,
    last_b: tl.int64,
    last_n: tl.int64,
    CELL: tl.constexpr,
    NS: tl.constexpr,
    NG: tl.constexpr,
    NR: tl.constexpr,
    NW: tl.constexpr,
    NB: tl.constexpr,
    NK: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_B: tl.constexpr,
    SHARES: tl.constexpr,
    UNIT: tl.constexpr,
    PRECISION: tl.constexpr,
    MATH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Tensors as in `flashrnn.problem`; R, b, lengths and resets contiguous."""
    head, units, rows, there = place(B, NH, D, BLOCK_D, BLOCK_B, SHARES)
    R0 = matrix(0, NR, R, NH, head, False, D, BLOCK_D, SHARES)
    R1 = matrix(1, NR, R, NH, head, False, D, BLOCK_D, SHARES)
    R2 = matrix(2, NR, R, NH, head, False, D, BLOCK_D, SHARES)
    R3 = matrix(3, NR, R, NH, head, False, D, BLOCK_D, SHARES)
    b0 = load_last(0, NG, NB, b, NH * D, head * D + units, units < D, 1)
    b1 = load_last(1, NG, NB, b, NH * D, head * D + units, units < D, 1)
    b2 = load_last(2, NG, NB, b, NH * D, head * D + units, units < D, 1)
    b3 = load_last(3, NG, NB, b, NH * D, head * D + units, units < D, 1)
    tile = tile_of(units, rows, head, initial_b, initial_n, UNIT)
    h = load(True, initial, 0, initial_s, tile, there, UNIT)
    c = load(NS > 1, initial, 1, initial_s, tile, there, UNIT)
    n = load(NS > 2, initial, 2, initial_s, tile, there, UNIT)
    m = load(NS > 3, initial, 3, initial_s, tile, there, UNIT)

    ends = lengths_of(lengths, rows, B, T)
    reset = reset_of(resets, rows, ends, 0, T)
    Wx_tile = tile_of(units, rows, head, Wx_b, Wx_n, UNIT)
    states_tile = tile_of(units, rows, head, states_b, states_n, UNIT)
    saved_tile = tile_of(units, rows, head, D, B.to(tl.int64) * D, 1)
    saved_stride = NH.to(tl.int64) * B * D
    for t in tl.range(0, T, num_stages=STAGES):
        running = there
        if lengths is not None:
            running = there & (t < ends)
        if resets is not None:
            h, c, n, m = tl.where(reset, 0.0, h), tl.where(reset, 0.0, c), tl.where(reset, 0.0, n), tl.where(reset, 0.0, m)
            reset = reset_of(resets, rows, ends, t + 1, T)  # long before it is needed

        x = columns_of(h, R0)
        Wx_now = Wx + t * Wx_t * UNIT
        g0 = preactivation(0, NG, NR, NW, R0, x, Wx_now, Wx_g, Wx_tile, running, b0, UNIT, SHARES, PRECISION)
        g1 = preactivation(1, NG, NR, NW, R1, x, Wx_now, Wx_g, Wx_tile, running, b1, UNIT, SHARES, PRECISION)
        g2 = preactivation(2, NG, NR, NW, R2, x, Wx_now, Wx_g, Wx_tile, running, b2, UNIT, SHARES, PRECISION)
        g3 = preactivation(3, NG, NR, NW, R3, x, Wx_now, Wx_g, Wx_tile, running, b3, UNIT, SHARES, PRECISION)
        h_new, c_new, n_new, m_new, a0, a1, a2, a3 = step(CELL, MATH, Wx.dtype.element_ty, g0, g1, g2, g3, h, c, n, m)
        if clipval is not None:
            h_new = clamp(h_new, clipval)
        h_new = known_units(h_new, units, D, BLOCK_D)

        if saved is not None:
            saved_now = saved + t * saved_stride * NK
            store(NK > 0, saved_now, 0, saved_stride, saved_tile, a0, there, 1)
            store(NK > 1, saved_now, 1, saved_stride, saved_tile, a1, there, 1)
            store(NK > 2, saved_now, 2, saved_stride, saved_tile, a2, there, 1)
            store(NK > 3, saved_now, 3, saved_stride, saved_tile, a3, there, 1)
        if states is not None:
            states_now = states + t * states_t * UNIT
            store(NS > 0, states_now, 0, states_s, states_tile, tl.where(running, h_new, 0.0), there, UNIT)
            store(NS > 1, states_now, 1, states_s, states_tile, tl.where(running, c_new, 0.0), there, UNIT)
            store(NS > 2, states_now, 2, states_s, states_tile, tl.where(running, n_new, 0.0), there, UNIT)
            store(NS > 3, states_now, 3, states_s, states_tile, tl.where(running, m_new, 0.0), there, UNIT)
        if lengths is None:
            h, c, n, m = h_new, c_new, n_new, m_new
        else:
            h, c = tl.where(running, h_new, h), tl.where(running, c_new, c)
            n, m = tl.where(running, n_new, n), tl.where(running, m_new, m)

    tile = tile_of(units, rows, head, last_b, last_n, UNIT)
    store(NS > 0, last, 0, last_s, tile, h, there, UNIT)
    store(NS > 1, last, 1, last_s, tile, c, there, UNIT)
    store(NS > 2, last, 2, last_s, tile, n, there, UNIT)
    store(NS > 3, last, 3, last_s, tile, m, there, UNIT)


def forward(problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
    """Fill the outputs."""
    run(problem, inputs, outputs.states, outputs.last_states, outputs.saved)


def recompute_saved(problem: Problem, inputs: Inputs) -> Optional[Tensor]:
    """The activations [T, K, NH, B, D] that forward did not save, by running it again; None where the cell has none."""
    count = len(problem.cell.saved)
    if count == 0:
        return None
    shape = (problem.sequence_size, count, problem.num_heads, problem.batch_size, problem.head_dim)
    saved = torch.empty(shape, dtype=problem.dtype, device=problem.device)
    run(problem, inputs, states=None, last_states=None, saved=saved)
    return saved


def run(
    problem: Problem, inputs: Inputs, states: Optional[Tensor], last_states: Optional[Tensor], saved: Optional[Tensor]
) -> None:
    """Launch the kernel; what is None is not written."""
    tuning = plan(problem, "forward")
    forward_kernel[(programs(problem, tuning),)](
        inputs.Wx,
        contiguous(inputs.R),
        contiguous(inputs.b),
        inputs.states,
        contiguous(inputs.lengths),
        as_bytes(inputs.resets),
        states,
        last_states,
        saved,
        as_float(problem.config.forward_clipval),
        **sizes(problem),
        **strides(
            problem,
            Wx=(inputs.Wx, "btgn"),
            initial=(inputs.states, "sbn"),
            states=(states, "sbtn"),
            last=(last_states, "sbn"),
        ),
        **constants(problem),
        **tuning.keywords(),
    )
