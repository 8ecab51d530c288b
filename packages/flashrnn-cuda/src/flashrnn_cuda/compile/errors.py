"""What goes wrong when kernels are compiled or kept."""

from __future__ import annotations

import re

from flashrnn.errors import FlashRNNError

from .kernel import Kernel


class CompileError(FlashRNNError, RuntimeError):
    """A compiler refused a kernel."""


class CacheError(FlashRNNError, RuntimeError):
    """The cache folder cannot be trusted."""


ERROR = re.compile(r"\b(error|fatal)\b( #[\w-]+)?\s*:", re.IGNORECASE)
"""As compilers write it: "k.cu(3): error: ...", "ptxas fatal   : ...", "catastrophic error: ..."."""


def compile_error(kernel: Kernel, compiler: str, architecture: str, log: str) -> CompileError:
    """The error for a kernel: its name and the compiler's first error on top, the whole log below."""
    log = log.strip() or "the compiler said nothing"
    first = next((line for line in log.splitlines() if ERROR.search(line)), log.splitlines()[0])
    return CompileError(f"{compiler} cannot compile {kernel.name} for {architecture}: {first.strip()}\n\n{log}")
