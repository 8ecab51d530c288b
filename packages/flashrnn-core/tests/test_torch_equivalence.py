"""With one head, lstm, gru and elman are torch.nn.LSTM, GRU and RNN: outputs, final states and all gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from core_inputs import BACKENDS, assert_equal, weights_like
from flashrnn import flashrnn

B, T, D, E = 3, 5, 4, 3  # E: the size of what torch projects
MODULES = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "elman": torch.nn.RNN}
ORDER = {"lstm": (0, 1, 2, 3), "gru": (0, 1, 2), "elman": (0,)}  # torch's gates i, f, g, o / r, z, n


def weights(function: str, module: torch.nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Wx, R, b of our layout, as differentiable functions of torch's parameters."""
    NG = len(ORDER[function])
    Wx = (x @ module.weight_ih_l0.T).view(B, T, NG, 1, D)
    R = module.weight_hh_l0.view(NG, 1, D, D)
    b_i, b_h = module.bias_ih_l0.view(NG, 1, D), module.bias_hh_l0.view(NG, 1, D)
    if function != "gru":
        return Wx, R, b_i + b_h
    R = torch.stack([R[2], R[0], R[1]])  # g, r, z
    return Wx, R, torch.stack([b_h[2], b_i[0] + b_h[0], b_i[1] + b_h[1], b_i[2]])  # g, r, z, n


@pytest.mark.parametrize("with_states", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", MODULES)
def test_one_head_equals_torch(function: str, backend: str, with_states: bool) -> None:
    torch.manual_seed(0)
    module = MODULES[function](E, D, batch_first=True).double()
    x = torch.randn(B, T, E, dtype=torch.float64, requires_grad=True)
    h, c = (torch.randn(1, B, D, dtype=torch.float64, requires_grad=True) for _ in range(2))
    initial = (h, c) if function == "lstm" else (h,)

    given = (initial if function == "lstm" else h) if with_states else None
    out, last = module(x, given)
    last = torch.stack(last if function == "lstm" else (last,)).squeeze(1)  # [NS, B, D]

    states = torch.cat(initial).unsqueeze(2) if with_states else None  # [NS, B, 1, D]
    our_states, our_last = flashrnn(*weights(function, module, x), states, function=function, backend=backend)
    ours = (our_states[0, :, :, 0], our_last[:, :, 0, 0])
    assert_equal(ours, (out, last))

    wanted = [x, *module.parameters(), *(initial if with_states else ())]
    expected = torch.autograd.grad((out, last), wanted, weights_like((out, last)))
    got = torch.autograd.grad(ours, wanted, weights_like((out, last)))
    assert len(got) == 5 + len(initial) * with_states
    assert_equal(got, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", MODULES)
def test_lengths_equal_a_packed_sequence(function: str, backend: str) -> None:
    torch.manual_seed(0)
    module = MODULES[function](E, D, batch_first=True).double()
    x = torch.randn(B, T, E, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([2, 5, 1])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, last = module(packed)
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
    last = torch.stack(last if function == "lstm" else (last,)).squeeze(1)

    states, our_last = flashrnn(*weights(function, module, x), function=function, backend=backend, lengths=lengths)
    ours = (states[0, :, :, 0], our_last[:, :, 0, 0])
    assert_equal(ours, (out, last))

    wanted = [x, *module.parameters()]
    expected = torch.autograd.grad((out, last), wanted, weights_like((out, last)))
    assert_equal(torch.autograd.grad(ours, wanted, weights_like((out, last))), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", MODULES)
def test_heads_are_independent(function: str, backend: str) -> None:
    """Several heads at once equal each head alone."""
    torch.manual_seed(0)
    NG, NB, NS = len(ORDER[function]), 4 if function == "gru" else len(ORDER[function]), 2 if function == "lstm" else 1
    tensors = [torch.randn(s, dtype=torch.float64) for s in ((B, T, NG, 3, D), (NG, 3, D, D), (NB, 3, D), (NS, B, 3, D))]
    together = flashrnn(*tensors, function=function, backend=backend)
    axes = (3, 1, 1, 2)
    for head in range(3):
        alone = flashrnn(*(x.narrow(k, head, 1) for x, k in zip(tensors, axes)), function=function, backend=backend)
        assert_equal(alone, tuple(x.narrow(3, head, 1) for x in together))
