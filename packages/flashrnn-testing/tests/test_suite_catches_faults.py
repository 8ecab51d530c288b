"""The suite is worth something: a backend with a fault does not pass it, and the error says where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

import pytest
import torch

from flashrnn import discovery
from flashrnn.problem import InputGradients, Inputs, OutputGradients, Outputs, Problem
from flashrnn.vanilla_fwbw.backend import VanillaFwbw
from flashrnn_testing import Mismatch, model_test


class Faulty(VanillaFwbw):
    """vanilla_fwbw with one thing changed in what it returns."""

    name = "faulty"

    def __init__(self, fault: Callable[..., None]) -> None:
        self.fault = fault

    def forward(self, problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
        super().forward(problem, inputs, outputs)
        self.fault(outputs=outputs)

    def backward(
        self, problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients
    ) -> None:
        super().backward(problem, inputs, outputs, grads, into)
        self.fault(into=into)


def one_step_of_c(outputs: Outputs | None = None, into: InputGradients | None = None) -> None:
    """One element of c at one step."""
    if outputs is not None:
        outputs.states[1, 2, 3, 0, 4] += 0.01


def last_h_of_one_row(outputs: Outputs | None = None, into: InputGradients | None = None) -> None:
    """The last h of one row."""
    if outputs is not None:
        outputs.last_states[0, 1] *= 1.001


def gradient_of_R_of_one_gate(outputs: Outputs | None = None, into: InputGradients | None = None) -> None:
    """R's gradient of one gate and head."""
    if into is not None:
        into.R[3, 1] *= 1.001


def initial_c_never_written(outputs: Outputs | None = None, into: InputGradients | None = None) -> None:
    """A gradient that is forgotten: the memory stays as it was allocated."""
    if into is not None:
        into.states[1] = float("nan")


FAULTS = {
    "c": one_step_of_c,
    "last h": last_h_of_one_row,
    "gradient of R": gradient_of_R_of_one_gate,
    "gradient of initial c": initial_c_never_written,
}


@pytest.fixture(params=FAULTS.items(), ids=FAULTS.keys())
def faulty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Install a faulty backend and name the tensor that is wrong."""
    name, fault = request.param
    everyone = (discovery.Candidate("faulty", "a test", Faulty(fault)), *discovery.candidates())
    monkeypatch.setattr(discovery, "candidates", lambda: everyone)
    discovery.choose.cache_clear()
    yield name
    discovery.choose.cache_clear()


def test_model_test_names_the_wrong_tensor(faulty: str) -> None:
    with pytest.raises(Mismatch, match=f"^{faulty}: largest difference .* at index"):
        model_test(4, 8, 2, 16, "lstm", backend="faulty")


def test_mismatch_says_how_far_and_where() -> None:
    from flashrnn_testing import check_close

    expected = torch.zeros(2, 3)
    actual = expected.clone()
    actual[1, 2] = 0.5
    with pytest.raises(
        Mismatch, match=r"^thing: largest difference 0\.5 at index \(1, 2\), where 0\.5 stands instead of 0 "
    ):
        check_close("thing", actual, expected)
    with pytest.raises(Mismatch, match="inf at index"):
        check_close("thing", torch.full((2,), float("nan")), torch.ones(2), atol=0.5, rtol=1.0)
    check_close("thing", actual, expected, atol=0.5)


def test_the_seed_s_call() -> None:
    assert model_test(
        batch_size=3,
        sequence_size=7,
        num_heads=2,
        head_dim=16,
        backend="vanilla",
        backend_cmp="vanilla_fwbw",
        function="slstm",
        dtype="float32",
        include_backward=True,
        tensor_compare_kwargs={"atol": 1e-4, "rtol": 1e-4},
    )
