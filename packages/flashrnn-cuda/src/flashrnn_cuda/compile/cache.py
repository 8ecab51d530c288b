"""Compiled kernels on disk, by content.

An entry's name is a hash of everything that makes a cubin what it is: the text, all headers, the compiler and its flags, the
architecture. It arrives by an atomic rename, so that no process sees half of one, and carries a hash of itself: one that is
damaged all the same counts as missing.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Optional

from . import entries
from .architectures import Architecture
from .errors import CacheError
from .kernel import Kernel
from .sources import fingerprint

VARIABLE = "FLASHRNN_CACHE_DIR"
PREBUILT = Path(__file__).resolve().parent.parent / "prebuilt"
"""Kernels that came with the package."""


def key(kernel: Kernel, architecture: str, compiler: str = "", flags: Sequence[str] = ()) -> str:
    """The name of an entry; without compiler and flags where entries are shipped and whoever built them chose."""
    parts = (entries.MAGIC.decode(), kernel.text, fingerprint(), architecture, compiler, *flags)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def prebuilt(kernel: Kernel, architectures: Sequence[Architecture]) -> Optional[bytes]:
    """The cubin for the first of these architectures that came with the package, or was put into FLASHRNN_CACHE_DIR."""
    folders = [folder for folder in (PREBUILT, *existing(wanted_folder())) if folder.is_dir()]
    for architecture in architectures if folders else ():
        name = key(kernel, architecture.name)
        for folder in folders:
            cubin = entries.read(folder, name)
            if cubin is not None:
                return cubin
    return None


def read(name: str) -> Optional[bytes]:
    """The cubin of an entry; None if there is no sound one."""
    for folder in (*existing(wanted_folder()), *filter(None, fallback)):
        cubin = entries.read(folder, name)
        if cubin is not None:
            return cubin
    return None


def write(name: str, cubin: bytes) -> None:
    """Keep a cubin; in a folder of this process, with a warning, where the cache cannot take it."""
    folder = wanted_folder()
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        check_trust(folder)
        entries.write(folder, name, cubin)
    except OSError as error:
        fall_back(name, cubin, folder, error)


def wanted_folder() -> Path:
    """Where entries should be, as an absolute path: FLASHRNN_CACHE_DIR, or flashrnn in the user's cache."""
    chosen = os.environ.get(VARIABLE)
    if not chosen:
        base = os.environ.get("XDG_CACHE_HOME", "")
        chosen = os.path.join(base if os.path.isabs(base) else os.path.join("~", ".cache"), "flashrnn")
    folder = os.path.expanduser(chosen)
    if folder.startswith("~"):  # there is no such home: a place where nothing can be written
        folder = os.path.join(os.devnull, folder)
    return Path(os.path.abspath(folder))


def existing(folder: Path) -> list[Path]:
    """The folder, if it is there; CacheError if it cannot be trusted."""
    if not os.path.isdir(folder):
        return []
    check_trust(folder)
    return [folder]


def check_trust(folder: Path) -> None:
    """Raise CacheError if others could have put kernels into the folder: they run on the GPU with this user's data."""
    if os.name == "nt":
        return
    found = folder.stat()
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.geteuid(), 0):
        raise CacheError(
            f"The kernel cache {str(folder)!r} (mode {mode:o}) belongs to another user, uid {found.st_uid}: "
            f"set {VARIABLE} to a folder of your own."
        )
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CacheError(
            f"The kernel cache {str(folder)!r} can be written by other users (mode {mode:o}), whose kernels would run as "
            f"yours: chmod go-w it, or set {VARIABLE} to another folder."
        )


def clean() -> int:
    """Remove all entries; returns how many there were."""
    return sum(map(entries.clean, existing(wanted_folder())))


fallback: list[Optional[Path]] = []
"""Once the cache could not be written: a folder that ends with this process; None where there is no place for one either."""


def fall_back(name: str, cubin: bytes, folder: Path, reason: OSError) -> None:
    """Write an entry to a folder of this process, and warn the first time.

    That this fails too, on a machine whose disks are all full, is no reason to stop: the kernel is in memory.
    """
    is_first = not fallback
    if is_first:
        fallback.append(make_temporary_folder())
    for temporary in filter(None, fallback):
        with suppress(OSError):
            entries.write(temporary, name, cubin)
    if is_first:
        warnings.warn(
            f"The kernel cache {str(folder)!r} cannot be written ({reason}): kernels are kept for this process only, in "
            f"{str(fallback[0])!r}. Set {VARIABLE} to a folder that can be written.",
            RuntimeWarning,
            stacklevel=3,
        )


def make_temporary_folder() -> Optional[Path]:
    """A new folder that is removed when the process ends; None if none can be made."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="flashrnn-"))
    except OSError:
        return None
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
