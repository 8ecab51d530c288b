"""Comparing tensors, functions of tensors, and their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Callable, Optional

import torch
from torch import Tensor

from flashrnn.cells.spec import Step
from flashrnn.vanilla_fwbw import forward_sequence, lstm_pointwise_fw

from .inputs import loss_weights
from .tolerances import TOLERANCES

Function = Callable[..., Any]
"""Tensors in, a tensor or a (nested) sequence of tensors out."""


class Mismatch(AssertionError):
    """Two results differ: names the tensor, the largest difference and its index."""


def check_close(
    name: str,
    actual: Tensor,
    expected: Tensor,
    *,
    dtype: Optional[torch.dtype] = None,
    gradient: bool = False,
    atol: Optional[float] = None,
    rtol: Optional[float] = None,
) -> None:
    """Raise Mismatch if two tensors differ by more than they may.

    Args:
        name: what to call them in the error.
        actual, expected: tensors of one shape.
        dtype: what they were computed in, which chooses the row of TOLERANCES; None: that of `actual`.
        gradient: whether the bound for gradients holds.
        atol, rtol: instead of the table, every element within atol + rtol * abs(expected); one missing means 0.
    """
    if actual.shape != expected.shape:
        raise Mismatch(f"{name}: shape {list(actual.shape)} instead of {list(expected.shape)}")
    if expected.numel() == 0:
        return
    tolerance = TOLERANCES[dtype or actual.dtype]
    actual, expected = actual.detach().double(), expected.detach().double().to(actual.device)
    difference = (actual - expected).abs().nan_to_num(nan=float("inf"))
    difference[(actual == expected) | (actual.isnan() & expected.isnan())] = 0
    if atol is not None or rtol is not None:
        allowed = (atol or 0.0) + (rtol or 0.0) * expected.abs()
        too_far = bool((difference > allowed).any())
        rule = f"atol {atol or 0.0:g}, rtol {rtol or 0.0:g}"
    else:
        bound = tolerance.gradient if gradient else tolerance.output
        size, rms = expected.norm().item(), expected.square().mean().sqrt()
        relative = difference.norm().item() / size if size > 0 else difference.norm().item()
        outliers = difference > tolerance.outlier * bound * torch.maximum(expected.abs(), rms)
        too_far = relative > bound or bool(outliers.any())
        rule = f"relative norm {relative:.3g} against {bound:g}, one element {tolerance.outlier:g} times that"
    if too_far:
        worst = int(difference.argmax())
        index = tuple(int(k) for k in torch.unravel_index(torch.tensor(worst), difference.shape))
        raise Mismatch(
            f"{name}: largest difference {difference.flatten()[worst].item():.6g} at index {index}, where "
            f"{actual.flatten()[worst].item():.6g} stands instead of {expected.flatten()[worst].item():.6g} ({rule})"
        )


def check_forward(
    func1: Function,
    func2: Function,
    inputs: Sequence[Any],
    tensor_compare_kwargs: Optional[Mapping[str, Any]] = None,
    names: Optional[Sequence[str]] = None,
) -> bool:
    """Compare what two functions return for the same inputs.

    Args:
        func1, func2: called as func(*inputs); func2 is taken as right.
        inputs: for instance those of `create_inputs`.
        tensor_compare_kwargs: passed on to `check_close`, e.g. {"atol": 1e-3, "rtol": 1e-2}.
        names: of the outputs, for the error; None: output[0], output[1], ...

    Returns:
        True. Raises Mismatch otherwise.
    """
    with torch.no_grad():
        outputs1, outputs2 = flatten(func1(*inputs)), flatten(func2(*inputs))
    _check_all(names or _numbered("output", len(outputs2)), outputs1, outputs2, dict(tensor_compare_kwargs or {}))
    return True


def check_backward(
    func1: Function,
    func2: Function,
    inputs: Sequence[Any],
    input_grad_mask: Optional[Sequence[bool]] = None,
    tensor_compare_kwargs: Optional[Mapping[str, Any]] = None,
    names: Optional[Sequence[str]] = None,
    seed: int = 0,
) -> bool:
    """Compare the gradients of two functions: those of one random weighted sum of all their outputs.

    Args:
        func1, func2: called as func(*inputs); func2 is taken as right.
        inputs: for instance those of `create_inputs`.
        input_grad_mask: for each input whether its gradient is wanted; None: of every floating tensor.
        tensor_compare_kwargs: passed on to `check_close`.
        names: of the inputs, for the error; None: input[0], input[1], ...
        seed: of the random weights.

    Returns:
        True. Raises Mismatch otherwise, also when one function gives a gradient and the other none.
    """
    mask = input_grad_mask or [isinstance(x, Tensor) and x.is_floating_point() for x in inputs]
    if len(mask) != len(inputs):
        raise ValueError(f"input_grad_mask: expected {len(inputs)} entries, one for each input, got {len(mask)}")
    names = names or _numbered("input", len(inputs))
    wanted = [f"gradient of {name}" for name, want in zip(names, mask) if want]
    grads1, grads2 = (input_gradients(func, inputs, mask, seed) for func in (func1, func2))
    for name, one, other in zip(wanted, grads1, grads2):
        if (one is None) != (other is None):
            raise Mismatch(f"{name}: {'missing' if one is None else 'given'} by one function and not by the other")
    pairs = [(name, x, y) for name, x, y in zip(wanted, grads1, grads2) if x is not None and y is not None]
    kwargs = {"gradient": True, **(tensor_compare_kwargs or {})}
    _check_all([p[0] for p in pairs], [p[1] for p in pairs], [p[2] for p in pairs], kwargs)
    return True


def compare_with_baseline(
    target: Function, inputs: Sequence[Tensor], pointwise: Step = lstm_pointwise_fw, seed: int = 0
) -> dict[str, float]:
    """How far a sequence function is from the plain loop `forward_sequence` over a pointwise step.

    Args:
        target: called as target(Wx, R, b, states) or target(Wx, R, b); returns (states, last_states).
        inputs: (Wx, states, R, b) or (Wx, R, b), as `create_inputs` returns them.
        pointwise: the cell's step for `forward_sequence`.
        seed: of the weights of the loss whose gradients are compared.

    Returns:
        The largest absolute difference by name: of "states", "last_states", and of each gradient, "gradient of Wx" etc.
    """
    Wx, R, b = inputs[0], inputs[-2], inputs[-1]
    arguments = (Wx, R, b, inputs[1]) if len(inputs) == 4 else (Wx, R, b)
    names = ("Wx", "R", "b", "states")[: len(arguments)]

    results = []
    for function in (target, partial(forward_sequence, pointwise=pointwise)):
        with torch.no_grad():
            outputs = flatten(function(*arguments))
        results.append([*outputs, *input_gradients(function, arguments, [True] * len(arguments), seed)])
    labels = ["states", "last_states", *(f"gradient of {name}" for name in names)]
    return {label: (x.double() - y.double()).abs().max().item() for label, x, y in zip(labels, *results)}


def input_gradients(function: Function, inputs: Sequence[Any], mask: Sequence[bool], seed: int) -> list[Optional[Tensor]]:
    """Gradients of a random weighted sum of all outputs, for the inputs that are masked in; None where it has none."""
    leaves = [x.detach().clone().requires_grad_(want) if isinstance(x, Tensor) else x for x, want in zip(inputs, mask)]
    outputs = [x for x in flatten(function(*leaves)) if x.requires_grad]
    loss = torch.stack([(x * loss_weights(x, seed + k)).sum().double() for k, x in enumerate(outputs)]).sum()
    wanted = [x for x, want in zip(leaves, mask) if want]
    return list(torch.autograd.grad(loss, wanted, allow_unused=True))


def flatten(outputs: Any) -> list[Tensor]:
    """All tensors of a nested sequence, in order."""
    if isinstance(outputs, Tensor):
        return [outputs]
    return [x for part in outputs for x in flatten(part)]


def _numbered(word: str, count: int) -> list[str]:
    return [f"{word}[{k}]" for k in range(count)]


def _check_all(names: Sequence[str], some: Sequence[Tensor], others: Sequence[Tensor], kwargs: dict[str, Any]) -> None:
    if not len(names) == len(some) == len(others):
        raise Mismatch(f"{len(some)} tensors instead of {len(others)} (for {len(names)} names)")
    for name, one, other in zip(names, some, others):
        check_close(name, one, other, **kwargs)
