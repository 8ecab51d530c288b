"""Several heads, and sLSTM: what torch.nn does not have."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import flashrnn.nn
from core_inputs import assert_equal
from core_layers import KINDS, E, flat, gradients, make_hx, randn
from flashrnn import flashrnn as recurrence

B, T, NH, D = 3, 5, 3, 2
EVERY = (*KINDS, "SLSTM")
every = pytest.mark.parametrize("kind", EVERY)


def of_heads(weight: Tensor, to_dense: bool) -> Tensor:
    """weight_hh [gates * NH * D, D] as a block-diagonal matrix [gates * NH * D, NH * D], or back."""
    gates = len(weight) // (NH * D)
    if not to_dense:
        return torch.einsum("gndne->gnde", weight.view(gates, NH, D, NH, D)).reshape(-1, D)
    return torch.einsum("gnde,nm->gndme", weight.view(gates, NH, D, D), torch.eye(NH, dtype=weight.dtype)).reshape(
        -1, NH * D
    )


@pytest.mark.parametrize("bidirectional", [False, True])
@every
def test_heads_are_a_block_diagonal_recurrence(kind: str, bidirectional: bool) -> None:
    class_ = getattr(flashrnn.nn, kind)
    heads = class_(E, NH * D, 2, bidirectional=bidirectional, dtype=torch.float64, num_heads=NH)
    reference = nn if kind in KINDS else flashrnn.nn
    dense = getattr(reference, kind)(E, NH * D, 2, bidirectional=bidirectional, dtype=torch.float64)
    weights = heads.state_dict()
    dense.load_state_dict({name: of_heads(x, True) if "weight_hh" in name else x for name, x in weights.items()})

    x, hx = randn(T, B, E), make_hx(heads, B)
    expected, got = dense(x, hx), heads(x, hx)
    assert_equal(flat(got), flat(expected))
    names = [*["input"] * (1 + len(flat(hx))), *weights]
    in_dense = gradients(dense, expected, (x, hx))
    in_dense = [of_heads(x, False) if "weight_hh" in name else x for name, x in zip(names, in_dense)]
    assert_equal(gradients(heads, got, (x, hx)), in_dense)


@every
def test_the_shapes_of_parameters(kind: str) -> None:
    module = getattr(flashrnn.nn, kind)(E, NH * D, 2, bidirectional=True, num_heads=NH)
    rows = {"GRU": 3, "RNN": 1}.get(kind, 4) * NH * D
    for suffix in ("", "_reverse"):
        for k, features in enumerate((E, 2 * NH * D)):
            shapes = [
                getattr(module, f"{name}_l{k}{suffix}").shape for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            ]
            assert shapes == [(rows, features), (rows, D), (rows,), (rows,)]
    assert len(list(module.parameters())) == 16
    assert repr(module) == f"{kind}(3, 6, num_layers=2, bidirectional=True, num_heads=3)"


def test_the_distribution_of_parameters() -> None:
    torch.manual_seed(0)
    module = flashrnn.nn.LSTM(32, 256, num_heads=16)
    for name, x in module.named_parameters():
        bound = 1 / math.sqrt(16 if "weight_hh" in name else 256)
        assert 0.99 * bound < x.max() <= bound and -bound <= x.min() < -0.99 * bound
        assert x.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_slstm_is_the_call_with_its_parameters() -> None:
    module = flashrnn.nn.SLSTM(E, NH * D, dtype=torch.float64, num_heads=NH)
    x, hx = randn(T, B, E), make_hx(module, B)
    Wx = (x @ module.weight_ih_l0.T).view(T, B, 4, NH, D).transpose(0, 1)
    R, b = module.weight_hh_l0.view(4, NH, D, D), (module.bias_ih_l0 + module.bias_hh_l0).view(4, NH, D)
    states, last = recurrence(Wx, R, b, torch.cat(hx).view(4, B, NH, D), function="slstm")
    output, final = module(x, hx)
    assert_equal(output, states[0].flatten(-2).transpose(0, 1))
    assert_equal(torch.cat(final), last.view(4, B, NH * D))


def test_forget_gates_of_slstm_start_open() -> None:
    module = flashrnn.nn.SLSTM(E, 8, 2, bidirectional=True, num_heads=2)
    for _, _, of_input, of_recurrent in module.all_weights:
        assert_equal(of_input.view(4, 2, 4)[1], torch.tensor([[3.0, 4.0, 5.0, 6.0]] * 2), 1e-6)
        assert torch.equal(of_recurrent.view(4, 8)[1], torch.zeros(8))
        others = torch.cat([of_input.view(4, 8)[[0, 2, 3]], of_recurrent.view(4, 8)[[0, 2, 3]]])
        assert others.abs().max() <= 8**-0.5 and others.unique().numel() == 48
    assert flashrnn.nn.SLSTM(E, 2, num_heads=2).bias_ih_l0.view(4, 2)[1].tolist() == [3.0, 3.0]  # heads of one element
    flashrnn.nn.SLSTM(E, 8, bias=False, device="meta")
