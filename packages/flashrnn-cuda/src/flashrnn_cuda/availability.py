"""Why a machine or a problem is not one for CUDA kernels, in one sentence."""

from __future__ import annotations

from typing import Optional

import torch

from flashrnn.errors import FlashRNNError
from flashrnn.problem import Problem

from .catalogue import TYPES, has_cell
from .compile.architectures import OLDEST, architecture_for
from .compile.compiler import why_not as why_no_compiler
from .device import device, index_of


def why_not_cuda(backend: str, problem: Problem) -> Optional[str]:
    """None if this machine can run CUDA kernels for the problem."""
    if problem.device.type != "cuda":
        return f"{backend} computes on NVIDIA GPUs, the tensors are on {problem.device.type!r}: move them with x.to('cuda')."
    if torch.version.hip is not None:
        return f"{backend} computes on NVIDIA GPUs, this PyTorch was built for ROCm."
    if problem.dtype not in TYPES:
        return f"{backend} computes in float32, float16 or bfloat16, not in {problem.dtype}; backend='vanilla' does."
    if not has_cell(problem.config.function):
        return f"{backend} has no CUDA code for function {problem.config.function!r}; backend='vanilla_fwbw' computes it."
    return why_no_device(backend, problem.device) or why_no_compiler()


def why_no_device(backend: str, asked: torch.device) -> Optional[str]:
    """None if the GPU is new enough and the driver answers."""
    try:
        found = device(index_of(asked))
    except (AssertionError, AttributeError, OSError, RuntimeError) as error:  # torch's, ctypes' and the driver's own
        return f"{backend} found no usable NVIDIA driver: {error}."
    if found.capability < OLDEST:
        have = ".".join(map(str, found.capability))
        return (
            f"{backend} needs compute capability 8.0 or newer, {found.name} has {have}; backend='vanilla_fwbw' runs on it."
        )
    try:
        architecture_for(found.capability)
    except FlashRNNError as error:  # what TORCH_CUDA_ARCH_LIST says
        return str(error)
    return None
