"""Kernel: the text of one kernel and what it is called; Compiled: what becomes of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

FLAGS = ("--std=c++17", "--fmad=false")
"""Of all compilers. Which multiplications they fuse with additions changes with all that stands around: kernels with other
options would differ in the last bits. What is to be fused says so."""


@dataclass(frozen=True)
class Kernel:
    """One kernel, before it is compiled.

    Attributes:
        name: for people, e.g. "fused forward lstm bfloat16 D=64".
        entry: the extern "C" symbol.
        text: includes of kernels/ and the definition of the symbol.
    """

    name: str
    entry: str
    text: str


@dataclass(frozen=True)
class Compiled:
    """A cubin and what the compiler said."""

    cubin: bytes
    log: str

    @property
    def registers(self) -> int:
        """Registers a thread, by the compiler's report."""
        return max(map(int, re.findall(r"Used (\d+) registers", self.log)), default=0)

    @property
    def spilled_bytes(self) -> int:
        """Bytes of registers that were spilled to memory, by the compiler's report."""
        return sum(map(int, re.findall(r"(\d+) bytes spill stores", self.log)))


Job = tuple[Kernel, str]
"""A kernel, and the architecture to compile it for."""
