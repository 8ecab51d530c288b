"""Sequences of several lengths: rows that end early, several sequences in one row, in both directions."""

from __future__ import annotations

from typing import Any, Optional

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from core_inputs import assert_equal
from core_layers import KINDS, E, H, flat, gradients, layer, make_hx, pair, randn
from flashrnn.nn.sequences import Packing

B, T = 4, 6
LENGTHS = torch.tensor([3, 6, 0, 1])
RESETS = torch.tensor([[0, 0, 1, 0, 1, 0], [1, 0, 0, 1, 1, 0], [0, 1, 0, 0, 0, 0], [0, 1, 1, 0, 0, 1]], dtype=torch.bool)
EVERY = (*KINDS, "SLSTM")
every = pytest.mark.parametrize("kind", EVERY)
both = pytest.mark.parametrize("bidirectional", [False, True])


def batch(resets: Optional[Tensor], batch_first: bool) -> Optional[Tensor]:
    """Resets [B, T] as a layer wants them."""
    return resets if resets is None or batch_first else resets.T


@both
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_equal_a_packed_sequence(kind: str, bidirectional: bool) -> None:
    theirs, ours = pair(kind, 2, bidirectional=bidirectional)
    lengths, x, hx = torch.tensor([2, 6, 1, 3]), randn(T, B, E), make_hx(ours, B)
    output, last = theirs(pack_padded_sequence(x, lengths, enforce_sorted=False), hx)
    expected = (pad_packed_sequence(output)[0], last)
    got = ours(x, hx, lengths=lengths)
    assert_equal(flat(got), flat(expected))
    assert_equal(gradients(ours, got, (x, hx)), gradients(theirs, expected, (x, hx)))


@pytest.mark.parametrize("batch_first", [False, True])
@both
@every
def test_padding_has_no_influence_and_no_gradient(kind: str, bidirectional: bool, batch_first: bool) -> None:
    module = layer(kind, 2, bidirectional=bidirectional, batch_first=batch_first)
    hx = make_hx(module, B)
    padding = torch.arange(T) >= LENGTHS[:, None]
    padding = padding if batch_first else padding.T
    results = []
    for filling in (0.0, float("nan"), float("inf")):
        x = randn(*padding.shape, E).detach().masked_fill(padding[..., None], filling).requires_grad_()
        outputs = module(x, hx, lengths=LENGTHS.int())
        assert torch.equal(outputs[0][padding], torch.zeros_like(outputs[0][padding]))
        assert_equal([x[:, 2] for x in flat(outputs[1])], [x[:, 2] for x in flat(hx)], 0)  # the row of length 0
        results.append((flat(outputs), gradients(module, outputs, (x, hx))))
        assert torch.equal(results[-1][1][0][padding], torch.zeros(int(padding.sum()), E, dtype=torch.float64))
    assert_equal(results[1], results[0], 0)
    assert_equal(results[2], results[0], 0)


def segments(resets: Tensor) -> list[tuple[int, int]]:
    """(start, end) of the sequences in one row."""
    bounds = [0, *(t for t in range(1, len(resets)) if resets[t]), len(resets)]
    return list(zip(bounds, bounds[1:]))


def one_by_one(module: nn.Module, x: Tensor, hx: Any, lengths: Tensor, resets: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Output [B, T, features] and final states of a layer that reads x [B, T, E] with one call for every sequence."""
    backward = torch.arange(len(flat(hx)[0])) % (2 if module.bidirectional else 1) == 1
    rows, finals = [], []
    for row, length in enumerate(lengths.tolist()):
        start = [state[:, row] for state in flat(hx)]
        if length == 0:
            rows.append(x.new_zeros(T, H * (1 + module.bidirectional)))
            finals.append([*start[:3], *(m.detach() for m in start[3:])])  # slstm's m is a constant
            continue
        outputs, ends = [], []
        for first, end in segments(resets[row, :length]):
            is_first = first == 0 and not resets[row, 0]
            enters = torch.where(backward, torch.tensor(end == length), torch.tensor(is_first))[:, None]
            states = [torch.where(enters, state, torch.zeros_like(state)) for state in start]
            output, last = module(x[row, first:end], states[0] if len(states) == 1 else tuple(states))
            outputs.append(output)
            ends.append(flat(last))
        rows.append(torch.cat([*outputs, x.new_zeros(T - length, outputs[0].shape[1])]))
        finals.append([torch.where(backward[:, None], y, z) for y, z in zip(ends[0], ends[-1])])
    return torch.stack(rows), [torch.stack(states, 1) for states in zip(*finals)]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole rows", "lengths"])
@both
@every
def test_resets_make_sequences_independent(kind: str, bidirectional: bool, lengths: Any, batch_first: bool) -> None:
    module = layer(kind, 2, bidirectional=bidirectional)
    reference = module if kind == "SLSTM" else getattr(nn, kind)(E, H, 2, bidirectional=bidirectional, dtype=torch.float64)
    reference.load_state_dict(module.state_dict())
    x, hx = randn(B, T, E), make_hx(module, B)
    expected = one_by_one(reference, x, hx, torch.full((B,), T) if lengths is None else lengths, RESETS)
    module.batch_first = batch_first
    output, last = module(x if batch_first else x.transpose(0, 1), hx, lengths=lengths, resets=batch(RESETS, batch_first))
    got = (output if batch_first else output.transpose(0, 1), last)
    assert_equal(flat(got), flat(expected))
    assert_equal(gradients(module, got, (x, hx)), gradients(reference, expected, (x, hx)))


@both
@every
def test_one_sequence_without_a_batch(kind: str, bidirectional: bool) -> None:
    module = layer(kind, 2, bidirectional=bidirectional)
    x, hx = randn(T, E), make_hx(module)
    got = module(x, hx, lengths=torch.tensor(4), resets=RESETS[0])
    hx_of_batch = flat(hx)[0][:, None] if isinstance(hx, Tensor) else tuple(state[:, None] for state in hx)
    output, last = module(x[:, None], hx_of_batch, lengths=torch.tensor([4]), resets=RESETS[0][:, None])
    assert_equal(flat(got), [output[:, 0], *(state[:, 0] for state in flat(last))], 0)


@pytest.mark.parametrize("lengths", [[3], [5, 3, 3, 1], [1, 5, 2, 5, 5], [1, 1]])
def test_packing_is_that_of_torch(lengths: list[int]) -> None:
    x = randn(max(lengths), len(lengths), E)
    packed = pack_padded_sequence(x, torch.tensor(lengths), enforce_sorted=False)
    by_hand = PackedSequence(packed.data, packed.batch_sizes)  # sorted, and does not say what order it was
    for some in (packed, by_hand):
        packing = Packing(some)
        expected, their_lengths = pad_packed_sequence(some)
        assert_equal((packing.unpack(), packing.lengths), (expected, their_lengths), 0)
        assert_equal(packing.pack(expected).data, some.data, 0)
