"""Device: the facts of a GPU that planning needs, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from . import driver

CLUSTER_CTAS = {9: 16, 10: 16, 11: 8, 12: 8}
"""By the major number of the compute capability. Source: CUDA C++ Programming Guide, thread block clusters; 16 is the
non-portable size."""


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        name: as the vendor calls it.
        capability: (major, minor).
        multiprocessors: SMs.
        shared_bytes: the most shared memory one CTA can have.
        registers: 32-bit registers of an SM.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int
    registers: int = 65536

    @property
    def cluster_ctas(self) -> int:
        """The most CTAs of a cluster; 1: there are no clusters."""
        return CLUSTER_CTAS.get(self.capability[0], 1)


@cache
def device(index: int) -> Device:
    """The GPU that torch calls cuda:index."""
    handle, which = driver.device(index), driver.Attribute
    return Device(
        name=driver.name(handle),
        capability=(driver.attribute(handle, which.MAJOR), driver.attribute(handle, which.MINOR)),
        multiprocessors=driver.attribute(handle, which.MULTIPROCESSORS),
        shared_bytes=driver.attribute(handle, which.SHARED_BYTES),
        registers=driver.attribute(handle, which.REGISTERS),
    )


def devices_here() -> list[Device]:
    """The GPUs of this machine; none where there is no driver."""
    try:
        return [device(index) for index in range(torch.cuda.device_count())]
    except (OSError, driver.DriverError):
        return []


def index_of(device: torch.device) -> int:
    """Which one a CUDA device is; without an index it is the current one."""
    return torch.cuda.current_device() if device.index is None else device.index
