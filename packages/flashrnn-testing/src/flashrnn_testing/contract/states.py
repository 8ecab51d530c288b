"""States: in which forms and dtypes they come and go, and that a sequence may be cut anywhere."""

from __future__ import annotations

import pytest
import torch

from flashrnn import flashrnn
from flashrnn.cells import get_cell
from flashrnn.dtypes import accumulate_dtype

from ..results import compare, compare_bitwise, compute
from .base import ContractBase


class StateTests(ContractBase):
    """States in and out."""

    def test_pieces_equal_the_whole_to_the_bit(self, function: str, dtype: torch.dtype, device: str) -> None:
        """With states of the dtype they live in nothing is rounded on the way from one call to the next."""
        Wx, R, b, states = self.case(function, device, dtype, sequence_size=8)
        config, exact = self.config(function), accumulate_dtype(dtype)
        every, last = flashrnn(Wx, R, b, states.to(exact), config=config)
        one, middle = flashrnn(Wx[:, :3], R, b, states.to(exact), config=config)
        other, end = flashrnn(Wx[:, 3:], R, b, middle, config=config)
        assert torch.equal(torch.cat([one, other], dim=2), every)
        assert torch.equal(end, last)
        assert end.dtype == exact

    def test_last_states_have_the_dtype_of_the_initial_ones(self, function: str, dtype: torch.dtype, device: str) -> None:
        Wx, R, b, states = self.case(function, device, dtype)
        for given in (torch.float32, torch.bfloat16):
            every, last = flashrnn(Wx, R, b, states.to(given), config=self.config(function))
            assert (every.dtype, last.dtype) == (dtype, given)
        assert flashrnn(Wx, R, b, config=self.config(function))[1].dtype == dtype

    def test_no_states_are_zero_states(self, function: str, dtype: torch.dtype, device: str) -> None:
        case = self.case(function, device, dtype)
        zeros = self.run(function, case._replace(states=torch.zeros_like(case.states)))
        none = self.run(function, case._replace(states=None))
        compare_bitwise(none, {name: zeros[name] for name in none})

    def test_partly_zero_states(self, function: str, device: str) -> None:
        """Whether a state is zero is asked of each element, not of the whole batch."""
        case = self.case(function, device, self.dtypes[0], batch_size=4)
        states = case.states.detach().clone()
        states[:, 0] = 0
        states[1:, 1, :, ::2] = 0
        case = case._replace(states=states)
        expected = compute(self.reference_config(function), *case)
        compare(self.run(function, case), expected, self.dtypes[0])

    @pytest.mark.parametrize("extreme", [(0, -200.0), (1, -200.0), (0, 200.0)], ids=["i=-200", "f=-200", "i=+200"])
    @pytest.mark.parametrize("zeros", ["all", "none", "some"])
    def test_extreme_gates_are_finite(
        self, function: str, dtype: torch.dtype, device: str, extreme: tuple[int, float], zeros: str
    ) -> None:
        case = self.case(function, device, dtype)
        gate, value = extreme
        Wx, states = case.Wx.detach().clone(), case.states.detach().clone()
        Wx[:, 1:3, min(gate, Wx.shape[2] - 1)] = value
        if zeros != "none":
            states[:, :, :, :: 1 if zeros == "all" else 2] = 0
        for name, x in self.run(function, case._replace(Wx=Wx, states=states)).items():
            assert torch.isfinite(x).all(), name

    @pytest.mark.parametrize("input_gate", [-4.0, -400.0])
    def test_c_without_n(self, function: str, dtype: torch.dtype, device: str, input_gate: float) -> None:
        """It counts while the square of its weight is a number in the dtype: at -4 all of it but in float16, then none."""
        if "n" not in get_cell(function).states:
            pytest.skip("has no n")
        case = self.case(function, device, dtype, batch_size=8)
        states, Wx = case.states.detach().clone(), case.Wx.detach().clone()
        states[1] *= 0.1  # for gradients that are numbers
        states[2], Wx[:, :, 0] = 0, Wx[:, :, 0] + input_gate
        case = case._replace(states=states, Wx=Wx)
        first = case._replace(Wx=Wx[:, :1])
        compare(self.run(function, first), compute(self.reference_config(function), *first), dtype)
        for name, x in self.run(function, case, include_backward=input_gate == -400).items():
            assert torch.isfinite(x).all(), name

    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # an interpreter's, at 0 times infinity in padding
    @pytest.mark.parametrize("width", [5, 16, 33])
    def test_an_infinite_initial_h_shuts_gates(self, function: str, dtype: torch.dtype, device: str, width: int) -> None:
        """It saturates what it reaches; padding inside a backend, where it meets zeros, makes no NaN of it."""
        if function not in ("elman", "lstm"):
            pytest.skip("NaN by its formula")
        self.skip_without_infinity(dtype)
        case = self.case(function, device, dtype, head_dim=width)
        states = case.states.detach().clone()
        states[0, 0, :, 1] = float("inf")
        case = case._replace(states=states)
        results = self.run(function, case, include_backward=False)
        assert all(torch.isfinite(x).all() for x in results.values())
        compare(results, compute(self.reference_config(function), *case, include_backward=False), dtype)

    @pytest.mark.parametrize(("batch_size", "sequence_size"), [(3, 0), (0, 5), (0, 0)])
    def test_nothing_to_compute(
        self, function: str, dtype: torch.dtype, device: str, batch_size: int, sequence_size: int
    ) -> None:
        case = self.case(function, device, dtype, batch_size, sequence_size)
        results = self.run(function, case)
        expected = compute(self.reference_config(function), *case)
        compare_bitwise(results, expected)
        assert torch.equal(results["last h"].squeeze(1), case.states[0])
        for name in ("Wx", "R", "b"):
            assert not results[f"gradient of {name}"].any()

    def test_nothing_to_compute_from_no_states(self, function: str, dtype: torch.dtype, device: str) -> None:
        case = self.case(function, device, dtype, sequence_size=0, create_states=False)
        for name, x in self.run(function, case).items():
            assert not x.any(), name
