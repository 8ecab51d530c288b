"""The contract between core and a backend."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Optional

import torch

from .problem import InputGradients, Inputs, OutputGradients, Outputs, Problem

INTERFACE_VERSION = 1
"""Counts the changes of everything a backend package relies on: this file, Problem and its tensors, CellSpec."""


class Backend(ABC):
    """One way to compute the recurrence. A package offers an instance through the entry-point group "flashrnn.backends".

    Core checks the arguments, casts them, allocates what comes out, and owns autograd and the current device; a backend
    fills tensors. It keeps no state between calls, never waits for the device and never writes to what it reads.

    Attributes:
        name: the name in `backend=...`, the same as that of the entry point.
        aliases: other names it answers to.
        priority: `auto` takes the usable backend with the highest.
        interface_version: the INTERFACE_VERSION that the backend was written for, as a literal number.
        is_reference: correct rather than fast; `auto` warns when it leaves a GPU tensor to such a backend.
    """

    name: str
    aliases: tuple[str, ...] = ()
    priority: int = 0
    interface_version: int
    is_reference: bool = False

    @abstractmethod
    def why_not(self, problem: Problem) -> Optional[str]:
        """None if this backend solves the problem, else one sentence: the limit, the value found, what would work.

        Quick, and without side effects: no compile, no allocation, nothing written.
        """

    def how(self, problem: Problem) -> str:
        """In a few words how it would solve a problem that it solves, and what time that should take; may be empty.

        For people who ask `flashrnn.explain`; as quick as why_not.
        """
        return ""

    @abstractmethod
    def forward(self, problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
        """Fill every element of `outputs`. Never called for a problem that `is_empty`."""

    @abstractmethod
    def backward(
        self, problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients
    ) -> None:
        """Fill every element of `into`, given what forward read and filled. Never called for a problem that `is_empty`."""


def why_no_nvidia_gpu(backend: str, device: torch.device) -> Optional[str]:
    """None if `device` is an NVIDIA GPU; else why `backend`, which computes on these alone, does not compute there."""
    if torch.version.hip is not None:
        return f"{backend} computes on NVIDIA GPUs, this PyTorch was built for ROCm."
    if device.type == "cuda":
        return None
    if torch.cuda.is_available():
        return f"{backend} computes on NVIDIA GPUs, not on {device.type!r}: move tensors there with x.to('cuda')."
    return f"{backend} computes on NVIDIA GPUs, of which none is found; backend='vanilla_fwbw' computes on {device.type!r}."
