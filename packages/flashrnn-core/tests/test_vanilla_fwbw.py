"""vanilla_fwbw reads and writes several steps at once; that changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_inputs import FUNCTIONS, MASKS, assert_equal, copies, gradients, make_inputs, run
from flashrnn import ConfigError, FlashRNNConfig, blocks, flashrnn
from flashrnn.vanilla_fwbw import lstm_pt_fwbw, slstm_pt_fwbw

ONE_STEP = 2 * 2 * 2  # elements of one: NH, B, D


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_any_number_of_steps_at_once(
    monkeypatch: pytest.MonkeyPatch, function: str, masks: str, steps: int, recompute: bool
) -> None:
    """Of the three steps there are: each alone, two and one, all."""
    monkeypatch.setattr(blocks, "BLOCK", steps * ONE_STEP)
    found: list[Any] = []
    for backend in ("vanilla", "vanilla_fwbw"):
        inputs = copies(make_inputs(function))
        options = {"recompute": recompute and backend == "vanilla_fwbw", "forward_clipval": 0.5}
        results = run(function, backend, inputs, *MASKS[masks], **options)
        found.append([*results, *gradients(results, inputs)])
    assert_equal(*found, 1e-12)


@pytest.mark.parametrize("input_shape", ["BTGHD", "TBGHD"])
def test_the_gradient_of_b_is_one_sum_whether_Wx_wants_one_or_not(input_shape: str) -> None:
    """To the bit: it is summed in the order of dWx, which has to be that of what stands in its place."""
    torch.manual_seed(0)
    Wx, R, b = torch.randn(30, 16, 4, 1, 8), torch.randn(4, 1, 8, 8), torch.randn(4, 1, 8, requires_grad=True)
    config = FlashRNNConfig("lstm", "vanilla_fwbw", input_shape=input_shape)
    found = []
    for wanted in (False, True):
        states, _ = flashrnn(Wx.clone().requires_grad_(wanted), R, b, config=config)
        found.append(torch.autograd.grad(states.square().sum(), b)[0])
    assert torch.equal(*found)


def test_a_function_by_its_name_takes_no_config_of_another() -> None:
    Wx, R, b, _ = make_inputs("lstm")
    with pytest.raises(ConfigError, match=r"config\.function.*'lstm'.*'slstm'"):
        lstm_pt_fwbw(Wx, R, b, config=FlashRNNConfig("slstm"))
    with pytest.raises(ConfigError, match="config"):
        lstm_pt_fwbw(Wx, R, b, config="slstm")
    states, _ = slstm_pt_fwbw(Wx, R, b, config=FlashRNNConfig(forward_clipval=2.0))
    assert len(states) == 4


def test_a_function_by_its_name_takes_no_other_function_or_backend() -> None:
    Wx, R, b, _ = make_inputs("lstm")
    with pytest.raises(ConfigError, match=r"^function: expected 'slstm', got 'lstm'"):
        slstm_pt_fwbw(Wx, R, b, function="lstm")
    with pytest.raises(ConfigError, match=r"^backend: expected 'vanilla_fwbw', got 'vanilla'"):
        slstm_pt_fwbw(Wx, R, b, backend="vanilla")
    with pytest.raises(ConfigError, match=r"^backend: .*'vanilla_fwbw'.*'vanilla'"):
        slstm_pt_fwbw(Wx, R, b, config=FlashRNNConfig("slstm", "vanilla"))
    states, _ = slstm_pt_fwbw(Wx, R, b, function="slstm", backend="vanilla_fwbw", config=FlashRNNConfig("lstm", "auto"))
    assert len(states) == 4
