"""Several threads at once: Triton's interpreter changes Triton while it runs a kernel, so that it takes one at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from flashrnn import flashrnn
from flashrnn_testing import create_inputs


def gradients(seed: int) -> tuple[Tensor, ...]:
    """Of a call's inputs, and its result."""
    leaves = create_inputs(2, 3, 1, 16, "lstm", create_states=False, seed=seed)
    states, _ = flashrnn(*leaves, function="lstm", backend="triton_fused")
    return (states.detach(), *torch.autograd.grad(states.sum(), leaves))


def test_threads_get_what_one_gets() -> None:
    expected = [gradients(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(3):
            for some, others in zip(threads.map(gradients, range(4)), expected):
                assert all(torch.equal(x, y) for x, y in zip(some, others))
