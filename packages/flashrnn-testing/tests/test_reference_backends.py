"""The reference backends pass the contract themselves."""

from __future__ import annotations

import torch

from flashrnn_testing import BackendContract

ALL = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class TestVanilla(BackendContract):
    """Held against vanilla_fwbw, whose backward pass is written by hand."""

    backend = "vanilla"
    reference = "vanilla_fwbw"
    dtypes = ALL
    has_second_derivatives = True


class TestVanillaFwbw(BackendContract):
    """Held against vanilla, whose backward pass is autograd's."""

    backend = "vanilla_fwbw"
    dtypes = ALL
