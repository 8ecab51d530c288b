"""Gradients against finite differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from core_inputs import BACKENDS, FUNCTIONS, MASKS, make_inputs, run
from flashrnn import DoubleBackwardError

OPTIONS = [{}, {"forward_clipval": 0.3}, {"recompute": True}]


def check(
    how: Any, function: str, backend: str, masks: str, no_history: bool = False, fast: bool = False, **options: Any
) -> None:
    """Finite differences of all outputs by all inputs; of slstm's h alone, with m held fixed (and c, n where n is zero)."""
    tensors = make_inputs(function)
    lengths, resets = MASKS[masks]
    if function == "slstm":
        *tensors, states = tensors
        h, c, n, m = (x.detach().clone() for x in states.unbind(0))
        tensors.append(h.requires_grad_())
        if no_history:
            c.zero_(), n.zero_()
        else:
            tensors += [c.requires_grad_(), n.requires_grad_()]

        def outputs(Wx: Tensor, R: Tensor, b: Tensor, h: Tensor, c: Tensor = c, n: Tensor = n) -> tuple[Tensor, ...]:
            states, last = run(function, backend, [Wx, R, b, torch.stack([h, c, n, m])], lengths, resets, **options)
            return states[0], last[0]
    else:

        def outputs(*tensors: Tensor) -> tuple[Tensor, ...]:
            return run(function, backend, list(tensors), lengths, resets, **options)

    torch.manual_seed(0)  # fast_mode draws random directions
    assert how(outputs, tensors, fast_mode=fast)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck(function: str, backend: str) -> None:
    check(gradcheck, function, backend, "plain")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("masks", ["plain", "both"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck_along_random_directions(function: str, backend: str, masks: str, options: dict[str, Any]) -> None:
    check(gradcheck, function, backend, masks, fast=True, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_of_slstm_without_history(backend: str, options: dict[str, Any]) -> None:
    check(gradcheck, "slstm", backend, "both", no_history=True, fast=True, **options)


@pytest.mark.parametrize("masks", ["plain", "both"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradgradcheck_of_vanilla(function: str, masks: str) -> None:
    check(gradgradcheck, function, "vanilla", masks, fast=True)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_second_derivatives_are_refused_by_vanilla_fwbw(function: str) -> None:
    tensors = make_inputs(function)
    states, _ = run(function, "vanilla_fwbw", tensors)
    (dWx,) = torch.autograd.grad(states.square().sum(), tensors[:1], create_graph=True)
    with pytest.raises(DoubleBackwardError, match="vanilla"):
        dWx.sum().backward()
