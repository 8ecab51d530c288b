"""triton_fused passes the contract: compiled on a GPU, without one by Triton's interpreter, which knows no bfloat16."""

from __future__ import annotations

import pytest
import torch

from flashrnn_testing import BackendContract, model_test

ON_GPU = torch.cuda.is_available()
FUNCTIONS = ("lstm", "gru", "elman", "slstm")


class TestTritonFused(BackendContract):
    """R on the chip."""

    backend = "triton_fused"
    dtypes = (torch.float32, torch.float16, torch.bfloat16) if ON_GPU else (torch.float32,)
    head_dims = (1, 3, 15, 16, 17, 31, 32, 33, 64) if ON_GPU else (1, 3, 16, 17, 31, 33, 64)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_against_the_backward_pass_by_hand(function: str) -> None:
    assert model_test(
        batch_size=4,
        sequence_size=8,
        num_heads=3,
        head_dim=16,
        backend="triton_fused",
        backend_cmp="vanilla_fwbw",
        function=function,
        include_backward=True,
    )


@pytest.mark.skipif(ON_GPU, reason="on a GPU the contract asks for float16 anyway")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_float16_in_the_interpreter(function: str) -> None:
    assert model_test(3, 5, 2, 17, function, "triton", dtype="float16")


@pytest.mark.skipif(ON_GPU, reason="on a GPU the contract asks for float16 anyway")
@pytest.mark.parametrize("input_gate", [-4.0, -400.0])
def test_c_without_n_in_float16(input_gate: float) -> None:
    TestTritonFused().test_c_without_n("slstm", torch.float16, "cpu", input_gate)
