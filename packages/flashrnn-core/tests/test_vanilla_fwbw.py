"""vanilla_fwbw reads and writes several steps at once; that changes nothing."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
import torch

from core_inputs import FUNCTIONS, MASKS, assert_equal, copies, gradients, make_inputs, run
from flashrnn import ConfigError, FlashRNNConfig, blocks, flashrnn
from flashrnn.vanilla_fwbw import lstm_pt_fwbw, memory, slstm_pt_fwbw

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


@pytest.mark.parametrize("system", ["with large pages", "that refuses them", "without them"])
def test_large_results_lie_in_large_pages_where_there_are_any(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """States, activations and dWx, all of each, are what is asked for; results are the same whatever the answer."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 14, raising=False)
    B, T, D = 4, 256, 512  # 2 MiB a gate
    inputs = [torch.randn(B, T, 4, 1, D, requires_grad=True), torch.randn(4, 1, D, D) / D, torch.randn(4, 1, D)]
    expected, expected_grad = results_and_gradient(inputs)
    asked: list[tuple[int, int]] = []

    def madvise(start: int, size: int, advice: int) -> int:
        asked.append((start, size))
        return -1

    if system != "with large pages":
        monkeypatch.setattr(memory, "find_madvise", lambda: madvise if system == "that refuses them" else None)
    states, grad = results_and_gradient(inputs)
    assert torch.equal(states, expected) and torch.equal(grad, expected_grad)
    if system == "that refuses them":
        assert all(start % mmap.PAGESIZE == 0 for start, _ in asked)
        assert len(asked) == 3
        (start, size), *_ = asked
        assert start <= states.data_ptr() and states.data_ptr() + 4 * states.numel() == start + size
        start, size = asked[-1]
        assert start <= grad.data_ptr() and grad.data_ptr() + 4 * grad.numel() == start + size


def results_and_gradient(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """All states of an lstm, and the gradient of Wx."""
    states, _ = flashrnn(*inputs, backend="vanilla_fwbw")
    return states.detach(), torch.autograd.grad(states.sum(), inputs[0])[0]


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
