"""What was compiled is found again; what changed or is damaged is not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from compile_helpers import HEADER, TINY, Counting, entry_files, load, use
from flashrnn_cuda.compile import Kernel, cache, entries, load_cubin, sources

# ------------------------------------------------------------------------------------------------------------- looking it up


def test_a_second_look_up_compiles_nothing(folder: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load_cubin(TINY, (9, 0))
    assert counting.jobs == [(TINY, "sm_90a")]
    monkeypatch.setattr(entries, "read", lambda *_: pytest.fail("what is in memory needs no file"))
    assert load_cubin(TINY, (9, 0)) is first
    monkeypatch.undo()


def test_another_process_compiles_nothing(folder: Path, counting: Counting) -> None:
    first = load()
    assert load() == first and len(counting.jobs) == 1 and len(entry_files(folder)) == 1


def test_a_second_process_finds_it_at_once(counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of our headers, a hash of which is part of its name."""
    monkeypatch.setattr(sources, "KERNELS", Path(sources.__file__).parent.parent / "kernels")
    load()
    start = time.process_time()
    load()
    assert time.process_time() - start < 0.3 and len(counting.jobs) == 1


def test_the_name_of_a_kernel_does_not_count(counting: Counting) -> None:
    assert load() == load(Kernel("the same under another name", TINY.entry, TINY.text)) and len(counting.jobs) == 1


@pytest.mark.parametrize("what", ["text", "header", "extra header", "architecture", "list", "compiler", "flags"])
def test_what_makes_another_cubin_makes_another_entry(
    folder: Path, tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    first, kernel, capability = load(), TINY, (9, 0)
    if what == "text":
        kernel = Kernel(TINY.name, TINY.entry, TINY.text + "\n")
    if what == "header":
        (tmp_path / "kernels" / "value.cuh").write_text(HEADER + "// changed\n")
    if what == "extra header":
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "value.cuh").write_text(HEADER)
        monkeypatch.setenv(sources.VARIABLE, str(tmp_path / "mine"))
    if what == "architecture":
        capability = (8, 0)
    if what == "list":
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    other = Counting(*{"compiler": ("counting 1.1",), "flags": ("counting 1.0", ("-O2",))}.get(what, ()))
    use(other, monkeypatch)
    assert load(kernel, capability) != first or what in ("header", "extra header", "flags")
    assert len(other.jobs) == 1 and len(entry_files(folder)) == 2
    load(kernel, capability)
    assert len(other.jobs) == 1


def test_paths_and_times_do_not_count(
    folder: Path, tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    load()
    (tmp_path / "kernels").rename(tmp_path / "moved")
    os.utime(tmp_path / "moved" / "value.cuh", (1, 1))
    monkeypatch.setattr(sources, "KERNELS", tmp_path / "moved")
    folder.rename(tmp_path / "moved cache")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "moved cache"))
    monkeypatch.chdir(tmp_path)
    load()
    assert len(counting.jobs) == 1


def test_where_entries_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache.wanted_folder() == tmp_path / ".cache" / "flashrnn"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.wanted_folder() == tmp_path / "xdg" / "flashrnn"
    for chosen, folder in (("~/mine", tmp_path / "mine"), ("~", tmp_path), ("", tmp_path / "xdg" / "flashrnn")):
        monkeypatch.setenv(cache.VARIABLE, chosen)
        assert cache.wanted_folder() == folder
    monkeypatch.setenv(cache.VARIABLE, "mine")
    monkeypatch.chdir(tmp_path)
    assert cache.wanted_folder() == tmp_path / "mine"


# ---------------------------------------------------------------------------------------------------------- damaged entries


@pytest.mark.parametrize("keep", [0, 1, 30, 60, -1])
def test_a_truncated_entry_is_built_again(folder: Path, counting: Counting, keep: int) -> None:
    load()
    (entry,) = entry_files(folder)
    whole = entry.read_bytes()
    entry.write_bytes(whole[:keep])
    again = load()
    assert len(counting.jobs) == 2 and again.endswith(b"counting 1.0 2")
    assert load() == again and len(counting.jobs) == 2


@pytest.mark.parametrize("place", [0, 20, 30, 60, -1])
def test_a_damaged_entry_is_built_again(folder: Path, counting: Counting, place: int) -> None:
    load()
    (entry,) = entry_files(folder)
    data = bytearray(entry.read_bytes())
    data[place] ^= 1
    entry.write_bytes(data)
    again = load()
    assert len(counting.jobs) == 2 and load() == again and len(counting.jobs) == 2


def test_an_entry_with_more_behind_it_is_built_again(folder: Path, counting: Counting) -> None:
    load()
    (entry,) = entry_files(folder)
    entry.write_bytes(entry.read_bytes() + b"more")
    load()
    assert len(counting.jobs) == 2


def test_an_empty_cubin_is_an_entry_like_others() -> None:
    assert entries.unwrap(entries.wrap(b"")) == b"" and entries.unwrap(b"") is None


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    names = ("notes.tmp", "their.cubin")
    for name in names:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    entries.write(tmp_path, "0" * 64, b"cubin")
    assert entries.clean(tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
