"""The reference: a loop over the cell's step in plain torch, differentiated by ordinary autograd."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch
from torch import Tensor
from torch.nn.functional import pad

from .backend import Backend
from .cells import CellSpec
from .cells.spec import Tensors
from .dtypes import accumulate_dtype, round_to
from .layouts import OUTPUT, rearrange, shape_of
from .problem import InputGradients, Inputs, OutputGradients, Outputs, Problem


class History(NamedTuple):
    """What a loop over time leaves: for each step the new states and the saved activations, and the states at the end.

    Each is a tuple of tensors [NH, B, D] in the dtype that products accumulate in.
    """

    states: list[Tensors]
    saved: list[Tensors]
    last: Tensors


def loop_over_time(problem: Problem, inputs: Inputs, products: Optional[Tensor] = None) -> History:
    """All T steps in order. `products`, [T, NH, B, NR, D], are the recurrent products where they are known already."""
    cell, config = problem.cell, problem.config
    states = initial_states(problem, inputs)
    matrix = recurrent_matrix(problem, inputs.R)
    padding, resets = masks(problem, inputs)
    history = History([], [], states)
    for t, fixed in enumerate(fixed_parts(problem, inputs, padding).unbind(0)):
        if resets is not None:
            states = tuple(x.masked_fill(resets[t], 0) for x in states)
        h = clip_gradient(states[0], config.gradient_recurrent_clipval)
        if products is None:
            product = recurrent_product(problem, h.detach() if config.gradient_recurrent_cut else h, matrix)
        else:
            product = products[t]
        new, saved = cell.step(add_recurrent(fixed, product), (h, *states[1:]))
        if config.forward_clipval is not None:
            new = (clip_state(problem, new[0]), *new[1:])
        if padding is not None:
            new = tuple(torch.where(padding[t], x_old, x_new) for x_old, x_new in zip(states, new))
        states = new
        history.states.append(states)
        history.saved.append(saved)
    return history._replace(last=states)


# ------------------------------------------------------------------------------------------------------- before the loop


def initial_states(problem: Problem, inputs: Inputs) -> Tensors:
    """NS initial states [NH, B, D]."""
    cell, accumulate = problem.cell, accumulate_dtype(problem.dtype)
    if inputs.states is None:
        return (inputs.R.new_zeros((problem.num_heads, problem.batch_size, problem.head_dim), dtype=accumulate),) * cell.num_states
    states = rearrange(inputs.states, "SBHD", "SHBD").to(accumulate).unbind(0)
    return tuple(x.detach() if name in cell.constant_states else x for name, x in zip(cell.states, states))


def recurrent_matrix(problem: Problem, R: Tensor) -> Tensor:
    """R as [NH, Din, NR * Dout], so that a product is h @ matrix; contiguous, for sums in one order whatever R's strides."""
    return rearrange(R.to(accumulate_dtype(problem.dtype)), "GHED", "HDGE").flatten(2).contiguous()


def fixed_parts(problem: Problem, inputs: Inputs, padding: Optional[Tensor]) -> Tensor:
    """What the gates of all steps hold before any recurrence, Wx + b, as [T, NH, B, NG, D] with every gate of the cell."""
    cell, accumulate = problem.cell, accumulate_dtype(problem.dtype)
    assert inputs.Wx is not None
    Wx = rearrange(inputs.Wx, "BTGHD", "THBGD").to(accumulate)
    if padding is not None:
        Wx = Wx.masked_fill(padding.unsqueeze(3), 0)
    b = rearrange(inputs.b, "GHD", "HGD").to(accumulate).unsqueeze(1)
    return (pad_gates(Wx, cell) + pad_gates(b, cell)).contiguous()


def pad_gates(x: Tensor, cell: CellSpec) -> Tensor:
    """x [..., some gates, D] with zeros for the gates that stand before them."""
    missing = len(cell.gates) - x.shape[-2]
    return pad(x, (0, 0, missing, 0)) if missing else x


def masks(problem: Problem, inputs: Inputs) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """Where there is padding, and where states are reset (never in padding), as [T, 1, B, 1]; None for nowhere."""
    padding = resets = None
    if inputs.lengths is not None:
        steps = torch.arange(problem.sequence_size, device=problem.device)
        padding = (steps[:, None] >= inputs.lengths)[:, None, :, None]
    if inputs.resets is not None:
        resets = inputs.resets.T[:, None, :, None]
        if padding is not None:
            resets = resets & ~padding
    return padding, resets


# ---------------------------------------------------------------------------------------------------------- inside the loop


def recurrent_product(problem: Problem, h: Tensor, matrix: Tensor) -> Tensor:
    """R @ h for all gates, [NH, B, NR, D]: h is rounded to the problem's dtype, the product accumulates above it."""
    return torch.matmul(round_to(h, problem.dtype), matrix).unflatten(-1, (-1, problem.head_dim))


def add_recurrent(fixed: Tensor, product: Tensor) -> Tensors:
    """Pre-activations of all gates: the recurrent ones, which stand first, plus their product; each [NH, B, D]."""
    NG, NR = fixed.shape[-2], product.shape[-2]
    if NG == NR:
        return (fixed + product).unbind(-2)
    return (*(fixed[..., :NR, :] + product).unbind(-2), *fixed[..., NR:, :].unbind(-2))


def clip_gradient(h: Tensor, clipval: Optional[float]) -> Tensor:
    """h itself; the gradient that comes back through it is clipped to [-clipval, clipval]."""
    if clipval is None or not (h.requires_grad and torch.is_grad_enabled()):
        return h
    h = h.view_as(h)
    h.register_hook(lambda grad: grad.clamp(-clipval, clipval))
    return h


def clip_state(problem: Problem, h: Tensor) -> Tensor:
    """h clipped to [-v, v], with gradient zero where it was clipped."""
    v = problem.config.forward_clipval
    assert v is not None
    clipped = h.clamp(-v, v)
    return torch.where(was_clipped(problem, clipped), clipped.detach(), clipped)


def was_clipped(problem: Problem, h: Tensor) -> Tensor:
    """Whether h, as it is stored, stands at the bound. Asked of the stored value, forward and backward answer alike."""
    bound = float(torch.tensor(problem.config.forward_clipval, dtype=problem.dtype))
    return round_to(h.detach(), problem.dtype).abs() >= bound


# --------------------------------------------------------------------------------------------------------- after the loop


def returned_states(problem: Problem, inputs: Inputs, history: History) -> tuple[Tensor, Tensor]:
    """states [NS, B, T, NH, D] and last_states [NS, B, NH, D] of a history, in the dtypes they are returned in."""
    last_states = rearrange(torch.stack(history.last), "SHBD", "SBHD").to(problem.states_dtype)
    if not history.states:
        return last_states.new_empty(shape_of(OUTPUT, problem.sizes), dtype=problem.dtype), last_states
    states = torch.stack([torch.stack(steps) for steps in zip(*history.states)])
    padding, _ = masks(problem, inputs)
    if padding is not None:
        states = states.masked_fill(padding, 0)
    return rearrange(states, "STHBD", OUTPUT).to(problem.dtype), last_states


class Vanilla(Backend):
    """`vanilla`: any device, float16 to float64, first and second derivatives. Not an op: autograd records the loop."""

    name = "vanilla"
    priority = -20
    interface_version = 1
    is_reference = True

    def why_not(self, problem: Problem) -> Optional[str]:
        """Never: it solves every problem."""
        return None

    def run(self, problem: Problem, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """states and last_states, with autograd."""
        states, last_states = returned_states(problem, inputs, loop_over_time(problem, inputs))
        # Without a step, or with the gradient cut, some input reaches no output. A sum of nothing connects it, so that its
        # gradient is zero as in every backend, not missing.
        nothing = sum(x.flatten()[:0].sum(dtype=last_states.dtype) for x in inputs[:4] if x is not None)
        return states + nothing.to(states.dtype), last_states + nothing

    def forward(self, problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
        """Not called: core calls `run`, for autograd to see."""
        raise NotImplementedError

    def backward(
        self, problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients
    ) -> None:
        """Not called: autograd differentiates `run`."""
        raise NotImplementedError


VANILLA = Vanilla()
