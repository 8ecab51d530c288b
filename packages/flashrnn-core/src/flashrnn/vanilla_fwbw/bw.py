"""Backward by hand: one loop over time against the arrow, then one product for all of dR."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import torch
from torch import Tensor

from ..blocks import block_length
from ..dtypes import accumulate_dtype, round_to
from ..layouts import INPUT, OUTPUT, rearrange, shape_of
from ..problem import InputGradients, Inputs, OutputGradients, Outputs, Problem
from ..vanilla import initial_states, masks, recurrent_matrices, recurrent_product, steps, was_clipped
from .memory import use_large_pages

Gradients = tuple[Optional[Tensor], ...]
"""One gradient [NH, B, D] a state; None is zero."""


@torch.inference_mode()
def backward(problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients) -> None:
    """Fill the gradients of the inputs, given those of the outputs and what forward left."""
    cell = problem.cell
    d_gates = gate_gradients(problem, into)
    use_large_pages(d_gates)
    d_initial = loop_back(problem, inputs, outputs, grads, d_gates)
    if into.Wx is not None and into.Wx is not d_gates:
        into.Wx.copy_(d_gates[:, :, -len(cell.input_gates) :])
    if into.R is not None:
        # Sum over rows and steps of (gate gradient) x (h before), as one product.
        d_recurrent = rearrange(d_gates[:, :, : len(cell.recurrent_gates)], INPUT, "GHBTD").flatten(2, 3)
        h = rearrange(previous_h(problem, inputs, outputs), "BTHD", "HBTD").flatten(1, 2)
        into.R.copy_(torch.matmul(h.mT, d_recurrent).mT)  # this way round it is faster than the transposed product
    if into.b is not None:
        into.b.copy_(torch.sum(d_gates[:, :, -len(cell.bias_gates) :], (0, 1)))
    if into.states is not None:
        for target, grad in zip(into.states, d_initial):
            target.zero_() if grad is None else rearrange(target, "BHD", "HBD").copy_(grad)


def gate_gradients(problem: Problem, into: InputGradients) -> Tensor:
    """Where the gradients of all gates go, [B, T, NG, NH, D]: straight into dWx where it has them all as they are.

    Else into memory in the same order, on which that of sums depends.
    """
    shape, dtype = shape_of(INPUT, {**problem.sizes, "G": len(problem.cell.gates)}), accumulate_dtype(problem.dtype)
    if into.Wx is not None and into.Wx.shape == shape and into.Wx.dtype == dtype:
        return into.Wx
    order = problem.config.input_shape
    own = torch.empty(shape_of(order, {**problem.sizes, "G": len(problem.cell.gates)}), dtype=dtype, device=problem.device)
    return rearrange(own, order, INPUT)


def loop_back(problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, d_gates: Tensor) -> Gradients:
    """Fill the gradients of all gates, return those of the initial states."""
    cell, config = problem.cell, problem.config
    R = recurrent_matrices(problem, inputs)
    padding, resets = masks(problem, inputs)
    outside = outside_gradients(problem, grads.states, padding)
    d_states = last_gradients(problem, grads.last_states)
    by_step, h = rearrange(d_gates, INPUT, "TGHBD").unbind(0), rearrange(outputs.states[0], "BTHD", "THBD")
    zero = R.new_zeros(h.shape[1:])
    for t, derivatives in steps_back(problem, inputs, outputs, resets):
        d_new = d_states if outside is None else tuple(map(add, d_states, outside[t]))
        d_step = [zero if x is None else x for x in d_new]
        if config.forward_clipval is not None:
            d_step[0] = d_step[0].masked_fill(was_clipped(problem, h[t]), 0)
        d_parts, d_old = cell.step_backward(d_step, derivatives)
        d_all = torch.stack(d_parts)
        if padding is not None:
            d_all.masked_fill_(padding[t], 0)
        by_step[t].copy_(d_all)
        d_old = (recurrent_gradient(problem, d_all, R, d_old[0]), *d_old[1:])
        if resets is not None:
            d_old = tuple(None if x is None else x.masked_fill(resets[t], 0) for x in d_old)
        if padding is not None:
            d_old = tuple(hold(padding[t], held, x) for held, x in zip(d_new, d_old))
        d_states = d_old
    return d_states


def recurrent_gradient(problem: Problem, d_gates: Tensor, R: Tensor, direct: Optional[Tensor]) -> Optional[Tensor]:
    """The gradient that reaches h from the next step: through R, plus the direct path; cut and clipped as configured."""
    config = problem.config
    total = direct
    if not config.gradient_recurrent_cut:
        total = add(torch.matmul(d_gates[: len(R)], R).sum(0), direct)
    v = config.gradient_recurrent_clipval
    return total if total is None or v is None else total.clamp(-v, v)


def add(x: Optional[Tensor], y: Optional[Tensor]) -> Optional[Tensor]:
    """x + y, where None is zero."""
    if x is None or y is None:
        return y if x is None else x
    return x + y


def hold(padding: Tensor, held: Optional[Tensor], x: Optional[Tensor]) -> Optional[Tensor]:
    """In padding a state stays as it is, and so does its gradient."""
    if held is None:
        return None if x is None else x.masked_fill(padding, 0)
    return held.masked_fill(~padding, 0) if x is None else torch.where(padding, held, x)


# ------------------------------------------------------------------------------ what forward left, with time and heads first


def steps_back(
    problem: Problem, inputs: Inputs, outputs: Outputs, resets: Optional[Tensor]
) -> Iterator[tuple[int, list[Tensor]]]:
    """Each step t and its derivatives [NH, B, D], the last step first; found for a block of steps at a time."""
    cell, accumulate = problem.cell, accumulate_dtype(problem.dtype)
    states, saved = rearrange(outputs.states, OUTPUT, "TSHBD"), saved_activations(problem, inputs, outputs)
    before = torch.stack(initial_states(problem, inputs)).unsqueeze(0)
    length, T = block_length(problem), problem.sequence_size
    for start in reversed(range(0, T, length)):
        stop = min(start + length, T)
        around = states[start - 1 : stop] if start > 0 else torch.cat([before, states[:stop]])
        around = around.to(accumulate).contiguous()
        old, new = around[:-1], around[1:]
        if resets is not None:
            old = old.masked_fill(resets[start:stop].unsqueeze(1), 0)
        found = cell.derivatives(saved[start:stop].to(accumulate).unbind(1), old.unbind(1), new.unbind(1))
        by_step = [x.unbind(0) for x in found]
        for t in reversed(range(start, stop)):
            yield t, [x[t - start] for x in by_step]


def previous_h(problem: Problem, inputs: Inputs, outputs: Outputs) -> Tensor:
    """The h that entered each step's product, contiguous [B, T, NH, D]."""
    first = rearrange(round_to(initial_states(problem, inputs)[0], problem.dtype), "HBD", "BHD").unsqueeze(1)
    h = torch.cat([first, outputs.states[0, :, :-1].to(first.dtype)], dim=1)
    return h if inputs.resets is None else h.masked_fill(inputs.resets[:, :, None, None], 0)


def saved_activations(problem: Problem, inputs: Inputs, outputs: Outputs) -> Tensor:
    """The activations of all steps, [T, K, NH, B, D]: saved ones, or computed again with one product for all steps."""
    if outputs.saved is not None:
        return outputs.saved
    if not problem.cell.saved:
        return inputs.R.new_empty((problem.sequence_size, 0))
    h = rearrange(previous_h(problem, inputs, outputs), "BTHD", "THBD").unsqueeze(1)
    products = recurrent_product(problem, h, recurrent_matrices(problem, inputs).mT)
    return torch.stack([torch.stack(saved) for _, saved in steps(problem, inputs, products)])


def outside_gradients(problem: Problem, grad: Optional[Tensor], padding: Optional[Tensor]) -> Optional[list[Gradients]]:
    """Gradients of the returned states by step and state; in padding, where the output is 0 whatever came, zero."""
    if grad is None:
        return None
    grad = rearrange(grad, "SBTHD", "TSHBD").to(accumulate_dtype(problem.dtype))
    if padding is not None:
        grad = grad.masked_fill(padding.unsqueeze(1), 0)
    return [constants_to_none(problem, step.unbind(0)) for step in grad.unbind(0)]


def last_gradients(problem: Problem, grad: Optional[Tensor]) -> Gradients:
    """Gradients of last_states by state."""
    if grad is None:
        return (None,) * problem.cell.num_states
    grad = rearrange(grad, "SBHD", "SHBD").to(accumulate_dtype(problem.dtype))
    return constants_to_none(problem, grad.unbind(0))


def constants_to_none(problem: Problem, grads: Gradients) -> Gradients:
    """The same, with nothing for the states that are constants for differentiation."""
    cell = problem.cell
    return tuple(None if name in cell.constant_states else x for name, x in zip(cell.states, grads))
