"""Why a machine or a problem is not one for the Triton kernels, in one sentence; without importing triton."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from shutil import which
from typing import Optional

import torch

from flashrnn.backend import why_no_nvidia_gpu
from flashrnn.discovery import AUTO
from flashrnn.errors import describe
from flashrnn.problem import Problem

FUNCTIONS = ("lstm", "gru", "elman", "slstm")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LARGEST_HEAD = 64
VARIABLE = "TRITON_INTERPRET"
DISPUTED = ("true", "yes", "y", "on")
"""What newer versions of Triton take for 1, older ones for 0."""
OLDEST = (8, 0)


def why_not_triton(problem: Problem) -> Optional[str]:
    """None if the kernels solve the problem here."""
    if not is_installed("triton"):
        return "triton_fused needs triton, which is not installed: pip install triton (on Linux)."
    if problem.dtype not in DTYPES:
        return f"triton_fused computes in float32, float16 or bfloat16, not in {problem.dtype}; backend='vanilla' does."
    if problem.config.function not in FUNCTIONS:
        return f"triton_fused has no code for function {problem.config.function!r}; backend='vanilla_fwbw' computes it."
    if problem.head_dim > LARGEST_HEAD:
        return (
            f"triton_fused takes head_dim up to {LARGEST_HEAD}, got {problem.head_dim}; backend='cuda_fused' takes more and "
            "backend='cuda' any (install flashrnn-cuda)."
        )
    if os.environ.get(VARIABLE, "").lower() in DISPUTED:
        return describe(VARIABLE, "1, on which all versions of Triton agree", repr(os.environ[VARIABLE]))
    return why_too_late() or (why_not_interpreted(problem) if is_interpreted() else why_no_device(problem.device))


def is_installed(name: str) -> bool:
    """Whether there is such a package; a folder of that name without code, in the working directory say, is none."""
    spec = find_spec(name)
    return spec is not None and spec.origin is not None


def is_interpreted() -> bool:
    """Whether Triton's kernels run in its interpreter, whatever the device."""
    return os.environ.get(VARIABLE) == "1"


def why_too_late() -> Optional[str]:
    """None unless TRITON_INTERPRET changed after triton was imported: its own functions are then of the other kind."""
    if was_interpreted() in (None, is_interpreted()):
        return None
    then, now = ("without", "is") if is_interpreted() else ("with", "is not")
    return (
        f"triton was imported {then} {VARIABLE}=1, which {now} set now: triton_fused needs the variable set before anything "
        "imports triton, as torch.compile and the first kernel do."
    )


def was_interpreted() -> Optional[bool]:
    """Whether triton was imported for its interpreter; None if it is not imported."""
    zeros = getattr(sys.modules.get("triton.language"), "zeros", None)  # a function in Triton's own language
    return None if zeros is None else type(zeros).__name__ == "InterpretedFunction"


def why_not_interpreted(problem: Problem) -> Optional[str]:
    """None if the interpreter is wanted, has what it needs, and computes in the dtype."""
    if not is_installed("numpy"):
        return "Triton's interpreter (TRITON_INTERPRET=1) needs numpy, which is not installed: pip install numpy."
    if problem.config.backend == AUTO:
        return (
            "'auto' passes triton_fused by in Triton's interpreter (TRITON_INTERPRET=1), which is slow; "
            "backend='triton_fused' takes it, in float32 and float16."
        )
    if problem.dtype == torch.bfloat16:
        return (
            "triton_fused cannot compute in bfloat16 in Triton's interpreter (TRITON_INTERPRET=1): float32 and float16 work."
        )
    return None


def why_no_device(device: torch.device) -> Optional[str]:
    """None if it is a GPU that is new enough."""
    elsewhere = why_no_nvidia_gpu("triton_fused", device)
    if elsewhere is not None:
        return f"{elsewhere} (With TRITON_INTERPRET=1 in the environment it computes here, slowly, to look for faults.)"
    try:
        name, have = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    except (AssertionError, RuntimeError) as error:  # torch's own
        return f"triton_fused found no usable GPU {str(device)!r} on this machine: {str(error).rstrip('.')}."
    if have < OLDEST:
        return (
            f"triton_fused needs compute capability 8.0 or newer, {name} has {have[0]}.{have[1]}; "
            "backend='vanilla_fwbw' runs on it."
        )
    return why_no_c_compiler()


def why_no_c_compiler() -> Optional[str]:
    """None if Triton finds a C compiler, as it looks for one: CC, whatever that says, else gcc or clang."""
    named = os.environ.get("CC")
    if sys.platform != "linux":
        return None  # others bring a compiler of their own
    if any(map(which, ("gcc", "clang") if named is None else (named,))):
        return None
    looked = "neither CC is set nor gcc or clang found" if named is None else f"CC names {named!r}, which is not found"
    return f"triton_fused needs a C compiler, by which Triton builds what launches kernels, and {looked}: install gcc."
