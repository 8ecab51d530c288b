"""The files of a cache folder: one for each cubin, written at once or not at all, and checked when it is read."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Optional

MAGIC = b"flashrnn cubin 1\n"
"""How a file begins; the number counts formats. What follows: the length of the cubin, its hash, the cubin."""

LENGTH, HASH = 8, 32
DAY = 24 * 3600


def read(folder: Path, name: str) -> Optional[bytes]:
    """The cubin of an entry; None if there is none, or a damaged one."""
    try:
        return unwrap((folder / f"{name}.cubin").read_bytes())
    except OSError:
        return None


def write(folder: Path, name: str, cubin: bytes) -> None:
    """Write an entry beside its place, then rename it there; remove what killed processes left long ago.

    Raises:
        OSError: the folder cannot take it.
    """
    remove_leftovers(folder, DAY)
    handle, path = tempfile.mkstemp(prefix=f"{name}.", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(wrap(cubin))
        os.chmod(path, 0o644)  # a folder may be built by one user and shipped to others
        os.replace(path, folder / f"{name}.cubin")
    except BaseException:
        with suppress(OSError):
            os.unlink(path)
        raise


def wrap(cubin: bytes) -> bytes:
    """The bytes of a file."""
    return MAGIC + len(cubin).to_bytes(LENGTH, "little") + hashlib.sha256(cubin).digest() + cubin


def unwrap(data: bytes) -> Optional[bytes]:
    """The cubin in the bytes of a file; None if they are damaged."""
    cubin = data[len(MAGIC) + LENGTH + HASH :]
    return cubin if data == wrap(cubin) else None


def remove_leftovers(folder: Path, age: float) -> None:
    """Remove unfinished files that are older than so many seconds."""
    for path in ours(folder, "tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime >= age:
                path.unlink()


def ours(folder: Path, ending: str) -> list[Path]:
    """The files with this ending that write() made, or began: others may keep theirs in the same folder."""
    return [path for path in folder.glob(f"*.{ending}") if re.match(r"[0-9a-f]{64}\.", path.name)]


def clean(folder: Path) -> int:
    """Remove all entries and what is left of unfinished ones; returns how many entries there were."""
    remove_leftovers(folder, age=float("-inf"))
    found = ours(folder, "cubin")
    for path in found:
        path.unlink(missing_ok=True)
    return len(found)
