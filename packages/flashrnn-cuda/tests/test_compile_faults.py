"""Folders that are full, read-only or unsafe, and what killed processes left, do no harm."""

from __future__ import annotations

import errno
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from compile_helpers import TINY, Counting, entry_files, load
from flashrnn_cuda.compile import CacheError, Kernel, cache

# -------------------------------------------------------------------------------------------- folders that cannot be written


def load_with_one_warning(counting: Counting, *parts: str) -> None:
    """Two kernels are compiled and kept for this process, with one warning that says these parts."""
    other = Kernel("other", "fill", TINY.text + "// other\n")
    with pytest.warns(RuntimeWarning, match="cannot be written") as caught:
        first, second = load(), load(other)
    assert len(caught) == 1
    for part in (*parts, str(cache.fallback[0]), cache.VARIABLE):
        assert part in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (load(), load(other)) == (first, second)
    assert len(counting.jobs) == 2 and len(entry_files(cache.fallback[0])) == 2


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_folder_that_is_a_file(folder: Path, counting: Counting) -> None:
    folder.write_text("not a folder")
    load_with_one_warning(counting, str(folder), "exists")
    assert folder.read_text() == "not a folder"


def test_a_home_that_is_read_only(tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    real = Path.mkdir

    def mkdir(path: Path, *args: Any, **options: Any) -> None:
        if (tmp_path / "home") in path.parents:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        real(path, *args, **options)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    load_with_one_warning(counting, str(tmp_path / "home" / ".cache" / "flashrnn"), os.strerror(errno.EROFS))


@pytest.mark.parametrize("chosen", ["", "~/flashrnn", "~nobody/flashrnn"])
def test_no_home_at_all(counting: Counting, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: str) -> None:
    monkeypatch.setenv(cache.VARIABLE, chosen)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.chdir(tmp_path)
    load_with_one_warning(counting, "flashrnn")
    assert not list(tmp_path.glob("~*"))


def test_a_folder_without_permission(folder: Path, counting: Counting) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    folder.parent.chmod(0o500)
    try:
        load_with_one_warning(counting, str(folder), os.strerror(errno.EACCES))
    finally:
        folder.parent.chmod(0o700)


@pytest.mark.parametrize("at", ["write", "replace"])
def test_a_disk_that_is_full(folder: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    real = {"fdopen": os.fdopen, "replace": os.replace}

    def fdopen(handle: int, mode: str) -> Any:
        is_full = at == "write" and os.readlink(f"/proc/self/fd/{handle}").startswith(str(folder))
        if is_full:
            os.close(handle)
            full()
        return real["fdopen"](handle, mode)

    def replace(source: str, target: Path) -> None:
        if at == "replace" and target.parent == folder:
            full()
        real["replace"](source, target)

    monkeypatch.setattr(os, "fdopen", fdopen)
    monkeypatch.setattr(os, "replace", replace)
    load_with_one_warning(counting, str(folder), os.strerror(errno.ENOSPC))
    assert list(folder.iterdir()) == []


def test_all_disks_are_full(folder: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.mkstemp", full)
    monkeypatch.setattr("tempfile.mkdtemp", full)
    with pytest.warns(RuntimeWarning, match=os.strerror(errno.ENOSPC)):
        assert load().endswith(b"counting 1.0 1")
    assert load(Kernel("other", "fill", TINY.text + "\n")).endswith(b"counting 1.0 2")  # a second warning would be an error


def test_a_cache_that_is_only_read_needs_not_be_written(
    folder: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load()
    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setattr("tempfile.mkstemp", full)
    assert load() == first


# -------------------------------------------------------------------------------------------------------------------- safety


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777, 0o722])
def test_a_folder_that_others_can_write_is_refused(folder: Path, counting: Counting, mode: int) -> None:
    load()
    folder.chmod(mode)
    for kernel in (TINY, Kernel("new", "fill", "// new")):
        with pytest.raises(CacheError) as caught:
            load(kernel)
        for part in (str(folder), f"{mode:o}", "chmod go-w", cache.VARIABLE):
            assert part in str(caught.value)
    assert len(counting.jobs) == 1 and isinstance(caught.value, RuntimeError)
    folder.chmod(mode & ~0o022)
    load()


def test_a_folder_of_another_user_is_refused(folder: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    real = os.stat(folder)
    for owner in (4711, 0):  # root's is as good as one's own
        monkeypatch.setattr(Path, "stat", lambda *_, owner=owner, **__: os.stat_result((*real[:4], owner, *real[5:])))
        load()
    monkeypatch.setattr(Path, "stat", lambda *_, **__: os.stat_result((*real[:4], 4712, *real[5:])))
    with pytest.raises(CacheError, match="belongs to another user, uid 4712"):
        load()


def test_a_new_folder_is_written_by_its_owner_only(folder: Path, counting: Counting) -> None:
    old = os.umask(0)
    try:
        load()
    finally:
        os.umask(old)
    assert folder.stat().st_mode & 0o777 == 0o755
    assert entry_files(folder)[0].stat().st_mode & 0o777 == 0o644


# ----------------------------------------------------------------------------------------------------------------- leftovers


UNFINISHED = "0123456789abcdef" * 4
"""How the name of an entry's file begins, finished or not."""


def test_what_killed_processes_left_long_ago_is_removed(folder: Path, counting: Counting) -> None:
    folder.mkdir()
    old, new = folder / f"{UNFINISHED}.a.tmp", folder / f"{UNFINISHED}.b.tmp"
    for path, age in ((old, 25 * 3600), (new, 23 * 3600)):
        path.write_text("half")
        os.utime(path, (time.time() - age,) * 2)
    load()
    assert not old.exists() and new.exists()


def test_clean_removes_entries_and_leftovers_and_nothing_else(folder: Path, counting: Counting) -> None:
    assert cache.clean() == 0
    load(), load(TINY, (8, 0))
    (folder / f"{UNFINISHED}.b.tmp").write_text("half")
    for name in ("notes.txt", "notes.tmp"):
        (folder / name).write_text("mine")
    assert cache.clean() == 2
    assert sorted(path.name for path in folder.iterdir()) == ["notes.tmp", "notes.txt"]
    load()
    assert len(counting.jobs) == 3
