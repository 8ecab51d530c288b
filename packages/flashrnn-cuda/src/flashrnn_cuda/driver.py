"""The few functions of the CUDA driver that load and launch kernels, through ctypes.

torch owns contexts, streams and memory; a kernel is loaded into the context that torch uses, the primary one of a device,
and launched on its streams.
A binding package would do, but none serves every supported Python (3.9) and costs as little a launch.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_uint, c_void_p
from enum import IntEnum
from functools import cache
from typing import Optional

import torch


class DriverError(RuntimeError):
    """A function of the CUDA driver failed."""


class Attribute(IntEnum):
    """CUdevice_attribute."""

    REGISTERS = 82
    MULTIPROCESSORS = 16
    MAJOR = 75
    MINOR = 76
    SHARED_BYTES = 97


MAX_DYNAMIC_SHARED_BYTES, NON_PORTABLE_CLUSTER_SIZE = 8, 14  # CUfunction_attribute
PORTABLE_CLUSTER_SIZE = 8
INVALID_CONTEXT, INVALID_HANDLE = 201, 400  # CUresult
RELAXED = 2  # CUstreamCaptureMode


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig: the grid, the CTA, dynamic shared memory, the stream, attributes and how many."""

    _fields_ = [
        *((name, c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared_bytes")),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    ]


SIGNATURES = {
    "cuInit": [c_uint],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxGetCurrent": [POINTER(c_void_p)],
    "cuCtxSetCurrent": [c_void_p],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [POINTER(c_void_p)],
    "cuThreadExchangeStreamCaptureMode": [POINTER(c_int)],
    "cuModuleLoadData": [POINTER(c_void_p), c_char_p],
    "cuModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "cuFuncSetAttribute": [c_void_p, c_int, c_int],
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": [POINTER(c_int), c_void_p, c_int, ctypes.c_size_t],
    "cuOccupancyMaxActiveClusters": [POINTER(c_int), c_void_p, POINTER(LaunchConfig)],
    "cuLaunchKernel": [c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_char_p), POINTER(c_void_p)],
    "cuLaunchCooperativeKernel": [c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_char_p)],
}


@cache
def library() -> ctypes.CDLL:
    """The driver's library.

    Raises:
        OSError: there is no driver on this machine.
    """
    for name in ("nvcuda.dll",) if os.name == "nt" else ("libcuda.so.1",):
        try:
            found = ctypes.CDLL(name)
            break
        except OSError as error:
            failure = error
    else:
        raise failure
    for function, arguments in SIGNATURES.items():
        getattr(found, function).argtypes = arguments
        getattr(found, function).restype = c_int
    check(found.cuInit(0), found)
    return found


def check(status: int, found: Optional[ctypes.CDLL] = None) -> None:
    """Raise for a status that is not success."""
    if status:
        text = c_char_p()
        (found or library()).cuGetErrorString(status, byref(text))
        raise DriverError(f"CUDA driver: {(text.value or b'unknown error').decode()} (code {status})")


def device(index: int) -> int:
    """The driver's handle of the device that torch calls cuda:index; the two count alike, as torch's runtime does."""
    handle = c_int()
    check(library().cuDeviceGet(byref(handle), index))
    return handle.value


def name(handle: int) -> str:
    """What the vendor calls a device."""
    text = ctypes.create_string_buffer(256)
    check(library().cuDeviceGetName(text, len(text), handle))
    return text.value.decode()


def attribute(handle: int, which: Attribute) -> int:
    """One number about a device."""
    value = c_int()
    check(library().cuDeviceGetAttribute(byref(value), which, handle))
    return value.value


class Function:
    """A kernel, loaded into the context torch uses on one device."""

    def __init__(self, cubin: bytes, entry: str, index: int, shared_bytes: int, cluster: int = 1) -> None:
        self.index, self.shared_bytes, self.cluster = index, shared_bytes, cluster
        self.start, self.start_cooperative = library().cuLaunchKernel, library().cuLaunchCooperativeKernel
        self.residents: dict[int, int] = {}
        self.module, self.handle = c_void_p(), c_void_p()
        with torchs_context(index):
            check(library().cuModuleLoadData(byref(self.module), cubin))
            check(library().cuModuleGetFunction(byref(self.handle), self.module, entry.encode()))
            if shared_bytes:
                check(library().cuFuncSetAttribute(self.handle, MAX_DYNAMIC_SHARED_BYTES, shared_bytes))
            if cluster > PORTABLE_CLUSTER_SIZE:
                check(library().cuFuncSetAttribute(self.handle, NON_PORTABLE_CLUSTER_SIZE, 1))
        current_context(index)  # else the first launch would be refused

    def launch(self, grid: tuple[int, ...], threads: int, arguments: bytes, cooperative: bool = False) -> None:
        """Launch a grid of CTAs of `threads` on torch's current stream of the device; the arguments are passed by value."""
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        start, extra = (self.start_cooperative, ()) if cooperative else (self.start, (None,))
        values = byref(c_char_p(arguments))
        given = (self.handle, *(*grid, 1, 1)[:3], threads, 1, 1, self.shared_bytes, stream, values, *extra)
        status = start(*given)
        if status in (INVALID_CONTEXT, INVALID_HANDLE):
            ensure_context(self.index)
            status = start(*given)
        check(status)

    def resident(self, threads: int) -> int:
        """How many CTAs of `threads` the device holds at a time."""
        if threads not in self.residents:
            count = c_int()
            with torchs_context(self.index):
                if self.cluster > 1:
                    config = LaunchConfig(self.cluster, 1, 1, threads, 1, 1, self.shared_bytes)
                    check(library().cuOccupancyMaxActiveClusters(byref(count), self.handle, byref(config)))
                    self.residents[threads] = count.value * self.cluster
                else:
                    find = library().cuOccupancyMaxActiveBlocksPerMultiprocessor
                    check(find(byref(count), self.handle, threads, self.shared_bytes))
                    self.residents[threads] = count.value * attribute(device(self.index), Attribute.MULTIPROCESSORS)
        return self.residents[threads]


@cache
def primary_context(index: int) -> int:
    """The context that torch uses on a device; it is kept for as long as the process lives."""
    context = c_void_p()
    check(library().cuDevicePrimaryCtxRetain(byref(context), device(index)))
    return context.value or 0


@contextmanager
def torchs_context(index: int) -> Iterator[None]:
    """Load there, whatever is current on this thread, and even while a graph is captured: nothing of it enters the graph."""
    mode, popped = c_int(RELAXED), c_void_p()
    check(library().cuThreadExchangeStreamCaptureMode(byref(mode)))
    try:
        check(library().cuCtxPushCurrent_v2(primary_context(index)))
        try:
            yield
        finally:
            check(library().cuCtxPopCurrent_v2(byref(popped)))
    finally:
        check(library().cuThreadExchangeStreamCaptureMode(byref(mode)))


def current_context(index: int) -> int:
    """The context that is current: torch's where this thread had none yet."""
    current = c_void_p()
    check(library().cuCtxGetCurrent(byref(current)))
    if not current.value:
        current.value = primary_context(index)
        check(library().cuCtxSetCurrent(current.value))
    return current.value or 0


def ensure_context(index: int) -> None:
    """After a launch was refused: see to it that torch's context is current.

    One that another library made is left alone, since torch's own kernels run in it too, not ordered with those launched in
    torch's own context.

    Raises:
        DriverError: another context is current.
    """
    if current_context(index) != primary_context(index):
        raise DriverError(
            f"Another library has made a CUDA context of its own current on this thread, PyTorch uses the primary one of "
            f"cuda:{index}: pop that context before the call, or let the library use the primary one too."
        )
