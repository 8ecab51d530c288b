"""Backward by hand: one loop over time against the arrow, then one product for all of dR."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from ..dtypes import accumulate_dtype, round_to
from ..layouts import rearrange
from ..problem import InputGradients, Inputs, OutputGradients, Outputs, Problem
from ..vanilla import initial_states, loop_over_time, masks, recurrent_matrix, recurrent_product, was_clipped

Gradients = tuple[Optional[Tensor], ...]
"""One gradient [NH, B, D] a state; None is zero."""


def backward(problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients) -> None:
    """Fill the gradients of the inputs, given those of the outputs and what forward left."""
    states = all_states(problem, inputs, outputs)
    d_gates, d_initial = loop_back(problem, inputs, states, saved_activations(problem, inputs, outputs, states), grads)
    if into.Wx is not None:
        d_input = d_gates[..., -len(problem.cell.input_gates) :, :]
        rearrange(into.Wx, "BTGHD", "THBGD").copy_(d_input)
    if into.R is not None:
        rearrange(into.R, "GHDE", "HGDE").copy_(gradient_of_R(problem, inputs, states, d_gates))
    if into.b is not None:
        d_bias = d_gates[..., -len(problem.cell.bias_gates) :, :]
        rearrange(into.b, "GHD", "HGD").copy_(d_bias.sum((0, 2)))
    if into.states is not None:
        for target, grad in zip(into.states, d_initial):
            target.zero_() if grad is None else rearrange(target, "BHD", "HBD").copy_(grad)


def loop_back(
    problem: Problem, inputs: Inputs, states: Tensor, saved: Tensor, grads: OutputGradients
) -> tuple[Tensor, Gradients]:
    """Gradients of all gates [T, NH, B, NG, D], and of the initial states."""
    cell, config, T = problem.cell, problem.config, problem.sequence_size
    padding, resets = masks(problem, inputs)
    matrix = recurrent_matrix(problem, inputs.R).transpose(1, 2).contiguous()
    outside = outside_gradients(problem, grads.states, padding)
    d_states = last_gradients(problem, grads.last_states)
    d_gates = states.new_empty((T, *states.shape[2:4], len(cell.gates), problem.head_dim))
    for t in reversed(range(T)):
        old, new = states[t].unbind(0), states[t + 1].unbind(0)
        if resets is not None:
            old = tuple(x.masked_fill(resets[t], 0) for x in old)
        d_new = d_states if outside is None else tuple(map(add, d_states, outside[t]))
        d_step = [x if x is not None else torch.zeros_like(new[0]) for x in d_new]
        if config.forward_clipval is not None:
            d_step[0] = d_step[0].masked_fill(was_clipped(problem, new[0]), 0)
        d_parts, d_old = cell.step_backward(d_step, saved[t].unbind(0), old, new)
        torch.stack(d_parts, dim=2, out=d_gates[t])
        if padding is not None:
            d_gates[t].masked_fill_(padding[t].unsqueeze(3), 0)
        d_old = (recurrent_gradient(problem, d_gates[t], matrix, d_old[0]), *d_old[1:])
        if resets is not None:
            d_old = tuple(None if x is None else x.masked_fill(resets[t], 0) for x in d_old)
        if padding is not None:
            d_old = tuple(hold(padding[t], held, x) for held, x in zip(d_new, d_old))
        d_states = d_old
    return d_gates, d_states


def recurrent_gradient(problem: Problem, d_gates: Tensor, matrix: Tensor, direct: Optional[Tensor]) -> Optional[Tensor]:
    """The gradient that reaches h from the next step: through R, plus the direct path; cut and clipped as configured."""
    config = problem.config
    total = direct
    if not config.gradient_recurrent_cut:
        num_recurrent = len(problem.cell.recurrent_gates)
        total = add(torch.matmul(d_gates[:, :, :num_recurrent].flatten(2), matrix), direct)
    v = config.gradient_recurrent_clipval
    return total if total is None or v is None else total.clamp(-v, v)


def add(x: Optional[Tensor], y: Optional[Tensor]) -> Optional[Tensor]:
    """x + y, where None is zero."""
    if x is None or y is None:
        return y if x is None else x
    return x + y


def hold(padding: Tensor, held: Optional[Tensor], x: Optional[Tensor]) -> Optional[Tensor]:
    """In padding a state stays as it is, and so does its gradient."""
    if held is None and x is None:
        return None
    some = held if held is not None else x
    zero = torch.zeros_like(some)
    return torch.where(padding, zero if held is None else held, zero if x is None else x)


# -------------------------------------------------------------------------------- what forward left, with time and heads first


def all_states(problem: Problem, inputs: Inputs, outputs: Outputs) -> Tensor:
    """States before the first step and after each, [T + 1, NS, NH, B, D], as they are stored."""
    initial = torch.stack(initial_states(problem, inputs)).unsqueeze(0)
    return torch.cat([initial, rearrange(outputs.states, "SBTHD", "TSHBD").to(initial.dtype)])


def previous_h(problem: Problem, inputs: Inputs, states: Tensor) -> Tensor:
    """The h that entered each step's product, [T, NH, B, D]."""
    _, resets = masks(problem, inputs)
    h = round_to(states[:-1, 0], problem.dtype)
    return h if resets is None else h.masked_fill(resets, 0)


def saved_activations(problem: Problem, inputs: Inputs, outputs: Outputs, states: Tensor) -> Tensor:
    """The activations of all steps, [T, K, NH, B, D]: saved ones, or computed again with one product for all steps."""
    shape = (problem.sequence_size, len(problem.cell.saved), *states.shape[2:])
    if outputs.saved is not None:
        return rearrange(outputs.saved, "TBKHD", "TKHBD").to(states.dtype)
    if not problem.cell.saved:
        return states.new_empty(shape)
    products = recurrent_product(problem, previous_h(problem, inputs, states), recurrent_matrix(problem, inputs.R))
    history = loop_over_time(problem, inputs, products)
    return torch.stack([torch.stack(step) for step in history.saved])


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


def gradient_of_R(problem: Problem, inputs: Inputs, states: Tensor, d_gates: Tensor) -> Tensor:
    """Sum over steps and rows of (gate gradient) x (h before), as one product: [NH, NR, Dout, Din]."""
    num_recurrent = len(problem.cell.recurrent_gates)
    left = rearrange(d_gates[..., :num_recurrent, :], "THBGD", "HGDTB").flatten(3).flatten(1, 2)
    right = rearrange(previous_h(problem, inputs, states), "THBD", "HTBD").flatten(1, 2)
    return torch.matmul(left, right).unflatten(1, (num_recurrent, problem.head_dim))
