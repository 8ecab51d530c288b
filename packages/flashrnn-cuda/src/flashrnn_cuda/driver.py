"""The few functions of the CUDA driver that load and launch kernels, through ctypes.

torch owns contexts, streams and memory; a kernel is loaded into the context that torch uses and launched on its streams.
A binding package would do, but none serves every supported Python (3.9) and costs as little a launch.
"""

from __future__ import annotations

import ctypes
import os
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
INVALID_CONTEXT = 201  # CUresult

SIGNATURES = {
    "cuInit": [c_uint],
    "cuGetErrorString": [c_int, POINTER(c_char_p)],
    "cuDeviceGet": [POINTER(c_int), c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceGetAttribute": [POINTER(c_int), c_int, c_int],
    "cuDevicePrimaryCtxRetain": [POINTER(c_void_p), c_int],
    "cuCtxGetCurrent": [POINTER(c_void_p)],
    "cuCtxSetCurrent": [c_void_p],
    "cuModuleLoadData": [POINTER(c_void_p), c_char_p],
    "cuModuleGetFunction": [POINTER(c_void_p), c_void_p, c_char_p],
    "cuFuncSetAttribute": [c_void_p, c_int, c_int],
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": [POINTER(c_int), c_void_p, c_int, ctypes.c_size_t],
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
        self.index, self.shared_bytes = index, shared_bytes
        self.start, self.start_cooperative = library().cuLaunchKernel, library().cuLaunchCooperativeKernel
        self.residents: dict[int, int] = {}
        make_current(index)
        self.module, self.handle = c_void_p(), c_void_p()
        check(library().cuModuleLoadData(byref(self.module), cubin))
        check(library().cuModuleGetFunction(byref(self.handle), self.module, entry.encode()))
        if shared_bytes:
            check(library().cuFuncSetAttribute(self.handle, MAX_DYNAMIC_SHARED_BYTES, shared_bytes))
        if cluster > PORTABLE_CLUSTER_SIZE:
            check(library().cuFuncSetAttribute(self.handle, NON_PORTABLE_CLUSTER_SIZE, 1))

    def launch(self, grid: tuple[int, ...], threads: int, arguments: bytes, cooperative: bool = False) -> None:
        """Launch a grid of CTAs of `threads` on torch's current stream of the device; the arguments are passed by value."""
        stream = torch._C._cuda_getCurrentRawStream(self.index)
        start, extra = (self.start_cooperative, ()) if cooperative else (self.start, (None,))
        values = byref(c_char_p(arguments))
        given = (self.handle, *(*grid, 1, 1)[:3], threads, 1, 1, self.shared_bytes, stream, values, *extra)
        status = start(*given)
        if status == INVALID_CONTEXT:  # this thread has not used the device yet
            make_current(self.index)
            status = start(*given)
        check(status)

    def resident(self, threads: int) -> int:
        """How many CTAs of `threads` one SM holds at a time."""
        if threads not in self.residents:
            count, find = c_int(), library().cuOccupancyMaxActiveBlocksPerMultiprocessor
            make_current(self.index)
            check(find(byref(count), self.handle, threads, self.shared_bytes))
            self.residents[threads] = count.value
        return self.residents[threads]


def make_current(index: int) -> None:
    """Make the context torch uses on that device current, where this thread has none yet."""
    context = c_void_p()
    check(library().cuCtxGetCurrent(byref(context)))
    if not context.value:
        check(library().cuDevicePrimaryCtxRetain(byref(context), device(index)))
        check(library().cuCtxSetCurrent(context))
