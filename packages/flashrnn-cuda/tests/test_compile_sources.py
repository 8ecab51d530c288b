"""Where headers are searched, and the fingerprint that follows their bytes and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from compile_helpers import forget
from flashrnn import ConfigError
from flashrnn_cuda.compile import sources

pytestmark = pytest.mark.usefixtures("folder")


def fingerprint() -> str:
    """That of a new process."""
    forget()
    return sources.fingerprint()


def extra(monkeypatch: pytest.MonkeyPatch, *paths: object) -> None:
    monkeypatch.setenv(sources.VARIABLE, os.pathsep.join(map(str, paths)))


def test_our_kernels_are_there() -> None:
    kernels = Path(sources.__file__).parent.parent / "kernels"
    assert kernels.is_dir() and list(kernels.rglob("*.cuh"))


def test_the_users_folders_are_searched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources.include_paths() == [str(tmp_path / "kernels")]
    extra(monkeypatch, "", "/opt/b", "", "/opt/a b;c", "")
    assert sources.include_paths() == ["/opt/b", "/opt/a b;c", str(tmp_path / "kernels")]


def test_a_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    extra(monkeypatch, "~/a", "/b", "~")
    assert sources.include_paths()[:3] == [str(tmp_path / "a"), "/b", str(tmp_path)]


def test_a_relative_folder_is_one_of_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    extra(monkeypatch, "mine")
    assert sources.include_paths()[0] == str(tmp_path / "mine")


def test_the_fingerprint_follows_every_byte_and_name(tmp_path: Path) -> None:
    seen = [fingerprint()]
    header = tmp_path / "kernels" / "value.cuh"
    header.write_text(header.read_text().replace("3.f", "4.f"))
    seen.append(fingerprint())
    header.rename(header.with_name("other.cuh"))
    seen.append(fingerprint())
    (tmp_path / "kernels" / "cells").mkdir()
    shutil.copy(header.with_name("other.cuh"), tmp_path / "kernels" / "cells" / "lstm.cuh")
    seen.append(fingerprint())
    (tmp_path / "kernels" / "table.inc").write_text("1, 2, 3")
    seen.append(fingerprint())
    assert len(set(seen)) == len(seen)


def test_the_fingerprint_follows_no_path_and_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "value.cuh").write_text("// mine")
    extra(monkeypatch, mine)
    before = fingerprint()
    os.utime(tmp_path / "kernels" / "value.cuh", (1, 1))
    assert fingerprint() == before
    shutil.copytree(tmp_path / "kernels", tmp_path / "elsewhere")
    shutil.copytree(mine, tmp_path / "yours")
    monkeypatch.setattr(sources, "KERNELS", tmp_path / "elsewhere")
    extra(monkeypatch, tmp_path / "yours")
    assert fingerprint() == before


@pytest.mark.parametrize(("name", "counts"), [("a.cuh", True), ("deep/er/b.h", True), ("c.hpp", True), ("notes.txt", False)])
def test_headers_of_the_users_folders_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, counts: bool
) -> None:
    file = tmp_path / "mine" / name
    file.parent.mkdir(parents=True)
    extra(monkeypatch, tmp_path / "mine")
    seen = []
    for text in ("// one", "// two"):
        file.write_text(text)
        seen.append(fingerprint())
    assert (seen[0] != seen[1]) == counts


def test_the_order_of_the_users_folders_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "value.cuh").write_text(f"// {name}")
    extra(monkeypatch, tmp_path / "one", tmp_path / "two")
    before = fingerprint()
    extra(monkeypatch, tmp_path / "two", tmp_path / "one")
    assert fingerprint() != before


@pytest.mark.parametrize("name", ["nowhere", "kernels/value.cuh"])
def test_what_is_no_folder_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    extra(monkeypatch, tmp_path / name)
    assert len(fingerprint()) == 64


def test_links_in_a_circle_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "a.h").write_text("// a")
    (mine / "again").symlink_to(mine)
    extra(monkeypatch, mine)
    assert len(fingerprint()) == 64


def test_a_folder_with_too_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for i in range(5):
        (mine / f"{i}.h").touch()
    monkeypatch.setattr(sources, "MOST_FILES", 4)
    extra(monkeypatch, mine)
    with pytest.raises(ConfigError, match=f"{sources.VARIABLE}: expected folders of at most 4 files") as caught:
        fingerprint()
    assert str(mine) in str(caught.value)


def test_it_is_read_once(tmp_path: Path) -> None:
    before = fingerprint()
    (tmp_path / "kernels" / "value.cuh").write_text("// changed while this process runs")
    assert sources.fingerprint() == before
