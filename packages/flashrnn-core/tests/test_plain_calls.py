"""A call goes past the ops only where nothing but autograd takes part in it; else PyTorch sees one opaque call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from core_inputs import make_inputs
from flashrnn import flashrnn

Leaves = tuple[Tensor, Tensor, Tensor]


@pytest.fixture
def leaves() -> Leaves:
    """Wx, R, b."""
    Wx, R, b, *_ = make_inputs("lstm")
    return tuple(x.detach().requires_grad_() for x in (Wx, R, b))  # type: ignore[return-value]


class Log(TorchDispatchMode):
    """Writes down the ops that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def run(*leaves: Tensor) -> Tensor:
    """All h."""
    return flashrnn(*leaves, backend="vanilla_fwbw")[0][0]


def gradients(h: Tensor, leaves: Leaves) -> tuple[Tensor, ...]:
    """Of the sum of all h."""
    return torch.autograd.grad(h.sum(), leaves)


def assert_all_equal(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    assert all(torch.equal(x, y) for x, y in zip(found, expected))


@pytest.mark.parametrize("forward_too", [False, True])
def test_a_dispatch_mode_sees_the_ops(leaves: Leaves, forward_too: bool) -> None:
    expected = run(*leaves)
    log = Log()
    if forward_too:
        with log:
            h = run(*leaves)
        assert "flashrnn.recurrence.default" in log.seen
    else:
        h = run(*leaves)
    with log:
        found = gradients(h, leaves)
    assert "flashrnn.recurrence_backward.default" in log.seen
    assert torch.equal(h, expected)
    assert_all_equal(found, gradients(expected, leaves))


def test_tracing_sees_the_op(leaves: Leaves) -> None:
    assert "flashrnn.recurrence" in str(make_fx(run)(*leaves).graph)


def test_a_subclass_stays_one(leaves: Leaves) -> None:
    class Special(Tensor):
        pass

    Wx, R, b = (x.detach() for x in leaves)
    assert type(run(Wx.as_subclass(Special), R, b)) is Special


def test_a_tensor_whose_sign_is_still_to_be_turned(leaves: Leaves) -> None:
    Wx, R, b = (x.detach() for x in leaves)
    negative = torch.complex(torch.zeros_like(Wx), -Wx).conj().imag
    assert negative.is_neg() and torch.equal(run(negative, R, b), run(Wx, R, b))


def test_meta_tensors_give_shapes(leaves: Leaves) -> None:
    meta = tuple(x.detach().to("meta").requires_grad_() for x in leaves)
    h = run(*meta)
    assert h.is_meta and h.shape == run(*leaves).shape
    assert all(x.is_meta for x in torch.autograd.grad(h.sum(), meta))


def test_several_gradients_at_a_time(leaves: Leaves) -> None:
    h = run(*leaves)
    twice = torch.stack([torch.ones_like(h), 2 * torch.ones_like(h)])
    found = torch.autograd.grad(h, leaves, twice, is_grads_batched=True, retain_graph=True)
    for both, one in zip(found, gradients(h, leaves)):
        torch.testing.assert_close(both, torch.stack([one, 2 * one]))


def test_inference_mode_and_saved_tensors_elsewhere(leaves: Leaves) -> None:
    expected = run(*leaves)
    with torch.inference_mode():
        assert torch.equal(run(*leaves), expected)
    with torch.autograd.graph.save_on_cpu():
        h = run(*leaves)
    assert_all_equal(gradients(h, leaves), gradients(expected, leaves))
