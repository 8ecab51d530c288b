"""Where the headers of kernels are, and a fingerprint of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Optional

from flashrnn.errors import ConfigError, describe

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
VARIABLE = "FLASHRNN_EXTRA_INCLUDE_PATHS"
HEADERS = (".cuh", ".h", ".hpp")
MOST_FILES = 50_000


def extra_include_paths() -> list[str]:
    """The folders of FLASHRNN_EXTRA_INCLUDE_PATHS, separated by colons; compilers pass over those that are not there."""
    paths = os.environ.get(VARIABLE, "").split(os.pathsep)
    return [os.path.abspath(os.path.expanduser(path)) for path in paths if path]


def include_paths() -> list[str]:
    """Where headers are searched: the user's folders first, then our own."""
    return [*extra_include_paths(), str(KERNELS)]


def fingerprint() -> str:
    """A hash of all that a kernel can include: relative names and bytes, no paths, no times.

    Headers in the user's folders count because they can stand before ours. Read once in a process.

    Raises:
        ConfigError: the user's folders are too large to read them.
    """
    return _fingerprint(tuple(extra_include_paths()), str(KERNELS))


@cache
def _fingerprint(extra: tuple[str, ...], kernels: str) -> str:
    digest = hashlib.sha256()
    for folder, endings in (*((folder, HEADERS) for folder in extra), (kernels, None)):
        digest.update(b"folder\0")
        for name in sorted(_names(folder, endings)):
            data = Path(folder, name).read_bytes()
            digest.update(f"{name}\0{len(data)}\0".encode("utf-8", "surrogateescape") + data)
    return digest.hexdigest()


def _names(folder: str, endings: Optional[tuple[str, ...]]) -> Iterator[str]:
    """The files with these endings in a folder and below, by their paths from it."""
    count = 0
    for parent, _, names in os.walk(folder, followlinks=True):
        count += len(names)
        if count > MOST_FILES:
            raise ConfigError(describe(VARIABLE, f"folders of at most {MOST_FILES} files", f"more below {folder!r}"))
        for name in names:
            path = os.path.join(parent, name)
            if (endings is None or name.endswith(endings)) and os.access(path, os.R_OK) and os.path.isfile(path):
                yield os.path.relpath(path, folder).replace(os.sep, "/")
