"""flashrnn.nn.convert: what it replaces, what it leaves and why, and that all else goes on as it was."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import flashrnn.nn
from core_inputs import assert_equal
from core_layers import KINDS, E, H, assert_same, flat, randn
from flashrnn import ConfigError, DtypeError

B, T = 2, 5


class Tagger(nn.Module):
    """A model with recurrent layers in all kinds of places, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(E, H, 2, bidirectional=True)
        self.more = nn.ModuleList([nn.GRU(2 * H, H), nn.Sequential(nn.RNN(H, H, batch_first=True))])
        self.shared = nn.ModuleDict({"again": self.more[0]})

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        output, last = self.first(x)
        middle, h = self.more[0](output)
        middle, h = self.shared["again"](output, h)
        end, _ = self.more[1](middle)
        return flat(end, h, last)


def test_a_model_goes_on_as_it_was() -> None:
    model, x = Tagger().double(), randn(T, B, E)
    untouched = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state, parameters = model.state_dict(), dict(model.named_parameters())

    same, conversion = flashrnn.nn.convert(model, backend="vanilla_fwbw")
    assert same is model
    assert conversion.replaced == ("first", "more.0", "more.1.0", "shared.again") and conversion.left == {}
    assert str(conversion) == "first: replaced\nmore.0: replaced\nmore.1.0: replaced\nshared.again: replaced"
    assert isinstance(model.first, flashrnn.nn.LSTM) and model.shared["again"] is model.more[0]
    assert all(module.backend == "vanilla_fwbw" for module in model.modules() if hasattr(module, "backend"))
    assert list(model.state_dict()) == list(state)
    assert all(parameters[name] is x for name, x in model.named_parameters()) and len(parameters) == 24

    for some in (model, untouched):
        sum(y.sum() for y in some(x)).backward()
    optimizer.step()
    torch.optim.SGD(untouched.parameters(), lr=0.1).step()
    assert_equal(model(x), untouched(x))
    model.load_state_dict(untouched.state_dict())
    assert flashrnn.nn.convert(model)[1] == flashrnn.nn.Conversion((), {})
    assert str(flashrnn.nn.convert(nn.Linear(1, 1))[1]) == "no recurrent layer of torch.nn"


@pytest.mark.parametrize("options", [{}, {"bias": False, "bidirectional": True}, {"batch_first": True, "num_layers": 3}])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_itself(kind: str, options: dict[str, Any]) -> None:
    theirs = getattr(nn, kind)(E, H, dtype=torch.float64, **options)
    ours, conversion = flashrnn.nn.convert(theirs)
    assert type(ours) is getattr(flashrnn.nn, kind) and conversion.replaced == ("",)
    assert str(conversion) == "the model: replaced"
    assert all(x is y for x, y in zip(ours.parameters(), theirs.parameters()))
    assert repr(ours) == repr(theirs)
    assert_same(theirs, ours, randn(T, B, E))


def test_mode_dropout_and_frozen_parameters() -> None:
    with pytest.warns(UserWarning, match="dropout"):
        theirs = nn.LSTM(E, H, dropout=0.5).eval()
    theirs.weight_hh_l0.requires_grad_(False)
    ours, _ = flashrnn.nn.convert(theirs)
    assert not ours.training and ours.dropout == 0.5 and not ours.weight_hh_l0.requires_grad
    assert flashrnn.nn.convert(nn.GRU(E, H, 2, dropout=0.25))[0].dropout == 0.25


def test_hooks_come_along_and_can_be_removed() -> None:
    theirs, calls = nn.GRU(E, H, dtype=torch.float64), []
    handles = [
        theirs.register_forward_hook(lambda module, inputs, outputs: calls.append(type(module).__name__)),
        theirs.register_forward_pre_hook(lambda module, args, kwargs: calls.append(sorted(kwargs)), with_kwargs=True),
        theirs.register_full_backward_hook(lambda module, into, out: calls.append("backward")),
        theirs.register_state_dict_pre_hook(lambda module, prefix, keep: calls.append("state_dict")),
    ]
    ours, _ = flashrnn.nn.convert(theirs)
    ours(randn(T, B, E), hx=None)[0].sum().backward()
    ours.state_dict()
    assert calls == [["hx"], "GRU", "backward", "state_dict"]
    for handle in handles:
        handle.remove()
    ours(randn(T, B, E))[0].sum().backward()
    ours.state_dict()
    assert len(calls) == 4


class Peephole(nn.LSTM):
    """A subclass."""


def with_buffer() -> nn.Module:
    module = nn.GRU(E, H)
    module.register_buffer("scale", torch.ones(1))
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.LSTM(E, H, proj_size=2), "proj_size is 2, and flashrnn.nn has no projection of h"),
        (lambda: nn.RNN(E, H, nonlinearity="relu"), "nonlinearity is 'relu', and flashrnn.nn has 'tanh' only"),
        (
            lambda: nn.LSTM(E, H, dtype=torch.complex64),
            "its parameters are torch.complex64, and flashrnn computes in float16, bfloat16, float32, float64",
        ),
        (lambda: Peephole(E, H), "Peephole is a subclass, whose forward pass may be another"),
        (
            lambda: parametrizations.weight_norm(nn.LSTM(E, H), "weight_hh_l0"),
            "ParametrizedLSTM is a subclass, whose forward pass may be another",
        ),
        (
            lambda: prune.random_unstructured(nn.GRU(E, H), "weight_hh_l0", amount=0.5),
            "it has not the parameters of a plain GRU: weight_hh_l0, weight_hh_l0_mask, weight_hh_l0_orig",
        ),
        (with_buffer, "it has not the parameters of a plain GRU: scale"),
        (lambda: nn.LSTMCell(E, H), "torch.nn.LSTMCell is one step, which flashrnn has as flashrnn.step only"),
    ],
)
def test_what_is_left_and_why(make: Any, reason: str) -> None:
    layer = make()
    model = nn.Sequential(nn.Linear(1, 1), layer, nn.GRU(E, H))
    _, conversion = flashrnn.nn.convert(model)
    assert model[1] is layer and conversion == flashrnn.nn.Conversion(("2",), {"1": reason})
    assert str(conversion) == f"2: replaced\n1: left, {reason}"


def test_refusals() -> None:
    with pytest.raises(DtypeError, match=r"^model: expected a torch.nn.Module, got list"):
        flashrnn.nn.convert([nn.LSTM(E, H)])
    model = nn.Sequential(nn.LSTM(E, H))
    with pytest.raises(ConfigError, match=r"^backend: expected a string, got 3"):
        flashrnn.nn.convert(model, backend=3)
    assert type(model[0]) is nn.LSTM


def test_a_forward_of_its_own_is_kept() -> None:
    """As libraries replace it that move or watch layers."""
    model = nn.Sequential(nn.LSTM(E, H))
    model[0].forward = lambda *arguments: "another"
    conversion = flashrnn.nn.convert(model)[1]
    assert conversion.replaced == () and "forward was replaced" in conversion.left["0"]
    assert model(randn(T, B, E)) == "another"


def test_a_layer_that_flashrnn_would_not_make_is_left() -> None:
    model = nn.Sequential(nn.LSTM(E, H), nn.GRU(E, H))
    model[0].batch_first = 1
    conversion = flashrnn.nn.convert(model)[1]
    assert conversion.replaced == ("1",) and "batch_first" in conversion.left["0"]


def test_attributes_of_the_user_go_along() -> None:
    model = nn.Sequential(nn.LSTM(E, H))
    model[0].note = "mine"
    flashrnn.nn.convert(model)
    assert isinstance(model[0], flashrnn.nn.LSTM) and model[0].note == "mine"


def test_hooks_of_the_state_dict_see_the_new_layer() -> None:
    layer, seen = nn.LSTM(E, H), []
    layer.register_load_state_dict_pre_hook(lambda module, *_: seen.append(module))
    model = nn.Sequential(layer)
    del layer
    flashrnn.nn.convert(model)
    model.load_state_dict(model.state_dict())
    assert seen == [model[0]]
