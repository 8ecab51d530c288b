"""A GPU on the CPU: within `emulated()`, the CUDA backends plan for a GPU, and their kernels run here, compiled by g++.

What makes it: translate.py turns a kernel's text into C++, cuda.h declares what CUDA has beside that, ptx.cpp has the
instructions, machine.cpp the threads, and the memory that they share.

It finds what gives wrong numbers under some schedule: a barrier or a wait too few, a deadlock, an address outside of shared
memory, operands in the wrong lanes, arguments packed otherwise than the kernel reads them. It does not find what a GPU alone
has: what the compiler makes of the text, registers, caches that hold plain global memory back, the rounding within an mma.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from flashrnn import discovery
from flashrnn_cuda import alternating, availability, fused, gradients, recompute
from flashrnn_cuda.compile.kernel import Kernel
from flashrnn_cuda.compile.sources import KERNELS
from flashrnn_cuda.device import Device
from flashrnn_cuda.plan import usable

from .translate import translated

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
FLAGS = ("-std=c++17", "-shared", "-fPIC", "-w", "-ffp-contract=off", "-U_FORTIFY_SOURCE", f"-I{HERE}")
MORE_FLAGS = os.environ.get("FLASHRNN_EMULATOR_FLAGS", "").split()
"""For instance "-g -fsanitize=address", with libasan.so in LD_PRELOAD: finds accesses beyond tensors."""

Edits = tuple[tuple[str, str, str], ...]
"""Of headers, for tests that have to fail: (name, what stands there, what is to stand there)."""


class EmulatorError(RuntimeError):
    """A kernel did what no kernel may do."""


class EmulatedFunction:
    """What driver.Function is, without a GPU."""

    def __init__(self, kernel: Kernel, device: Device, shared_bytes: int, cluster: int, seed: int, edits: Edits) -> None:
        assert shared_bytes <= device.shared_bytes, f"{kernel.name} needs {shared_bytes} bytes of shared memory"
        self.kernel, self.device, self.shared_bytes, self.cluster, self.seed = kernel, device, shared_bytes, cluster, seed
        self.library = compiled(kernel, edits)

    def launch(self, grid: tuple[int, ...], threads: int, arguments: bytes, cooperative: bool = False) -> None:
        """Run the kernel to its end.

        Raises:
            EmulatorError: it did what no kernel may do.
        """
        size = self.library.emulated_argument_size()
        assert size == len(arguments), f"{self.kernel.name} takes {size} bytes of arguments, not {len(arguments)}"
        assert not cooperative or grid[0] <= self.resident(threads), "a cooperative launch of more than run at a time"
        sizes = (*grid, 1)[:2], threads, self.shared_bytes, self.cluster
        error = machine().emulated_launch(
            self.library.emulated_kernel, arguments, *sizes[0], *sizes[1:], cooperative, self.seed
        )
        if error:
            raise EmulatorError(f"{self.kernel.name}, seed {self.seed}: {error.decode()}")

    def resident(self, threads: int) -> int:
        """How many CTAs run at a time: one an SM."""
        return usable(self.cluster, self.device) // self.cluster * self.cluster


@contextmanager
def emulated(device: Device, seed: int = 0, edits: Edits = ()) -> Iterator[None]:
    """Calls of the CUDA backends on CPU tensors plan for this device and run emulated; `seed`: of how threads take turns."""

    def function(kernel: Kernel, index: int, shared_bytes: int, cluster: int = 1) -> EmulatedFunction:
        return EmulatedFunction(kernel, device, shared_bytes, cluster, seed, edits)

    seams: dict[str, Any] = {
        "function": function,
        "device": lambda index: device,
        "index_of": lambda device: 0,
        "why_no_nvidia_gpu": lambda backend, device: None,
        "can_compile": lambda: True,
        "OUT_DTYPE": False,
    }
    modules: tuple[ModuleType, ...] = (fused, alternating, gradients, recompute, availability)
    with ExitStack() as stack:
        for module in modules:
            for name in seams.keys() & vars(module).keys():
                stack.enter_context(patch.object(module, name, seams[name]))
        forget_plans()
        stack.callback(forget_plans)
        yield


def forget_plans() -> None:
    """What was found out about problems on another device."""
    for remembered in (fused.layout_of, fused.without_clusters, discovery.choose):
        remembered.cache_clear()


@cache
def folder() -> Path:
    """Where this process keeps what it has compiled."""
    made = tempfile.mkdtemp(prefix="flashrnn_emulator_")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


@cache
def machine() -> ctypes.PyDLL:
    """The emulator, which keeps the GIL: one launch at a time."""
    out = build([HERE / "machine.cpp", HERE / "ptx.cpp"], "machine", "-O2")
    library = ctypes.PyDLL(str(out), mode=ctypes.RTLD_GLOBAL)
    library.emulated_launch.restype = ctypes.c_char_p
    return library


@cache
def headers(edits: Edits) -> Path:
    """A folder with all headers of the kernels in C++."""
    out = folder() / sha256(repr(edits).encode()).hexdigest()
    for path in KERNELS.rglob("*.cuh"):
        name, text = path.relative_to(KERNELS), path.read_text()
        for edited, old, new in edits:
            if edited == str(name):
                if old not in text:
                    raise ValueError(f"{name} has no {old!r}")
                text = text.replace(old, new)
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(translated(text))
    return out


@cache
def compiled(kernel: Kernel, edits: Edits) -> ctypes.PyDLL:
    """A kernel's library."""
    machine()
    name = sha256(repr((kernel, edits)).encode()).hexdigest()
    source = folder() / f"{name}.cpp"
    source.write_text(f'#include "cuda.h"\n{translated(kernel.text)}\nEMULATED({kernel.entry})\n')
    return ctypes.PyDLL(str(build([source], name, "-O1", f"-I{headers(edits)}")))


def build(sources: list[Path], name: str, *flags: str) -> Path:
    """A shared library.

    Raises:
        RuntimeError: g++ refuses it; no EmulatorError, which tests of broken kernels expect.
    """
    assert COMPILER is not None, "no g++ on this machine"
    out = folder() / f"{name}.so"
    done = subprocess.run(
        [COMPILER, *FLAGS, *flags, *MORE_FLAGS, *map(str, sources), "-o", str(out)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError("\n".join(re.findall(r".*error:.*", done.stderr)) or done.stderr)
    return out
