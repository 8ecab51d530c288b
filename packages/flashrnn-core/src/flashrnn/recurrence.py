"""The recurrence as one differentiable operation: the only autograd site, shared by every backend.

Where more than autograd takes part in a call (torch.compile, torch.export, torch.func, modes, subclasses of Tensor), a pair
of torch.library ops stands between the user's tensors and a backend, so that all see one opaque call. Their arguments: the
tensors in the order of `Inputs`, then the fields of FlashRNNConfig in order. A plain call goes past them: they would take a
third of the time that it keeps the CPU busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, reduce
from operator import or_
from typing import Any, Callable, NoReturn, Optional

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.autograd.forward_ad import unpack_dual
from torch.nn import Parameter

from .config import FlashRNNConfig
from .discovery import choose
from .dtypes import autocast_is_on
from .errors import DoubleBackwardError, ForwardModeError, TransformError
from .layouts import OUTPUT, rearrange
from .problem import Inputs, Problem, shared_problem
from .tensors import (
    Gradients,
    Results,
    allocate_gradients,
    allocate_results,
    cast,
    cast_inputs,
    fit_gradients,
    fit_inputs,
    problem_of,
    view_gradients,
    view_results,
)
from .vanilla import VANILLA

OPTIONS = (
    "str function, str backend, ScalarType dtype, float? forward_clipval, float? gradient_recurrent_clipval, "
    "bool gradient_recurrent_cut, str input_shape, str output_shape, bool recompute"
)
NUM_DIFFERENTIABLE = 4  # Wx, R, b, states


def recurrence(config: FlashRNNConfig, given: Inputs) -> tuple[Tensor, Tensor]:
    """(states, last_states) of checked tensors, in the axis orders of `config`, whose dtype is settled."""
    if config.backend == VANILLA.name:
        states, last_states = reference(config, given)
    else:
        refuse_forward_mode(config, given)
        if is_plain(given):
            states, last_states, _ = differentiable(forward, config, given)
        else:
            states, last_states, _ = torch.ops.flashrnn.recurrence(*given, *config.values(), False)
    return states, last_states.unsqueeze(config.output_shape.index("T"))


def refuse_forward_mode(config: FlashRNNConfig, given: Inputs) -> None:
    """Raise for a tensor with a tangent, which would be dropped in silence."""
    some = [x for x in [*given][:NUM_DIFFERENTIABLE] if x is not None]  # a slice of the tuple stops PyTorch 2.8's compiler
    if not torch.compiler.is_compiling() and any(unpack_dual(x).tangent is not None for x in some):
        raise ForwardModeError(
            f"backend {config.backend!r} has reverse-mode derivatives only; backend='vanilla' has forward-mode ones: "
            "name it in the call, or in the layer."
        )


KEYS = ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA", "ADInplaceOrView", "BackendSelect")
PLAIN = reduce(or_, (DispatchKeySet(getattr(DispatchKey, key)) for key in KEYS))


def is_plain(tensors: Sequence[Optional[Tensor]]) -> bool:
    """Whether PyTorch would find nothing to do for a call with these tensors but autograd and the computation itself."""
    if torch.compiler.is_compiling():
        return False
    keys = torch._C._dispatch_tls_local_include_set()
    for x in tensors:
        if x is not None:
            if type(x) not in (Tensor, Parameter) or x.is_meta:
                return False
            keys |= torch._C._dispatch_keys(x)
    return (keys - PLAIN).highestPriorityTypeId() == DispatchKey.Undefined and torch._C._len_torch_function_stack() == 0


def reference(config: FlashRNNConfig, given: Inputs) -> tuple[Tensor, Tensor]:
    """The same by vanilla, in plain sight of autograd, which saves what it needs itself."""
    problem = forward_problem(config, given, requires_grad=False)
    with without_autocast(problem.device):
        states, last_states = VANILLA.run(problem, cast_inputs(problem, given))
    return rearrange(states, OUTPUT, config.output_shape).contiguous(), last_states.contiguous()


# ---------------------------------------------------------------------------------------------------------------- forward


def forward(config: FlashRNNConfig, given: Inputs, requires_grad: bool) -> Results:
    """Pose the problem, choose its backend, let it fill the results."""
    problem = forward_problem(config, given, requires_grad, shared_problem)
    results = allocate_results(problem, like=given.R)
    inputs, outputs = fit_inputs(problem, given), view_results(problem, results)
    with current_device(problem.device), without_autocast(problem.device):
        backend = choose(problem)
        if not problem.is_empty:
            backend.forward(problem, inputs, outputs)
        elif inputs.states is None:
            outputs.last_states.zero_()
        else:
            outputs.last_states.copy_(inputs.states)
    return results


def forward_problem(
    config: FlashRNNConfig, given: Inputs, requires_grad: bool, make: Callable[..., Problem] = Problem
) -> Problem:
    """The problem as the forward pass meets it."""
    assert given.Wx is not None
    return problem_of(config, given, given.Wx, config.input_shape, states_dtype(config, given), requires_grad, make)


def states_dtype(config: FlashRNNConfig, given: Inputs) -> torch.dtype:
    """The dtype of the initial states and of last_states."""
    assert isinstance(config.dtype, torch.dtype)
    return config.dtype if given.states is None else given.states.dtype


def current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` current, so that a backend launches there."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Keep an autocast region around the call away from a backend's own arithmetic."""
    return torch.autocast(device.type, enabled=False) if autocast_is_on(device.type) else nullcontext()


# ------------------------------------------------------------------------------------------------------- differentiation

Run = Callable[[FlashRNNConfig, Inputs, bool], Results]
"""`forward` itself, or by its op."""


def differentiable(run: Run, config: FlashRNNConfig, given: Inputs, requires_grad: bool = False) -> Results:
    """What `run` computes, known to autograd if a gradient may be asked for.

    Args:
        requires_grad: whether that is known already, as in a graph where autograd is done with the call.
    """
    differentiated = [x is not None and x.requires_grad for x in given[:NUM_DIFFERENTIABLE]]
    if not (torch.is_grad_enabled() and any(differentiated)):
        return run(config, given, requires_grad)
    if torch._C._are_functorch_transforms_active():
        raise TransformError(
            f"backend {config.backend!r} has no derivatives for torch.func (grad, vjp, jacrev, ...): use "
            "torch.autograd, or backend='vanilla'."
        )
    apply: Any = _Recurrence.apply
    return apply(run, config, *given)


class _Recurrence(torch.autograd.Function):
    """The forward pass, whose derivative is the backward pass.

    last_states are not saved, so they may be changed in place: the backward pass gets an empty tensor in their place.
    """

    @staticmethod
    def forward(ctx: Any, run: Run, config: FlashRNNConfig, *tensors: Optional[Tensor]) -> Results:
        given = Inputs._make(tensors)
        assert given.Wx is not None
        ctx.run, ctx.config, ctx.input_dtype = run, config, given.Wx.dtype
        ctx.set_materialize_grads(False)
        results = run(config, given, True)
        every, _, activations = results
        ctx.save_for_backward(every, activations, given.Wx if config.recompute else None, *tensors[1:])
        return results

    @staticmethod
    def backward(ctx: Any, *grads: Optional[Tensor]) -> tuple[Any, ...]:
        states, last_states, _ = grads
        every, activations, *tensors = ctx.saved_tensors  # read once: checkpointing forbids a second time
        given = Inputs._make(tensors)
        results = every, every.new_empty(0, dtype=states_dtype(ctx.config, given)), activations
        needs = ctx.needs_input_grad[2 : 2 + NUM_DIFFERENTIABLE]
        plain = ctx.run is forward and is_plain((states, last_states)) and not torch.is_grad_enabled()
        run = backward if plain else backward_by_op
        dWx, dR, db, d_states = run(ctx.config, given, results, states, last_states, needs)
        dWx = None if dWx is None else cast(dWx, ctx.input_dtype)
        return None, None, dWx, dR, db, d_states, None, None


# --------------------------------------------------------------------------------------------------------------- backward


def backward(
    config: FlashRNNConfig,
    given: Inputs,
    results: Results,
    grad_states: Optional[Tensor],
    grad_last_states: Optional[Tensor],
    needs: Sequence[bool],
) -> Gradients:
    """The same problem again, and the gradients that are needed of Wx, R, b and states."""
    problem = backward_problem(config, given, results, shared_problem)
    gradients = allocate_gradients(problem, needs, given)
    into, grads = view_gradients(problem, gradients), fit_gradients(problem, grad_states, grad_last_states)
    with current_device(problem.device), without_autocast(problem.device):
        if problem.is_empty:
            _pass_through(problem, grads.last_states, gradients)
        else:
            inputs, outputs = fit_inputs(problem, given), view_results(problem, results)
            choose(problem).backward(problem, inputs, outputs, grads, into)
    return gradients


def backward_problem(
    config: FlashRNNConfig, given: Inputs, results: Results, make: Callable[..., Problem] = Problem
) -> Problem:
    """The problem as the backward pass meets it: Wx may be gone, so sizes are read from the results."""
    return problem_of(config, given, results[0], config.output_shape, states_dtype(config, given), True, make)


def _pass_through(problem: Problem, grad_last_states: Optional[Tensor], gradients: Gradients) -> None:
    """Gradients of no step at all: last_states are the initial states, and depend on nothing else."""
    for x in gradients:
        if x is not None:
            x.zero_()
    *_, states = gradients
    if grad_last_states is not None and states is not None:
        for name, into, grad in zip(problem.cell.states, states, grad_last_states):
            if name not in problem.cell.constant_states:
                into.copy_(grad)


# -------------------------------------------------------------------------------------------------------------------- ops


def forward_by_op(config: FlashRNNConfig, given: Inputs, requires_grad: bool) -> Results:
    """`forward` as one call that PyTorch sees."""
    return _below_autograd(torch.ops.flashrnn.recurrence, *given, *config.values(), requires_grad)


def backward_by_op(config: FlashRNNConfig, given: Inputs, results: Results, *grads_and_needs: Any) -> Gradients:
    """`backward` as one call that PyTorch sees."""
    *_, needs = grads_and_needs
    args = (*given, *config.values(), *_without_none(results, given), *grads_and_needs)
    Wx, R, b, states = (x if need else None for x, need in zip(torch.ops.flashrnn.recurrence_backward(*args), needs))
    return Wx, R, b, states


def _below_autograd(op: Any, *args: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return op(*args)


def _without_none(tensors: Sequence[Optional[Tensor]], given: Inputs) -> tuple[Tensor, ...]:
    """The same with an empty tensor for each None: an op returns nothing else."""
    return tuple(given.R.new_empty(0) if x is None else x for x in tensors)


torch.library.define(
    "flashrnn::recurrence",
    "(Tensor Wx, Tensor R, Tensor b, Tensor? states, Tensor? lengths, Tensor? resets, "
    f"{OPTIONS}, bool requires_grad) -> (Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("flashrnn::recurrence", "default")
def _recurrence(*args: Any) -> tuple[Tensor, ...]:
    *tensors_and_options, requires_grad = args
    config, given = _split(tensors_and_options)
    return _without_none(forward(config, given, requires_grad), given)


@torch.library.register_fake("flashrnn::recurrence")
def _recurrence_fake(*args: Any) -> tuple[Tensor, ...]:
    *tensors_and_options, requires_grad = args
    config, given = _split(tensors_and_options)
    return _without_none(allocate_results(forward_problem(config, given, requires_grad), like=given.R), given)


# torch.library.register_autograd would do the same for every op, and cost 0.1 to 0.4 ms a call.
@torch.library.impl("flashrnn::recurrence", "Autograd")
def _recurrence_autograd(*args: Any) -> Results:
    *tensors_and_options, requires_grad = args
    return differentiable(forward_by_op, *_split(tensors_and_options), requires_grad)


def _split(tensors_and_options: list[Any]) -> tuple[FlashRNNConfig, Inputs]:
    count = len(Inputs._fields)
    return _config(*tensors_and_options[count:]), Inputs(*tensors_and_options[:count])


_config = lru_cache(maxsize=1024)(FlashRNNConfig)


torch.library.define(
    "flashrnn::recurrence_backward",
    f"(Tensor? Wx, Tensor R, Tensor b, Tensor? states, Tensor? lengths, Tensor? resets, {OPTIONS}, "
    "Tensor all_states, Tensor last_states, Tensor saved, Tensor? grad_states, Tensor? grad_last_states, bool[] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("flashrnn::recurrence_backward", "default")
def _recurrence_backward(*args: Any) -> tuple[Tensor, ...]:
    *tensors_and_options, all_states, last_states, saved, grad_states, grad_last_states, needs = args
    config, given = _split(tensors_and_options)
    results = (all_states, last_states, saved)
    return _without_none(backward(config, given, results, grad_states, grad_last_states, needs), given)


@torch.library.register_fake("flashrnn::recurrence_backward")
def _recurrence_backward_fake(*args: Any) -> tuple[Tensor, ...]:
    *tensors_and_options, all_states, last_states, saved, _, _, needs = args
    config, given = _split(tensors_and_options)
    problem = backward_problem(config, given, (all_states, last_states, saved))
    return _without_none(allocate_gradients(problem, needs, given), given)


class _Refusal(torch.autograd.Function):
    """The backward op, which has no derivative itself."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        ctx.backend = args[len(Inputs._fields) + 1]
        gradients: tuple[Tensor, ...] = _below_autograd(torch.ops.flashrnn.recurrence_backward, *args)
        return gradients

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise DoubleBackwardError(
            f"backend {ctx.backend!r} has first derivatives only; backend='vanilla' has second ones: "
            "name it in the call, or in the layer."
        )


@torch.library.impl("flashrnn::recurrence_backward", "Autograd")
def _recurrence_backward_autograd(*args: Any) -> tuple[Tensor, ...]:
    requires_grad = torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in args)
    apply: Any = _Refusal.apply
    return apply(*args) if requires_grad else _below_autograd(torch.ops.flashrnn.recurrence_backward, *args)
