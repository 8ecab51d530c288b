"""Layers of torch.nn and of flashrnn.nn with the same weights, and their comparison."""

from __future__ import annotations

from typing import Any, Optional

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

import flashrnn.nn
from core_inputs import assert_equal, weights_like

KINDS = ("LSTM", "GRU", "RNN")
STATES = {"LSTM": 2, "GRU": 1, "RNN": 1, "SLSTM": 4}
E, H = 3, 4  # features of the input and of one direction's output
everywhere = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def layer(kind: str, *args: Any, seed: int = 0, **options: Any) -> nn.Module:
    """flashrnn.nn's layer of E and H features in float64."""
    torch.manual_seed(seed)
    return getattr(flashrnn.nn, kind)(E, H, *args, dtype=torch.float64, **options)


def pair(kind: str, *args: Any, **options: Any) -> tuple[nn.Module, nn.Module]:
    """torch.nn's layer of E and H features in float64, and ours with its weights."""
    ours = layer(kind, *args, seed=1, **options)
    torch.manual_seed(0)
    theirs = getattr(nn, kind)(E, H, *args, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def randn(*shape: int, seed: int = 0) -> Tensor:
    """A leaf of standard normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def make_hx(module: nn.Module, *batch: int, seed: int = 5) -> Any:
    """Initial states for a batch of that shape, () or (B,), as the layer wants them."""
    count = STATES[type(module).__name__]
    stacked = module.num_layers * (2 if module.bidirectional else 1)
    states = [randn(stacked, *batch, module.hidden_size, seed=seed + k) for k in range(count)]
    return states[0] if count == 1 else tuple(states)


def flat(*values: Any) -> list[Tensor]:
    """All tensors in these outputs, states and packed sequences."""
    found = []
    for x in values:
        if isinstance(x, PackedSequence):
            found.append(x.data)
        elif isinstance(x, Tensor):
            found.append(x)
        elif x is not None:
            found += flat(*x)
    return found


def gradients(module: nn.Module, outputs: Any, inputs: Any) -> list[Tensor]:
    """Gradients of the inputs and of all parameters under fixed random outside gradients."""
    results = flat(outputs)
    return list(torch.autograd.grad(results, [*flat(inputs), *module.parameters()], weights_like(tuple(results))))


def assert_same(theirs: nn.Module, ours: nn.Module, x: Any, hx: Optional[Any] = None, tolerance: float = 1e-12) -> None:
    """Outputs, final states and all gradients of two layers are equal, and so is how the outputs are packed."""
    expected, got = theirs(x, hx), ours(x, hx)
    assert_equal(flat(got), flat(expected), tolerance)
    if isinstance(expected[0], PackedSequence):
        for name in ("batch_sizes", "sorted_indices", "unsorted_indices"):
            assert_equal(getattr(got[0], name), getattr(expected[0], name), 0)
    inputs = (x.data if isinstance(x, PackedSequence) else x, hx)
    assert_equal(gradients(ours, got, inputs), gradients(theirs, expected, inputs), tolerance)
