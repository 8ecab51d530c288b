"""The backward pass: one launch like the forward pass, back through time; the gradient of R follows, see gradients.py."""

# Without `from __future__ import annotations`: the interpreter of Triton 3.0 wants types, not their names.
from typing import Any, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrnn.problem import InputGradients, Inputs, OutputGradients, Outputs, Problem

from .cells import READS, step_backward
from .cells.activations import clamp
from .forward import recompute_saved
from .gradients import fill_weight_gradient
from .launch import as_bytes, as_float, constants, contiguous, run_time, sizes, strides
from .plan import plan, programs
from .tiles import (
    columns_of,
    known_units,
    lengths_of,
    load,
    matrix,
    place,
    product,
    reset_of,
    rows_first,
    store,
    store_last,
    tile_of,
)


@triton.jit
def state_before(
    READ: tl.constexpr, states, s: tl.constexpr, stride, t_stride, t, tile, initial, there, reset, UNIT: tl.constexpr
):
    """State s before step t, as it is stored and as it entered the step; if it is not read, what nobody uses."""
    if READ:
        later = tl.zeros(there.shape, tl.int32) < t  # a tile, because the interpreter cannot take `there & (t > 0)`
        stored = load(True, states + (t - 1) * t_stride * UNIT, s, stride, tile, there & later, UNIT)
        return stored, tl.where(reset, 0.0, tl.where(later, stored, initial))
    else:
        return initial, initial


@triton.jit
def through(k: tl.constexpr, NR: tl.constexpr, total, R, columns, SHARES: tl.constexpr, PRECISION: tl.constexpr):
    """total + R grad for gate k, if it has a recurrent part; R is turned."""
    if k < NR:
        return total + product(R, columns, SHARES, PRECISION)
    else:
        return total


@triton.jit(
    do_not_specialize=run_time(initial="sbn", states="sbtn", d_states="sbtn", d_last="sbn", d_Wx="btgn", d_initial="sbn")
)
def backward_kernel(
    R,
    initial,
    lengths,
    resets,
    states,
    saved,
    d_states,
    d_last,
    d_Wx,
    d_others,
    d_initial,
    d_b,
    h_bound,
    d_h_bound,
    B: tl.int32,
    T: tl.int32,
    NH: tl.int32,
    initial_s: tl.int64,
    initial_b: tl.int64,
    initial_n: tl.int64,
    states_s: tl.int64,
    states_b: tl.int64,
    states_t: tl.int64,
    states_n: tl.int64,
    d_states_s: tl.int64,
    d_states_b: tl.int64,
    d_states_t: tl.int64,
    d_states_n: tl.int64,
    d_last_s: tl.int64,
    d_last_b: tl.int64,
    d_last_n: tl.int64,
    d_Wx_b: tl.int64,
    d_Wx_t: tl.int64,
    d_Wx_g: tl.int64,
    d_Wx_n: tl.int64,
    d_initial_s: tl.int64,
    d_initial_b: tl.int64,
    d_initial_n: tl.int64,
    CELL: tl.constexpr,
    OLD: tl.constexpr,
    NEW: tl.constexpr,
    CUT: tl.constexpr,
    NS: tl.constexpr,
    ND: tl.constexpr,
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
    """Tensors as in `flashrnn.problem`; R, lengths and resets contiguous.

    Out: d_Wx, the gradients of the gates with an input part; d_others, contiguous [B, T, NG - NW, NH, D], those of the gates
    before them; d_initial; d_b [tiles of rows, NB, NH, D], to be summed. The first ND states have a gradient.
    """
    head, units, rows, there = place(B, NH, D, BLOCK_D, BLOCK_B, SHARES)
    R0 = matrix(0, NR, R, NH, head, True, D, BLOCK_D, SHARES)
    R1 = matrix(1, NR, R, NH, head, True, D, BLOCK_D, SHARES)
    R2 = matrix(2, NR, R, NH, head, True, D, BLOCK_D, SHARES)
    R3 = matrix(3, NR, R, NH, head, True, D, BLOCK_D, SHARES)
    tile = tile_of(units, rows, head, initial_b, initial_n, UNIT)
    h_initial = load(True, initial, 0, initial_s, tile, there, UNIT)
    c_initial = load(NS > 1, initial, 1, initial_s, tile, there, UNIT)
    n_initial = load(NS > 2, initial, 2, initial_s, tile, there, UNIT)
    tile = tile_of(units, rows, head, d_last_b, d_last_n, UNIT)
    dh = load(True, d_last, 0, d_last_s, tile, there, UNIT)
    dc = load(ND > 1, d_last, 1, d_last_s, tile, there, UNIT)
    dn = load(ND > 2, d_last, 2, d_last_s, tile, there, UNIT)
    db0 = tl.zeros_like(dh)
    db1 = tl.zeros_like(dh)
    db2 = tl.zeros_like(dh)
    db3 = tl.zeros_like(dh)

    ends = lengths_of(lengths, rows, B, T)
    reset = reset_of(resets, rows, ends, T - 1, T)
    states_tile = tile_of(units, rows, head, states_b, states_n, UNIT)
    d_states_tile = tile_of(units, rows, head, d_states_b, d_states_n, UNIT)
    d_Wx_tile = tile_of(units, rows, head, d_Wx_b, d_Wx_n, UNIT)
    others_stride = NH.to(tl.int64) * D
    others_tile = tile_of(units, rows, head, others_stride * T * (NG - NW), D, 1)
    saved_tile = tile_of(units, rows, head, D, B.to(tl.int64) * D, 1)
    saved_stride = NH.to(tl.int64) * B * D
    end = states + (T - 1).to(tl.int64) * states_t * UNIT
    h = load(NEW & 1, end, 0, states_s, states_tile, there, UNIT)
    c = load(NEW & 2, end, 1, states_s, states_tile, there, UNIT)
    n = load(NEW & 4, end, 2, states_s, states_tile, there, UNIT)
    for i in tl.range(0, T, num_stages=STAGES):
        t = T - 1 - i
        running = there
        if lengths is not None:
            running = there & (t < ends)
        saved_now = saved
        if saved is not None:
            saved_now = saved + t * saved_stride * NK
        a0 = load(NK > 0, saved_now, 0, saved_stride, saved_tile, running, 1)
        a1 = load(NK > 1, saved_now, 1, saved_stride, saved_tile, running, 1)
        a2 = load(NK > 2, saved_now, 2, saved_stride, saved_tile, running, 1)
        a3 = load(NK > 3, saved_now, 3, saved_stride, saved_tile, running, 1)
        h_stored, h_old = state_before(OLD & 1, states, 0, states_s, states_t, t, states_tile, h_initial, there, reset, UNIT)
        c_stored, c_old = state_before(OLD & 2, states, 1, states_s, states_t, t, states_tile, c_initial, there, reset, UNIT)
        n_stored, n_old = state_before(OLD & 4, states, 2, states_s, states_t, t, states_tile, n_initial, there, reset, UNIT)
        if (NEW & 1) and not (OLD & 1):
            h = load(True, states + t * states_t * UNIT, 0, states_s, states_tile, running, UNIT)
        if d_states is not None:
            outside = d_states + t * d_states_t * UNIT
            dh += load(True, outside, 0, d_states_s, d_states_tile, running, UNIT)
            dc += load(ND > 1, outside, 1, d_states_s, d_states_tile, running, UNIT)
            dn += load(ND > 2, outside, 2, d_states_s, d_states_tile, running, UNIT)

        d_step = dh
        if h_bound is not None:
            d_step = tl.where(tl.abs(h) >= h_bound, 0.0, dh)
        g0, g1, g2, g3, dh_old, dc_old, dn_old = step_backward(
            CELL, MATH, d_step, dc, dn, a0, a1, a2, a3, h_old, c_old, n_old, h, c, n
        )
        if lengths is not None:
            g0, g1 = tl.where(running, g0, 0.0), tl.where(running, g1, 0.0)
            g2, g3 = tl.where(running, g2, 0.0), tl.where(running, g3, 0.0)
        if d_others is not None:
            others = d_others + t * others_stride * (NG - NW)
            store(NG - NW > 0, others, 0, others_stride, others_tile, g0, there, 1)
            store(NG - NW > 1, others, 1, others_stride, others_tile, g1, there, 1)
            store(NG - NW > 2, others, 2, others_stride, others_tile, g2, there, 1)
        if d_Wx is not None:
            d_Wx_now = d_Wx + t * d_Wx_t * UNIT
            store_last(0, NG, NW, d_Wx_now, d_Wx_g, d_Wx_tile, g0, there, UNIT)
            store_last(1, NG, NW, d_Wx_now, d_Wx_g, d_Wx_tile, g1, there, UNIT)
            store_last(2, NG, NW, d_Wx_now, d_Wx_g, d_Wx_tile, g2, there, UNIT)
            store_last(3, NG, NW, d_Wx_now, d_Wx_g, d_Wx_tile, g3, there, UNIT)
        if d_b is not None:
            db0 += g0
            db1 += g1
            db2 += g2
            db3 += g3

        if not CUT:
            x0, x1, x2, x3 = columns_of(g0, R0), columns_of(g1, R1), columns_of(g2, R2), columns_of(g3, R3)
            dh_old = through(0, NR, dh_old, R0, x0, SHARES, PRECISION)
            dh_old = through(1, NR, dh_old, R1, x1, SHARES, PRECISION)
            dh_old = through(2, NR, dh_old, R2, x2, SHARES, PRECISION)
            dh_old = through(3, NR, dh_old, R3, x3, SHARES, PRECISION)
            dh_old = known_units(dh_old, units, D, BLOCK_D)
        if d_h_bound is not None:
            dh_old = clamp(dh_old, d_h_bound)
        if resets is not None:
            dh_old, dc_old, dn_old = tl.where(reset, 0.0, dh_old), tl.where(reset, 0.0, dc_old), tl.where(reset, 0.0, dn_old)
            reset = reset_of(resets, rows, ends, t - 1, T)  # long before it is needed
        if lengths is not None:
            dh_old, dc_old, dn_old = (
                tl.where(running, dh_old, dh),
                tl.where(running, dc_old, dc),
                tl.where(running, dn_old, dn),
            )
        dh, dc, dn = dh_old, dc_old, dn_old
        h, c, n = h_stored, c_stored, n_stored

    tile = tile_of(units, rows, head, d_initial_b, d_initial_n, UNIT)
    store(True, d_initial, 0, d_initial_s, tile, dh, there, UNIT)
    store(ND > 1, d_initial, 1, d_initial_s, tile, dc, there, UNIT)
    store(ND > 2, d_initial, 2, d_initial_s, tile, dn, there, UNIT)
    if d_b is not None:
        tiles = (tl.program_id(0) // NH).to(tl.int64)
        d_b_tile = (tiles * NB * NH + head) * D + rows_first(units)
        known = rows_first(units) < D
        store_last(0, NG, NB, d_b, NH * D, d_b_tile, tl.sum(rows_first(db0), 0, keep_dims=True), known, 1)
        store_last(1, NG, NB, d_b, NH * D, d_b_tile, tl.sum(rows_first(db1), 0, keep_dims=True), known, 1)
        store_last(2, NG, NB, d_b, NH * D, d_b_tile, tl.sum(rows_first(db2), 0, keep_dims=True), known, 1)
        store_last(3, NG, NB, d_b, NH * D, d_b_tile, tl.sum(rows_first(db3), 0, keep_dims=True), known, 1)


def backward(problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients) -> None:
    """Fill the gradients of the inputs."""
    cell, config = problem.cell, problem.config
    saved = recompute_saved(problem, inputs) if outputs.saved is None else outputs.saved
    d_others, d_Wx = gate_gradients(problem, into)
    tuning = plan(problem, "backward")
    count = programs(problem, tuning)
    shape = (count // problem.num_heads, len(cell.bias_gates), problem.num_heads, problem.head_dim)
    d_b = None if into.b is None else torch.empty(shape, dtype=torch.float32, device=problem.device)
    backward_kernel[(count,)](
        contiguous(inputs.R),
        inputs.states,
        contiguous(inputs.lengths),
        as_bytes(inputs.resets),
        outputs.states,
        saved,
        grads.states,
        grads.last_states,
        d_Wx,
        d_others,
        into.states,
        d_b,
        stored_clipval(problem),
        as_float(config.gradient_recurrent_clipval),
        **sizes(problem),
        **strides(
            problem,
            initial=(inputs.states, "sbn"),
            states=(outputs.states, "sbtn"),
            d_states=(grads.states, "sbtn"),
            d_last=(grads.last_states, "sbn"),
            d_Wx=(d_Wx, "btgn"),
            d_initial=(into.states, "sbn"),
        ),
        **constants(problem),
        **cell_constants(problem),
        **tuning.keywords(),
    )
    if into.states is not None:
        for name, d_state in zip(cell.states, into.states):
            if name in cell.constant_states:
                d_state.zero_()
    if into.b is not None and d_b is not None:
        into.b.copy_(d_b.sum(0))
    if into.R is not None:
        fill_weight_gradient(problem, inputs, outputs.states, [d_others, d_Wx], into.R)


def cell_constants(problem: Problem) -> dict[str, Any]:
    """Which states the kernel reads, which of them have a gradient, and whether there is none through R."""
    cell, config = problem.cell, problem.config
    reads = READS[cell.name]
    return {
        "OLD": reads.old,
        "NEW": reads.new | (config.forward_clipval is not None),
        "CUT": config.gradient_recurrent_cut,
        "ND": cell.num_states - len(cell.constant_states),
    }


def gate_gradients(problem: Problem, into: InputGradients) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """Where the gradients of the gates go, [B, T, gates, NH, D]: of those without an input part, and of the others.

    Straight into dWx where that is asked for; None where nobody needs them.
    """
    cell = problem.cell
    inputs = len(cell.input_gates)

    def needed(gates: int) -> Optional[Tensor]:
        shape = (problem.batch_size, problem.sequence_size, gates, problem.num_heads, problem.head_dim)
        return None if into.R is None or gates == 0 else torch.empty(shape, dtype=problem.dtype, device=problem.device)

    return needed(len(cell.gates) - inputs), needed(inputs) if into.Wx is None else into.Wx


def stored_clipval(problem: Problem) -> Optional[float]:
    """The bound of h as it looks where h is stored."""
    clipval = problem.config.forward_clipval
    return None if clipval is None else float(torch.tensor(clipval, dtype=problem.dtype))
