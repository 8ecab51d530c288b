"""Right numbers: every state and gradient against the reference, at all sizes, to the bit from run to run."""

from __future__ import annotations

import pytest
import torch

from flashrnn import flashrnn

from ..model_test import model_test
from ..results import compare, compare_bitwise, compute
from .base import Case, ContractBase

# What is differentiated so that every gate gradient of one gate is exactly 1: h = 0 and the other gates hold still.
# Gate index in R, value of all initial h, gates of Wx to set, and the gradient of h that gives 1.
UNIT_GRADIENT = {
    "elman": (0, {}, 1.0),
    "lstm": (2, {}, 4.0),
    "slstm": (2, {}, 2.0),
    "gru": (0, {1: -100.0}, 2.0),
}


class ValueTests(ContractBase):
    """Right numbers."""

    def test_equals_the_reference(self, function: str, dtype: torch.dtype, device: str) -> None:
        assert model_test(9, 33, 2, 32, function, self.backend, self.reference, device, dtype)

    def test_equals_the_reference_from_zero_states(self, function: str, dtype: torch.dtype, device: str) -> None:
        assert model_test(4, 12, 3, 16, function, self.backend, self.reference, device, dtype, create_states=False)

    def test_any_head_dim(self, function: str, device: str, head_dim: int, dtype: torch.dtype) -> None:
        assert model_test(3, 4, 2, head_dim, function, self.backend, self.reference, device, dtype)

    @pytest.mark.parametrize("batch_size", [1, 2, 7, 8, 9, 15, 16, 17, 65])
    def test_any_batch_size(self, function: str, device: str, batch_size: int) -> None:
        assert model_test(batch_size, 3, 2, 16, function, self.backend, self.reference, device, self.dtypes[0])

    @pytest.mark.parametrize(("sequence_size", "num_heads"), [(1, 1), (2, 5), (3, 1), (64, 1)])
    def test_any_length_and_number_of_heads(self, function: str, device: str, sequence_size: int, num_heads: int) -> None:
        assert model_test(2, sequence_size, num_heads, 16, function, self.backend, self.reference, device, self.dtypes[0])

    @pytest.mark.parametrize("scale", [1e-3, 1e-6, 1e-8])
    def test_tiny_inputs(self, function: str, device: str, scale: float) -> None:
        """Errors are small against results that are tiny: tanh(1e-8) is 1e-8, not 0. In float32, against float64."""
        if torch.float32 not in self.dtypes:
            pytest.skip(f"{self.backend} does not claim float32")
        Wx, R, b, _ = self.case(function, device, head_dim=17)
        tiny = (scale * Wx, R, torch.zeros_like(b))
        exact = compute(self.reference_config(function), *(x.double() for x in tiny))
        compare(self.run(function, Case(*tiny, states=None)), exact, torch.float32)

    def test_tiny_inputs_in_float16(self, function: str, device: str) -> None:
        """Near the smallest normal numbers 1e-7 off in tanh shows. Of h alone: gradients reach the smallest of all."""
        if torch.float16 not in self.dtypes or function == "slstm":
            pytest.skip("float16, of a function whose h is as small as its inputs")
        Wx, R, b, _ = self.case(function, device, torch.float16, head_dim=17)
        tiny = (1e-4 * Wx, R, torch.zeros_like(b))
        exact = compute(self.reference_config(function), *(x.double() for x in tiny))["h"]
        compare({"h": self.run(function, Case(*tiny, states=None))["h"]}, {"h": exact}, torch.float16)

    @pytest.mark.parametrize("forget", [10.0, 20.0])
    def test_what_slstm_hardly_forgets(self, function: str, device: str, forget: float) -> None:
        """The last m is then the sum of what is left of 0 in every step, exp(-forget). In float32, against float64."""
        if function != "slstm" or torch.float32 not in self.dtypes:
            pytest.skip("a question to slstm in float32")
        Wx, R, b, states = (x.detach().clone() for x in self.case(function, device, head_dim=17))
        Wx[:, :, 0], Wx[:, :, 1] = -50, Wx[:, :, 1].abs() + forget
        states[2:] = torch.tensor([1.0, 0.0], device=device)[:, None, None, None]
        given = (Wx, torch.zeros_like(R), torch.zeros_like(b), states)
        exact = compute(self.reference_config(function), *(x.double() for x in given))
        compare(self.run(function, Case(*given)), exact, torch.float32)

    def test_forward_alone_equals_training(self, function: str, dtype: torch.dtype, device: str) -> None:
        case = self.case(function, device, dtype)
        training = self.run(function, case)
        inference = self.run(function, case, include_backward=False)
        compare_bitwise(inference, {name: training[name] for name in inference})

    def test_equal_to_the_bit_from_run_to_run(self, function: str, dtype: torch.dtype, device: str) -> None:
        case = self.case(function, device, dtype, batch_size=17, sequence_size=9)
        first = self.run(function, case)
        for _ in range(3):
            compare_bitwise(self.run(function, case), first)

    def test_sums_over_steps_and_rows_are_exact(self, function: str, dtype: torch.dtype, device: str) -> None:
        """4096 gradients of exactly 1 sum to exactly 4096, which bfloat16 cannot count to."""
        if function not in UNIT_GRADIENT:
            pytest.skip(f"nobody has said how a gradient of exactly 1 comes about in {function}")
        rows, head_dim = 4096, 16
        gate, settings, scale = UNIT_GRADIENT[function]
        Wx, R, b, states = (torch.zeros_like(x) for x in self.case(function, device, dtype, rows, 1, 1, head_dim))
        for k, value in settings.items():
            Wx[:, :, k] = value
        states[0] = 1
        leaves = [x.requires_grad_() for x in (Wx, R, b, states)]
        every, _ = flashrnn(*leaves, config=self.config(function))
        (scale * every[0].float()).sum().backward()
        expected = torch.full((head_dim, head_dim), float(rows), dtype=dtype)
        assert torch.equal(leaves[1].grad[gate, 0].cpu(), expected)
        assert torch.equal(leaves[2].grad[gate, 0].cpu(), expected[0])
