"""Both CUDA backends pass the contract, on a GPU."""

from __future__ import annotations

import pytest

from flashrnn_testing import BackendContract

pytestmark = pytest.mark.gpu


class TestCudaFused(BackendContract):
    """R on the chip, on as many SMs as the plan says."""

    backend = "cuda_fused"
    has_infinity_in_float32 = False
    head_dims = (1, 3, 15, 16, 17, 31, 33, 64, 65, 128)


class TestCuda(BackendContract):
    """R from L2."""

    backend = "cuda"
    has_infinity_in_float32 = False
    head_dims = (1, 3, 15, 16, 17, 31, 33, 64, 65, 127, 128, 129, 200)
