"""From the text of a kernel to a cubin: looked up, or compiled and kept.

The order of a call: a kernel's text, the look-up of what was built before, the compiler, the cubin.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache as cached
from pathlib import Path
from typing import Optional

from flashrnn.errors import BackendUnavailable

from . import cache, entries
from .architectures import Architecture, Capability, architecture_for, runnable
from .compiler import the_compiler
from .errors import CacheError, CompileError
from .kernel import Compiled, Kernel
from .sources import fingerprint

__all__ = ["CacheError", "CompileError", "Compiled", "Kernel", "build", "load_cubin"]

logger = logging.getLogger("flashrnn_cuda")


def load_cubin(kernel: Kernel, capability: Capability) -> bytes:
    """The kernel's cubin for a device of this compute capability.

    Raises:
        CompileError: the compiler refuses it.
        BackendUnavailable: it was not built and there is no compiler, or TORCH_CUDA_ARCH_LIST leaves this device out.
        CacheError: others can write to the cache folder.
        ConfigError: an environment variable has a value that it cannot have.
    """
    return _load(kernel, architecture_for(capability).name, runnable(capability), fingerprint())


@cached
def _load(kernel: Kernel, architecture: str, built_for: tuple[Architecture, ...], sources: str) -> bytes:
    """What was built ahead of time, else from the cache, else compiled; `sources` tells apart what changed since."""
    cubin = cache.prebuilt(kernel, built_for)
    if cubin is not None:
        return cubin
    try:
        compiler = the_compiler()
    except BackendUnavailable as error:
        missing = f"{kernel.name} for {architecture} was not built ahead of time"
        raise BackendUnavailable(f"{str(error).rstrip('.')}, and {missing}.") from None
    name = cache.key(kernel, architecture, compiler.name, compiler.flags(architecture))
    cubin = cache.read(name)
    if cubin is None:
        say(f"compiling {kernel.name} for {architecture} with {compiler.name}, once: it is kept in {cache.wanted_folder()}")
        start = time.perf_counter()
        compiled = compiler.compile(kernel, architecture)
        seconds = time.perf_counter() - start
        logger.debug(
            "compiled %s for %s in %.1f s: %d registers, %d bytes spilled",
            *(kernel.name, architecture, seconds, compiled.registers, compiled.spilled_bytes),
        )
        cubin = compiled.cubin
        cache.write(name, cubin)
    return cubin


def say(message: str) -> None:
    """Log a line at level INFO, and show it all the same where the application has set up no logging."""
    if logger.hasHandlers() or logger.level != logging.NOTSET:
        logger.info(message)
    else:
        print(f"flashrnn: {message}", file=sys.stderr)


def build(
    kernels: Sequence[Kernel],
    architectures: Sequence[Architecture],
    folder: Optional[Path] = None,
    progress: Callable[[Kernel], None] = lambda kernel: None,
) -> int:
    """Compile ahead of time what is not there yet, many at once.

    Args:
        kernels, architectures: each kernel for each architecture.
        folder: where the cubins go, to be shipped as flashrnn_cuda/prebuilt or given as FLASHRNN_CACHE_DIR: there they serve
            without a compiler. None: the cache, where they serve the compiler that is here.
        progress: called once for each pair.

    Returns:
        How many were compiled.

    Raises:
        CompileError: of a kernel that the compiler refuses, after all others.
        OSError: the folder cannot be written.
    """
    compiler = the_compiler()
    missing = {}
    for kernel in kernels:
        for architecture in (entry.name for entry in architectures):
            made_by = ("", ()) if folder else (compiler.name, compiler.flags(architecture))
            name = cache.key(kernel, architecture, *made_by)
            if (entries.read(folder, name) if folder else cache.read(name)) is None:
                missing[kernel, architecture] = name
            else:
                progress(kernel)
    if folder:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    for job, compiled in compiler.compile_each(list(missing)):
        if folder:
            entries.write(folder, missing[job], compiled.cubin)
        else:
            cache.write(missing[job], compiled.cubin)
        progress(job[0])
    return len(missing)
