"""Large pages for large results on a CPU: to fault in small ones is a tenth of the time of a training step."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Callable, Optional

from torch import Tensor

LARGE_PAGE = 2**21
"""Bytes of a large page, of x86-64 and of most others."""


def use_large_pages(*tensors: Optional[Tensor]) -> None:
    """Ask Linux for large pages where these tensors lie, which nobody has written to yet; elsewhere do nothing.

    A program that does not ask gets none where /sys/kernel/mm/transparent_hugepage/enabled says "madvise", as it often does.
    It is advice: whether it is followed makes no difference to a result.
    """
    madvise = find_madvise()
    for x in tensors:
        if madvise is not None and x is not None and x.device.type == "cpu":
            start, size = x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()
            before = start % mmap.PAGESIZE  # advice is given for whole pages
            if size > LARGE_PAGE:
                madvise(start - before, before + size, mmap.MADV_HUGEPAGE)


@cache
def find_madvise() -> Optional[Callable[[int, int, int], int]]:
    """madvise of the C library (man 2 madvise); None where it has no advice about large pages."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return madvise
