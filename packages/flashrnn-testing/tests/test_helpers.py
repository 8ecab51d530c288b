"""The helpers as a user meets them, under both import paths."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from flashrnn.cells import CELLS
from flashrnn.tests.utils import check_backward, check_forward, compare_with_baseline, create_inputs, flashrnn, model_test
from flashrnn.vanilla_fwbw import (
    elman_pointwise_fw,
    elman_pt_fwbw,
    gru_pointwise_fw,
    gru_pt_fwbw,
    lstm_pointwise_fw,
    lstm_pt_fwbw,
    slstm_pointwise_fw,
    slstm_pt_fwbw,
)
from flashrnn_testing import Mismatch

SEQUENCES = {
    "lstm": (lstm_pt_fwbw, lstm_pointwise_fw),
    "gru": (gru_pt_fwbw, gru_pointwise_fw),
    "elman": (elman_pt_fwbw, elman_pointwise_fw),
    "slstm": (slstm_pt_fwbw, slstm_pointwise_fw),
}


@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("create_states", [True, False])
def test_sequence_functions_against_the_baseline(function: str, create_states: bool) -> None:
    target, pointwise = SEQUENCES[function]
    inputs = create_inputs(3, 6, 2, 8, function, create_states, torch.float64, device="cpu", backend="whatever")
    differences = compare_with_baseline(target, inputs, pointwise)
    assert set(differences) >= {"states", "last_states", "gradient of Wx", "gradient of R", "gradient of b"}
    assert ("gradient of states" in differences) == create_states
    assert max(differences.values()) < 1e-12


def test_create_inputs_has_no_zero_state() -> None:
    Wx, states, R, b = create_inputs(2, 5, 3, 4, "slstm", device="cpu")
    assert [tuple(x.shape) for x in (Wx, states, R, b)] == [(2, 5, 4, 3, 4), (4, 2, 3, 4), (4, 3, 4, 4), (4, 3, 4)]
    assert all(bool((x != 0).all()) and x.requires_grad and x.is_leaf for x in (Wx, states, R, b))
    assert len(create_inputs(2, 5, 3, 4, "gru", create_states=False, device="cpu")) == 3


def test_check_forward_and_backward() -> None:
    inputs = create_inputs(2, 4, 2, 8, "lstm", device="cpu")

    def run(backend: str, scale: float = 1.0):  # type: ignore[no-untyped-def]
        return lambda Wx, states, R, b: flashrnn(Wx, scale * R, b, states, function="lstm", backend=backend)

    assert check_forward(run("vanilla"), run("vanilla_fwbw"), inputs)
    assert check_backward(run("vanilla"), run("vanilla_fwbw"), inputs)
    assert check_backward(run("vanilla"), run("vanilla_fwbw"), inputs, input_grad_mask=[False, True, False, True])
    with pytest.raises(Mismatch, match=r"output\[0\]"):
        check_forward(run("vanilla"), run("vanilla", 1.01), inputs)
    with pytest.raises(Mismatch, match="gradient of R"):
        check_backward(
            run("vanilla"), run("vanilla", 1.01), inputs, [False, False, True, False], names=("Wx", "states", "R", "b")
        )
    with pytest.raises(ValueError, match="input_grad_mask: expected 4 entries"):
        check_backward(run("vanilla"), run("vanilla"), inputs, input_grad_mask=[True])


def test_model_test_takes_options_and_masks() -> None:
    lengths = torch.tensor([0, 4, 2])
    assert model_test(
        3, 4, 1, 8, "gru", backend="vanilla_fwbw", lengths=lengths, device="cpu", gradient_recurrent_clipval=0.1
    )


def test_without_flashrnn_testing_the_import_says_what_to_install() -> None:
    code = "import sys; sys.modules['flashrnn_testing'] = None; import flashrnn.tests.utils"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "ImportError: flashrnn.tests.utils needs the package flashrnn-testing: install it." in done.stderr
