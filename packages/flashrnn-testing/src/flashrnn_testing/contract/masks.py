"""Lengths and resets: rows that end early, padding that has no influence, and several sequences in one row."""

from __future__ import annotations

import torch

from flashrnn import flashrnn
from flashrnn.cells import get_cell

from ..inputs import random_masks
from ..results import compare, compare_bitwise, compute
from .base import ContractBase


class MaskTests(ContractBase):
    """Lengths and resets."""

    def test_masks_equal_the_reference(self, function: str, dtype: torch.dtype, device: str) -> None:
        case = self.case(function, device, dtype, batch_size=9, sequence_size=12)
        lengths, resets = random_masks(9, 12, case.Wx.device)
        for given in ((lengths, None), (None, resets), (lengths, resets)):
            expected = compute(self.reference_config(function), *case, *given)
            compare(self.run_masked(function, case, *given), expected, dtype)

    def run_masked(self, function, case, lengths, resets):  # type: ignore[no-untyped-def]
        """Every result and gradient of this backend by name."""
        return compute(self.config(function), *case, lengths, resets)

    def test_lengths_equal_separate_calls(self, function: str, device: str) -> None:
        """Each row alone, cut at its length, gives the same; beyond it outputs are exactly 0."""
        dtype = self.dtypes[0]
        case = self.case(function, device, dtype, batch_size=5, sequence_size=7)
        lengths = torch.tensor([0, 7, 1, 6, 3], device=device)
        every, last = flashrnn(*case, config=self.config(function), lengths=lengths)
        for row, length in enumerate(lengths.tolist()):
            alone, end = flashrnn(
                case.Wx[row : row + 1, :length], case.R, case.b, case.states[:, row : row + 1], config=self.config(function)
            )
            compare({"h": every[:, row : row + 1, :length]}, {"h": alone}, dtype)
            compare({"last": last[:, row : row + 1]}, {"last": end}, dtype)
            assert not every[:, row, length:].any()

    def test_padding_has_no_influence(self, function: str, dtype: torch.dtype, device: str) -> None:
        """NaN in the padding of Wx, of the outside gradient, or a reset there: results and gradients stay, to the bit."""
        case = self.case(function, device, dtype, batch_size=5, sequence_size=7)
        lengths, resets = random_masks(5, 7, case.Wx.device)
        padding = torch.arange(7, device=device) >= lengths[:, None]
        clean = self._with_padding(function, case, lengths, resets & ~padding, padding, 0.0)
        dirty = self._with_padding(function, case, lengths, resets | padding, padding, float("nan"))
        compare_bitwise(dirty, clean)
        assert not dirty["gradient 0"][padding].any()

    def _with_padding(self, function, case, lengths, resets, padding, value):  # type: ignore[no-untyped-def]
        Wx = case.Wx.detach().masked_fill(padding[:, :, None, None, None], value)
        leaves = [x.detach().clone().requires_grad_() for x in (Wx, *case[1:])]
        every, last = flashrnn(*leaves, config=self.config(function), lengths=lengths, resets=resets)
        outside = torch.ones_like(every).masked_fill(padding[:, :, None, None], value)
        grads = torch.autograd.grad((every, last), leaves, (outside, torch.ones_like(last)))
        return {"states": every, "last": last, **{f"gradient {k}": x for k, x in enumerate(grads)}}

    def test_a_row_of_length_zero_hands_its_states_on(self, function: str, dtype: torch.dtype, device: str) -> None:
        case = self.case(function, device, dtype, batch_size=2)
        leaves = [x.detach().clone().requires_grad_() for x in case]
        _, last = flashrnn(*leaves, config=self.config(function), lengths=torch.zeros(2, dtype=torch.int64, device=device))
        last.sum().backward()
        cell = get_cell(function)
        assert torch.equal(last.squeeze(2), leaves[3])
        for name, grad in zip(cell.states, leaves[3].grad):
            assert torch.equal(grad, torch.full_like(grad, 0.0 if name in cell.constant_states else 1.0))
        assert not any(x.grad.any() for x in leaves[:3])

    def test_resets_equal_separate_calls(self, function: str, dtype: torch.dtype, device: str) -> None:
        """Two sequences in one row, with a reset between them, are two calls: states and gradients."""
        case = self.case(function, device, dtype, sequence_size=8)
        resets = torch.zeros((3, 8), dtype=torch.bool, device=device)
        resets[:, 5] = True
        packed = [x.detach().clone().requires_grad_() for x in case]
        every, last = flashrnn(*packed, config=self.config(function), resets=resets)
        (every.float().sum() + last.float().sum()).backward()
        apart = [x.detach().clone().requires_grad_() for x in case]
        one, _ = flashrnn(apart[0][:, :5], *apart[1:], config=self.config(function))
        other, end = flashrnn(apart[0][:, 5:], *apart[1:3], config=self.config(function))
        (one.float().sum() + other.float().sum() + end.float().sum()).backward()
        compare({"states": every}, {"states": torch.cat([one, other], dim=2)}, dtype)
        compare({"last": last}, {"last": end}, dtype)
        names = ("Wx", "R", "b", "states")
        grads = [{f"gradient of {n}": x.grad for n, x in zip(names, leaves)} for leaves in (packed, apart)]
        compare(grads[0], grads[1], dtype)
