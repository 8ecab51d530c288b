"""Who is timed: the backends of flashrnn and torch's own recurrent layers. Each gives two calls for a case."""

from __future__ import annotations

from types import ModuleType
from typing import Callable, NamedTuple, Optional

import torch
from torch import Tensor, nn

from flashrnn import explain, flashrnn
from flashrnn.cells import get_cell
from flashrnn.dtypes import DTYPES

from .shapes import Case

BACKENDS = ("auto", "cuda_fused", "cuda", "triton_fused", "vanilla_fwbw", "vanilla")
TORCH = "torch.nn"
CONTENDERS = (*BACKENDS, TORCH)

MODULES = {"lstm": "LSTM", "gru": "GRU", "elman": "RNN"}
"""Their names, the same in flashrnn.nn."""


class Calls(NamedTuple):
    """What is timed: the forward pass alone, without gradients, and forward and backward together."""

    forward: Callable[[], object]
    training: Callable[[], object]


def why_not(contender: str, case: Case, device: torch.device) -> Optional[str]:
    """None if the contender takes the case, else the reason in one sentence."""
    if contender == TORCH:
        return None if case.function in MODULES else f"torch.nn has no {case.function}."
    function, NH, D, B, T, dtype = case
    answer = explain(B, T, NH, D, function, backend=contender, dtype=dtype, device=device)
    return None if answer.backend else answer.reasons.get(contender) or "no backend solves this."


def prepare(contender: str, case: Case, device: torch.device) -> Calls:
    """The calls of a contender, with random inputs on the device."""
    return layer_calls(nn, case, device) if contender == TORCH else flashrnn_calls(contender, case, device)


def flashrnn_calls(backend: str, case: Case, device: torch.device) -> Calls:
    """`flashrnn()` with Wx given; the gradients of Wx, R and b from one of h."""
    function, NH, D, B, T, _ = case
    cell = get_cell(function)
    Wx = random(case, device, B, T, len(cell.input_gates), NH, D)
    R = random(case, device, len(cell.recurrent_gates), NH, D, D) / D**0.5
    b = random(case, device, len(cell.bias_gates), NH, D)
    outside = random(case, device, B, T, NH, D)
    inputs = [x.requires_grad_() for x in (Wx, R, b)]

    def run() -> Tensor:
        states, _ = flashrnn(*inputs, function=function, backend=backend)
        return states[0]

    def forward() -> Tensor:
        with torch.no_grad():
            return run()

    def training() -> object:
        return torch.autograd.grad(run(), inputs, outside)

    return Calls(forward, training)


def layer_calls(library: ModuleType, case: Case, device: torch.device, num_layers: int = 1) -> Calls:
    """Layers of torch.nn or flashrnn.nn of the same width: one head of size NH * D, whose input products are included.

    The gradients are those of their input and their parameters; the forward pass alone is in evaluation mode.
    """
    width = case.NH * case.D
    factory = {"batch_first": True, "device": device, "dtype": DTYPES[case.dtype]}
    module = getattr(library, MODULES[case.function])(width, width, num_layers, **factory)
    x, outside = (random(case, device, case.B, case.T, width) for _ in range(2))
    wanted = [x.requires_grad_(), *module.parameters()]

    def forward() -> object:
        module.eval()
        with torch.no_grad():
            return module(x)

    def training() -> object:
        module.train()
        return torch.autograd.grad(module(x)[0], wanted, outside)

    return Calls(forward, training)


def random(case: Case, device: torch.device, *shape: int) -> Tensor:
    """Standard normal numbers in the dtype of the case."""
    return torch.randn(shape, device=device, dtype=DTYPES[case.dtype])
