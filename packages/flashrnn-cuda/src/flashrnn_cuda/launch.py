"""From a kernel's text to a launch: compiled and loaded once for each device, then only launched."""

from __future__ import annotations

from functools import cache

from .compile import load_cubin
from .compile.kernel import Kernel
from .device import device
from .driver import Function


@cache
def function(kernel: Kernel, index: int, shared_bytes: int, cluster: int = 1) -> Function:
    """The kernel on the device that torch calls cuda:index, with that much dynamic shared memory, in clusters of a size."""
    return Function(load_cubin(kernel, device(index).capability), kernel.entry, index, shared_bytes, cluster)
