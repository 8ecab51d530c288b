"""The reference: a loop over the cell's step in plain torch, differentiated by ordinary autograd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, Optional, Union

import torch
from torch import Tensor
from torch.nn.functional import pad

from .backend import Backend
from .blocks import block_length
from .cells.spec import Tensors
from .dtypes import accumulate_dtype, round_to
from .errors import BackendUnavailable, ConfigError, ForwardModeError
from .layouts import OUTPUT, rearrange
from .problem import InputGradients, Inputs, OutputGradients, Outputs, Problem
from .scan import exports_any, is_exporting, scan


def steps(problem: Problem, inputs: Inputs, products: Optional[Tensor] = None) -> Iterator[tuple[Tensors, Tensors]]:
    """The states after each step and its saved activations, step by step; every tensor [NH, B, D].

    Their dtype is that in which products accumulate. `products`, [T, NR, NH, B, D], are the recurrent products where they
    are known already.
    """
    states, R_T, b = before_the_loop(problem, inputs)
    sequences, length = read_by_steps(problem, inputs, products), block_length(problem)
    for start in range(0, problem.sequence_size, length):
        block = prepared(problem, b, **{name: x[start : start + length] for name, x in sequences.items()})
        for now in zip(*(x.unbind(0) for x in block.values())):
            states, saved = step(problem, R_T, states, **dict(zip(block, now)))
            yield states, saved


def steps_at_once(problem: Problem, inputs: Inputs) -> tuple[list[Tensor], Tensor]:
    """The last states, [NH, B, D] each, and those after every step, [T, NS, NH, B, D]: in an exported graph for any T."""
    states, R_T, b = before_the_loop(problem, inputs)
    sequences = prepared(problem, b, **read_by_steps(problem, inputs))

    def new_states(*tensors: Tensor) -> list[Tensor]:
        *given, R_T = tensors
        new, _ = step(problem, R_T, given[: len(states)], **dict(zip(sequences, given[len(states) :])))
        return [*new, torch.stack(new)]

    return scan(new_states, states, list(sequences.values()), (R_T,))


# ------------------------------------------------------------------------------------------------------- before the loop


def before_the_loop(problem: Problem, inputs: Inputs) -> tuple[Tensors, Tensor, Tensor]:
    """The initial states, R transposed, and b, as every step takes them."""
    b = pad_gates(inputs.b.to(accumulate_dtype(problem.dtype)), before=len(problem.cell.gates) - len(inputs.b)).unsqueeze(2)
    return initial_states(problem, inputs), recurrent_matrices(problem, inputs).mT, b


def initial_states(problem: Problem, inputs: Inputs) -> Tensors:
    """NS initial states [NH, B, D]."""
    cell, accumulate = problem.cell, accumulate_dtype(problem.dtype)
    if inputs.states is None:
        return (
            inputs.R.new_zeros((problem.num_heads, problem.batch_size, problem.head_dim), dtype=accumulate),
        ) * cell.num_states
    states = rearrange(inputs.states, "SBHD", "SHBD").to(accumulate).contiguous().unbind(0)
    return tuple(x.detach() if name in cell.constant_states else x for name, x in zip(cell.states, states))


def recurrent_matrices(problem: Problem, inputs: Inputs) -> Tensor:
    """R in the dtype that products accumulate in; contiguous, for sums in one order whatever R's strides."""
    return inputs.R.to(accumulate_dtype(problem.dtype)).contiguous()


def pad_gates(x: Tensor, before: int = 0, after: int = 0) -> Tensor:
    """x [gates, ...] with zeros for the gates that miss this part: recurrent gates stand first, the others last."""
    if before == after == 0:
        return x
    return torch.cat([x.new_zeros((before, *x.shape[1:])), x, x.new_zeros((after, *x.shape[1:]))])


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


def read_by_steps(problem: Problem, inputs: Inputs, products: Optional[Tensor] = None) -> dict[str, Tensor]:
    """What steps read one entry of each, by the names in `prepared`; T is the first axis. What is missing is left out."""
    assert inputs.Wx is not None
    padding, resets = masks(problem, inputs)
    sequences = {"Wx": rearrange(inputs.Wx, "BTGHD", "TGHBD"), "padding": padding, "resets": resets, "product": products}
    return {name: x for name, x in sequences.items() if x is not None}


def prepared(
    problem: Problem, b: Tensor, Wx: Tensor, padding: Optional[Tensor] = None, **others: Tensor
) -> dict[str, Tensor]:
    """The same as `step` takes it, for any number of steps: Wx + b instead of Wx, in padding b alone, whatever Wx holds.

    That of the gates with a recurrent part is `given` [T, NR, NH, B, D], that of the others, if there are any, `alone`.
    """
    if padding is not None:
        Wx, others["padding"] = Wx.masked_fill(padding.unsqueeze(1), 0), padding
    NG, NR = len(problem.cell.gates), len(problem.cell.recurrent_gates)
    if Wx.shape[1] < NG:
        Wx = pad(Wx, (0, 0, 0, 0, 0, 0, NG - Wx.shape[1], 0))
    others["given"] = Wx + b
    if NR < NG:
        others["given"], others["alone"] = others["given"].split([NR, NG - NR], dim=1)
    return others


# ---------------------------------------------------------------------------------------------------------- inside the loop


def step(
    problem: Problem,
    R_T: Tensor,
    states: Sequence[Tensor],
    given: Tensor,
    alone: Optional[Tensor] = None,
    padding: Optional[Tensor] = None,
    resets: Optional[Tensor] = None,
    product: Optional[Tensor] = None,
) -> tuple[Tensors, Tensors]:
    """One step: the new states and the saved activations, given the old states and what `prepared` has for the step."""
    cell, config = problem.cell, problem.config
    if resets is not None:
        states = [x.masked_fill(resets, 0) for x in states]
    h = clip_gradient(states[0], config.gradient_recurrent_clipval)
    if product is None:
        product = recurrent_product(problem, h.detach() if config.gradient_recurrent_cut else h, R_T)
    options = {"dtype": problem.dtype} if cell.step_takes_dtype else {}
    new, saved = cell.step(preactivations(product, given, alone), (h, *states[1:]), **options)
    if config.forward_clipval is not None:
        new = (clip_state(problem, new[0]), *new[1:])
    if padding is not None:
        new = tuple(torch.where(padding, x_old, x_new) for x_old, x_new in zip(states, new))
    return new, saved


def recurrent_product(problem: Problem, h: Tensor, R_T: Tensor) -> Tensor:
    """R @ h for all gates, [NR, NH, B, D]: h is rounded to the problem's dtype, the product accumulates above it."""
    return torch.matmul(round_to(h, problem.dtype), R_T)


def preactivations(product: Tensor, given: Tensor, alone: Optional[Tensor]) -> Tensors:
    """The pre-activation of each gate, [NH, B, D]: of those with a product, [NR, NH, B, D], and of those without."""
    recurrent = (product + given).unbind(0)
    return recurrent if alone is None else (*recurrent, *alone.unbind(0))


def clip_gradient(h: Tensor, clipval: Optional[float]) -> Tensor:
    """h itself; the gradient that comes back through it is clipped to [-clipval, clipval]."""
    if clipval is None:
        return h
    if is_exporting():
        raise ConfigError("gradient_recurrent_clipval is lost when vanilla is exported: backend='vanilla_fwbw' keeps it.")
    clipped: Tensor = ClipGradient.apply(h, clipval)  # type: ignore[no-untyped-call]
    return clipped


class ClipGradient(torch.autograd.Function):
    """The identity, whose gradient is clipped: under torch.func's transforms and in exported graphs too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bound: float) -> Tensor:
        """x."""
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        """Keep the bound."""
        ctx.bound = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """The gradient, clipped."""
        return grad.clamp(-ctx.bound, ctx.bound), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        """Refused: a clipped gradient is not the transpose of a derivative."""
        raise ForwardModeError("gradient_recurrent_clipval clips gradients of the backward pass: there is no forward mode.")


def clip_state(problem: Problem, h: Tensor) -> Tensor:
    """h clipped to [-v, v], with gradient zero where it was clipped."""
    v = problem.config.forward_clipval
    assert v is not None
    clipped = h.clamp(-v, v)
    return torch.where(was_clipped(problem, clipped), clipped.detach(), clipped)


def was_clipped(problem: Problem, h: Tensor) -> Tensor:
    """Whether h, as it is stored, stands at the bound. Asked of the stored value, forward and backward answer alike."""
    v = problem.config.forward_clipval
    assert v is not None
    return round_to(h.detach(), problem.dtype).abs() >= round_to(h.new_full((), v), problem.dtype)


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
        """states [NS, B, T, NH, D] and last_states [NS, B, NH, D], with autograd."""
        last: Union[Tensors, list[Tensor]]
        if exports_any(problem.sequence_size):
            last, states = steps_at_once(problem, inputs)
        else:
            last, history = initial_states(problem, inputs), []
            for last, _ in steps(problem, inputs):
                history.append(torch.stack(last))
            states = torch.stack(history) if history else torch.stack(last).unsqueeze(0)[:0]
        padding, _ = masks(problem, inputs)
        if padding is not None:
            states = states.masked_fill(padding.unsqueeze(1), 0)
        states = rearrange(states, "TSHBD", OUTPUT).to(problem.dtype)
        last_states = rearrange(torch.stack(last), "SHBD", "SBHD").to(problem.states_dtype)
        # Without a step, or with the gradient cut, some input reaches no output. A sum of nothing connects it, so that its
        # gradient is zero as in every backend, not missing.
        nothing = torch.stack([x.flatten()[:0].sum(dtype=last_states.dtype) for x in inputs[:4] if x is not None]).sum()
        return states + nothing.to(states.dtype), last_states + nothing

    def forward(self, problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
        """Without autograd, should "auto" find nothing better. Named, `run` is called instead, for autograd to see."""
        states, last_states = self.run(problem, inputs)
        outputs.states.copy_(states)
        outputs.last_states.copy_(last_states)

    def backward(
        self, problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients
    ) -> None:
        """Refused: autograd differentiates `run`."""
        raise BackendUnavailable("vanilla is differentiated by autograd, which takes that it is named: backend='vanilla'.")


VANILLA = Vanilla()
