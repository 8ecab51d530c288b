"""Which compiler: FLASHRNN_CUDA_COMPILER is auto, nvrtc or nvcc."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from typing import Union

from flashrnn.errors import BackendUnavailable, ConfigError, describe

from .nvcc import Nvcc, nvcc_path
from .nvrtc import Nvrtc

VARIABLE = "FLASHRNN_CUDA_COMPILER"
AUTO = "auto"

Compiler = Union[Nvrtc, Nvcc]


def the_compiler() -> Compiler:
    """The compiler that the variable asks for; "auto" is NVRTC, else nvcc.

    Raises:
        BackendUnavailable: it is not on this machine.
        ConfigError: the variable has a value that it cannot have.
    """
    found = _find(_choice())
    if isinstance(found, str):
        raise BackendUnavailable(found)
    return found


def can_compile() -> bool:
    """Whether it is on this machine; ConfigError if the variable has a value that it cannot have."""
    return not isinstance(_find(_choice()), str)


def _choice() -> str:
    choice = os.environ.get(VARIABLE) or AUTO
    if choice not in CHOICES:
        raise ConfigError(describe(VARIABLE, f"one of {', '.join(CHOICES)}", repr(choice)))
    return choice


@cache
def _find(choice: str) -> Union[Compiler, str]:
    """The compiler, or why there is none. Searched once in a process."""
    reasons = []
    for open_one in CHOICES[choice]:
        found = open_one()
        if not isinstance(found, str):
            return found
        reasons.append(found)
    return f"There is no compiler for CUDA kernels: {'; '.join(reasons)}."


def _open_nvrtc() -> Union[Compiler, str]:
    try:
        return Nvrtc()
    except (OSError, AttributeError, RuntimeError) as error:  # not there, without a function we need, or not working
        return (
            f"NVRTC could not be loaded ({error}): pip install nvidia-cuda-nvrtc-cu12 for PyTorch with CUDA 12, "
            "nvidia-cuda-nvrtc for CUDA 13"
        )


def _open_nvcc() -> Union[Compiler, str]:
    path = nvcc_path()
    if path is None:
        return "nvcc was found neither through CUDA_HOME nor on the PATH nor in /usr/local/cuda"
    try:
        return Nvcc(path)
    except (OSError, subprocess.SubprocessError) as error:
        return f"nvcc does not work ({error})"


CHOICES = {AUTO: (_open_nvrtc, _open_nvcc), "nvrtc": (_open_nvrtc,), "nvcc": (_open_nvcc,)}
