"""NVRTC, NVIDIA's compiler as a library: no toolkit and no host compiler needed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Optional

from .errors import compile_error
from .kernel import FLAGS, Compiled, Job, Kernel
from .sources import include_paths

LIBRARIES = ("libnvrtc.so.13", "libnvrtc.so.12", "nvrtc64_130_0.dll", "nvrtc64_120_0.dll")
PROGRAM = b"/kernel.cu"
"""What compilers call the text. Headers are searched beside it first: there must be none there, as in the working folder."""

SIGNATURES = {
    "nvrtcVersion": [POINTER(c_int), POINTER(c_int)],
    "nvrtcCreateProgram": [POINTER(c_void_p), c_char_p, c_char_p, c_int, POINTER(c_char_p), POINTER(c_char_p)],
    "nvrtcCompileProgram": [c_void_p, c_int, POINTER(c_char_p)],
    "nvrtcGetProgramLogSize": [c_void_p, POINTER(c_size_t)],
    "nvrtcGetProgramLog": [c_void_p, c_char_p],
    "nvrtcGetCUBINSize": [c_void_p, POINTER(c_size_t)],
    "nvrtcGetCUBIN": [c_void_p, c_char_p],
    "nvrtcDestroyProgram": [POINTER(c_void_p)],
    "nvrtcGetErrorString": [c_int],
}


def open_library() -> ctypes.CDLL:
    """libnvrtc from the pip packages that PyTorch brings, from conda or from a toolkit.

    Raises:
        OSError: there is none.
    """
    path = _path_by_pathfinder()
    for name in (path, *LIBRARIES) if path else LIBRARIES:
        with suppress(OSError):
            return ctypes.CDLL(name)
    raise OSError(f"none of {', '.join(LIBRARIES)} is on this machine")


def _path_by_pathfinder() -> str:
    """Where NVIDIA's own search finds it; empty if it does not."""
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib  # type: ignore[import-untyped, unused-ignore]

        return load_nvidia_dynamic_lib("nvrtc").abs_path or ""
    except (ImportError, OSError, RuntimeError):  # what it raises when there is none is a RuntimeError
        return ""


class Nvrtc:
    """NVRTC, loaded.

    Attributes:
        name: with its version, for people and for the names of cache entries.
    """

    def __init__(self) -> None:
        self.library = open_library()
        for function, arguments in SIGNATURES.items():
            getattr(self.library, function).argtypes = arguments
            getattr(self.library, function).restype = c_int
        self.library.nvrtcGetErrorString.restype = c_char_p
        major, minor = c_int(), c_int()
        self.check(self.library.nvrtcVersion(byref(major), byref(minor)))
        self.name = f"nvrtc {major.value}.{minor.value}"

    def flags(self, architecture: str) -> list[str]:
        """All options but the include paths."""
        return [*FLAGS, f"--gpu-architecture={architecture}", "-default-device", "--ptxas-options=-v"]

    def compile(self, kernel: Kernel, architecture: str, *more: str) -> Compiled:
        """The kernel's cubin for an architecture such as sm_90a; `more` are further options.

        Raises:
            CompileError: with the kernel's name and the compiler's first error on top.
        """
        program = c_void_p()
        self.check(self.library.nvrtcCreateProgram(byref(program), kernel.text.encode(), PROGRAM, 0, None, None))
        try:
            options = [*self.flags(architecture), *(f"--include-path={path}" for path in include_paths()), *more]
            words = (c_char_p * len(options))(*map(os.fsencode, options))
            status = self.library.nvrtcCompileProgram(program, len(options), words)
            log = self._result(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                raise compile_error(kernel, self.name, architecture, log or self.spell(status))
            return Compiled(self._result(program, "CUBIN"), log)
        finally:
            self.library.nvrtcDestroyProgram(byref(program))

    def compile_each(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Compiled]]:
        """Each job with its result, as they are ready; NVRTC lets other threads go on while it compiles.

        Raises:
            CompileError: of one that failed, after all others.
        """
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            futures = {pool.submit(self.compile, *job): job for job in jobs}
            for future in as_completed(futures):
                if future.exception() is None:
                    yield futures[future], future.result()
        for future in futures:
            future.result()

    def _result(self, program: c_void_p, what: str) -> bytes:
        """What a compilation left: "ProgramLog" or "CUBIN"."""
        size = c_size_t()
        self.check(getattr(self.library, f"nvrtcGet{what}Size")(program, byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self.check(getattr(self.library, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def check(self, status: int) -> None:
        """Raise for a status that is not success."""
        if status:
            raise RuntimeError(f"NVRTC failed: {self.spell(status)}")

    def spell(self, status: int) -> str:
        """What a status means."""
        return (self.library.nvrtcGetErrorString(status) or b"unknown error").decode()


def find_nvrtc() -> Optional[Nvrtc]:
    """NVRTC of this machine; None if there is none that works."""
    try:
        return Nvrtc()
    except (OSError, AttributeError, RuntimeError):  # not there, without a function we need, or not working
        return None
