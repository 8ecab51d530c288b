"""Why a machine or a problem is not one for CUDA kernels, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

import torch

from flashrnn.backend import why_no_nvidia_gpu
from flashrnn.errors import BackendUnavailable, FlashRNNError
from flashrnn.problem import Problem

from .catalogue import TYPES, has_cell, name_of
from .compile import load_cubin
from .compile.architectures import OLDEST, architecture_for
from .compile.compiler import can_compile
from .compile.kernel import Kernel
from .device import device, index_of


def why_not_cuda(backend: str, problem: Problem) -> Optional[str]:
    """None if this machine has a GPU for CUDA kernels that solve the problem."""
    elsewhere = why_no_nvidia_gpu(backend, problem.device)
    if elsewhere is not None:
        return elsewhere
    if problem.dtype not in TYPES:
        return f"{backend} computes in float32, float16 or bfloat16, not in {problem.dtype}; backend='vanilla' does."
    if not has_cell(problem.config.function):
        return f"{backend} has no CUDA code for function {problem.config.function!r}; backend='vanilla_fwbw' computes it."
    return why_no_device(backend, problem.device)


def why_no_device(backend: str, asked: torch.device) -> Optional[str]:
    """None if the GPU is new enough and the driver answers."""
    try:
        found = device(index_of(asked))
    except (AssertionError, AttributeError, OSError, RuntimeError) as error:  # torch's, ctypes' and the driver's own
        return f"{backend} found no usable GPU {str(asked)!r} on this machine: {str(error).rstrip('.')}."
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


def why_not_built(backend: str, problem: Problem, kernels: Iterable[Kernel]) -> Optional[str]:
    """None if kernels can be compiled here, or all of these were built before."""
    try:
        if not can_compile():
            capability = device(index_of(problem.device)).capability
            for kernel in kernels:
                load_cubin(kernel, capability)
    except BackendUnavailable as error:
        what = f"--function {problem.config.function} --head-dim {problem.head_dim} --dtype {name_of(problem.dtype)}"
        where = f"--backend {backend} --arch {architecture_for(capability).entry} --output FOLDER"
        return f"{str(error).rstrip('.')}; where there is one, `python -m flashrnn_cuda build {what} {where}` builds it."
    except FlashRNNError as error:  # what variables or the cache folder say
        return str(error)
    return None
