"""With one head the layers are those of torch.nn: outputs, final states, all gradients, parameters and checkpoints."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import flashrnn.nn
from core_inputs import assert_equal
from core_layers import KINDS, E, H, assert_same, flat, layer, make_hx, pair, randn

B, T = 3, 5
every = pytest.mark.parametrize("kind", KINDS)


def packed(lengths: list[int], enforce_sorted: bool) -> PackedSequence:
    """A packed batch whose data is a leaf."""
    x = randn(max(lengths), len(lengths), E)
    made = pack_padded_sequence(x.detach(), torch.tensor(lengths), enforce_sorted=enforce_sorted)
    return PackedSequence(made.data.requires_grad_(), *made[1:])


INPUTS: dict[str, Any] = {
    "time first": lambda: randn(T, B, E),
    "batch first": lambda: randn(B, T, E),
    "one sequence": lambda: randn(T, E),
    "one step": lambda: randn(1, B, E),
    "strided": lambda: randn(E, B, T).permute(2, 1, 0),
    "packed, sorted": lambda: packed([5, 2, 2], enforce_sorted=True),
    "packed, not sorted": lambda: packed([2, 5, 1, 5], enforce_sorted=False),
}


@pytest.mark.parametrize("with_hx", [False, True])
@pytest.mark.parametrize("form", INPUTS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@every
def test_a_layer_equals_torch(kind: str, num_layers: int, bidirectional: bool, form: str, with_hx: bool) -> None:
    theirs, ours = pair(kind, num_layers, bidirectional=bidirectional, batch_first=form == "batch first")
    x = INPUTS[form]()
    batch = [] if form == "one sequence" else [4] if form == "packed, not sorted" else [B]
    assert_same(theirs, ours, x, make_hx(ours, *batch) if with_hx else None)


@pytest.mark.parametrize("backend", ["vanilla", "vanilla_fwbw"])
@every
def test_without_bias_and_with_any_backend(kind: str, backend: str) -> None:
    theirs, ours = pair(kind, 2, bias=False, bidirectional=True)
    ours.backend = backend
    assert_same(theirs, ours, randn(T, B, E), make_hx(ours, B))


@every
def test_every_positional_argument_stands_where_torch_has_it(kind: str) -> None:
    nonlinearity = ["tanh"] if kind == "RNN" else []
    arguments = (E, H, 2, *nonlinearity, False, True, 0.25, True)
    theirs, ours = getattr(nn, kind)(*arguments), getattr(flashrnn.nn, kind)(*arguments)
    assert (
        repr(ours)
        == repr(theirs)
        == f"{kind}(3, 4, num_layers=2, bias=False, batch_first=True, dropout=0.25, bidirectional=True)"
    )
    for name in ("mode", "proj_size", *(["nonlinearity"] if kind == "RNN" else [])):
        assert getattr(ours, name) == getattr(theirs, name)


@every
def test_the_same_seed_gives_the_same_parameters(kind: str) -> None:
    torch.manual_seed(3)
    theirs = getattr(nn, kind)(E, H, 2, bidirectional=True)
    torch.manual_seed(3)
    ours = getattr(flashrnn.nn, kind)(E, H, 2, bidirectional=True)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert_equal(flat(ours.parameters()), flat(theirs.parameters()), 0)
    assert_equal(flat(ours.all_weights), flat(theirs.all_weights), 0)
    ours.reset_parameters()
    assert not torch.equal(ours.weight_hh_l0, theirs.weight_hh_l0)


@every
def test_loops_over_private_lists_of_torch(kind: str) -> None:
    theirs, ours = pair(kind, 2, bidirectional=True)
    assert ours._all_weights == theirs._all_weights
    assert all(x is y for x, y in zip(ours._flat_weights, ours.parameters()))
    assert_equal(flat(ours._flat_weights), flat(theirs._flat_weights), 0)
    for module in (theirs, ours):
        for names in module._all_weights:
            for name in filter(lambda name: "bias" in name, names):
                getattr(module, name).data[H : 2 * H].fill_(1.0)  # the forget gate of an LSTM
    assert_same(theirs, ours, randn(T, B, E))


@every
def test_checkpoints_carry_over_both_ways(kind: str) -> None:
    theirs, ours = pair(kind, 2, bidirectional=True)
    file = io.BytesIO()
    torch.save(ours.state_dict(), file)
    file.seek(0)
    back = getattr(nn, kind)(E, H, 2, bidirectional=True, dtype=torch.float64)
    assert str(back.load_state_dict(torch.load(file, weights_only=True))) == "<All keys matched successfully>"
    assert_same(back, ours, randn(T, B, E))
    assert_equal(flat(back.parameters()), flat(theirs.parameters()), 0)


@pytest.mark.filterwarnings("ignore:You are using `torch.load`:FutureWarning")  # torch 2.4 does so itself
@pytest.mark.parametrize("again", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
@every
def test_copies_and_pickles(kind: str, again: Any) -> None:
    module = layer(kind, 2, bidirectional=True)
    other, x = again(module), randn(T, B, E)
    assert_same(module, other, x)
    with torch.no_grad():
        other.weight_hh_l0.zero_()
    assert not torch.equal(module(x)[0], other(x)[0])


def test_factory_arguments_and_moves() -> None:
    module = flashrnn.nn.LSTM(E, H, device="meta", dtype=torch.bfloat16)
    assert all(x.is_meta and x.dtype == torch.bfloat16 for x in module.parameters())
    moved = module.to_empty(device="cpu").double()
    moved.reset_parameters()
    output, _ = moved(randn(T, B, E))
    assert output.dtype == torch.float64 and output.isfinite().all()
    assert moved.share_memory().weight_hh_l0.is_shared()
    moved.flatten_parameters()


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
@every
def test_reparametrised_weights(kind: str) -> None:
    for norm in (nn.utils.parametrizations.weight_norm, nn.utils.weight_norm):
        theirs, ours = pair(kind)
        for module in (theirs, ours):
            norm(module, "weight_hh_l0")
        assert len(list(ours.parameters())) == 5
        if norm is nn.utils.weight_norm:  # whose order of parameters is that of both
            assert_same(theirs, ours, randn(T, B, E))
        assert_equal(ours(randn(T, B, E))[0], theirs(randn(T, B, E))[0])
        sum(x.sum() for x in flat(ours(randn(T, B, E)))).backward()
        assert all(x.grad is not None for x in ours.parameters())


@every
def test_dropout_acts_between_layers_in_training(kind: str) -> None:
    x = randn(T, B, E)
    plain, dropped = layer(kind, 2), layer(kind, 2, dropout=0.5)
    assert not torch.equal(dropped(x)[0], plain(x)[0])
    assert_equal(dropped.eval()(x)[0], plain(x)[0], 0)
    everything = layer(kind, 2, dropout=1.0)
    second = layer(kind, 2)
    with torch.no_grad():
        second.weight_ih_l1.zero_()
    assert_equal(everything(x)[0], second(x)[0], 0)
    assert_equal(everything(x)[1][0][0], plain(x)[1][0][0], 0)  # the first layer is whole


def test_a_lonely_dropout_warns() -> None:
    with pytest.warns(UserWarning, match=r"dropout=0\.5 acts between layers, and num_layers is 1"):
        flashrnn.nn.GRU(E, H, dropout=0.5)


@every
def test_frozen_weights_and_inputs(kind: str) -> None:
    theirs, ours = pair(kind, 2)
    for module in (theirs, ours):
        module.requires_grad_(False).weight_hh_l1.requires_grad_()
        module(randn(T, B, E).detach())[0].sum().backward()
    assert_equal(ours.weight_hh_l1.grad, theirs.weight_hh_l1.grad)
    assert ours.weight_hh_l0.grad is None
    with torch.no_grad():
        assert not any(x.requires_grad for x in flat(ours(randn(T, B, E))))


@every
def test_initial_states_can_be_learnt(kind: str) -> None:
    theirs, ours = pair(kind)
    start = nn.Parameter(randn(1, 1, H).detach())
    expanded = start.expand(-1, B, -1)
    hx = (expanded, expanded) if kind == "LSTM" else expanded
    found = []
    for module in (theirs, ours):
        loss = sum(x.sum() for x in flat(module(randn(T, B, E), hx)))
        found += torch.autograd.grad(loss, start, retain_graph=True)
    assert_equal(found[1], found[0])


def test_states_have_the_dtype_of_those_given() -> None:
    module = layer("LSTM").bfloat16()
    x = randn(T, B, E).bfloat16()
    output, (h, c) = module(x)
    assert {output.dtype, h.dtype, c.dtype} == {torch.bfloat16}
    zeros = torch.zeros(1, B, H)
    output, (h, c) = module(x, (zeros, zeros.bfloat16()))
    assert output.dtype == torch.bfloat16 and {h.dtype, c.dtype} == {torch.float32}


def test_without_steps_or_rows() -> None:
    for kind in (*KINDS, "SLSTM"):
        module = layer(kind, 2, bidirectional=True)
        hx = make_hx(module, B)
        resets = torch.zeros(0, B, dtype=torch.bool)
        output, last = module(randn(0, B, E), hx, lengths=torch.zeros(B, dtype=torch.int64), resets=resets)
        assert output.shape == (0, B, 2 * H)
        assert_equal(flat(last), flat(hx), 0)
        output, last = module(randn(T, 0, E), lengths=torch.zeros(0, dtype=torch.int64))
        assert output.shape == (T, 0, 2 * H) and all(x.shape == (4, 0, H) for x in flat(last))
