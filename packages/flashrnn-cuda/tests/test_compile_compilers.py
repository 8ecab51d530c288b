"""Both compilers: what they make, and which headers they see."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from compile_helpers import AWKWARD, BROKEN, TEXT, TINY, both_compilers, needs_nvcc
from flashrnn_cuda.compile import CompileError, Kernel, compiler, nvcc, sources
from flashrnn_cuda.compile.compiler import the_compiler

pytestmark = pytest.mark.usefixtures("folder")


def is_cubin(data: bytes) -> bool:
    """Whether it is an ELF file for CUDA (machine 190) that defines fill."""
    return data[:4] == b"\x7fELF" and int.from_bytes(data[18:20], "little") == 190 and b"fill" in data


# ------------------------------------------------------------------------------------------------------------ what they make


@both_compilers
def test_a_kernel_becomes_a_cubin(found: compiler.Compiler, choice: str) -> None:
    # NVRTC has a cache of its own, from which comes no report.
    new = Kernel(TINY.name, TINY.entry, TEXT.replace("= VALUE", f"= VALUE + {uuid4().int % 2**23}.f"))
    compiled = found.compile(new, "sm_90a")
    assert is_cubin(compiled.cubin)
    assert 4 <= compiled.registers <= 64 and compiled.spilled_bytes == 0
    assert found.name.startswith(f"{choice} 1")


@both_compilers
def test_spilled_registers_are_counted(found: compiler.Compiler) -> None:
    sums = "".join(f"  float v{i} = x[{i}];\n" for i in range(64)) + "  __syncthreads();\n"
    sums += "".join(f"  x[{i + 64}] = v{i} * v{(i * 7 + 1) % 64};\n" for i in range(64))
    text = f'extern "C" __global__ __launch_bounds__(1024, 2) void fill(float* x) {{\n{sums}}}\n'
    compiled = found.compile(Kernel("greedy", "fill", text), "sm_80")
    assert compiled.registers == 32 and compiled.spilled_bytes > 0


@both_compilers
def test_many_kernels_come_with_their_own_results(found: compiler.Compiler) -> None:
    texts = [TEXT.replace("threadIdx.x", f"threadIdx.x + {i}") for i in range(4)]
    jobs = [(Kernel(f"number {i}", "fill", text), "sm_80") for i, text in enumerate(texts)]
    results = dict(found.compile_each(jobs))
    assert set(results) == set(jobs)
    alone = found.compile(*jobs[2])
    assert results[jobs[2]].cubin == alone.cubin and len({result.cubin for result in results.values()}) == 4


@both_compilers
def test_one_that_fails_among_many_stops_no_other(found: compiler.Compiler) -> None:
    jobs = [(BROKEN, "sm_80"), (TINY, "sm_80"), (TINY, "sm_90a")]
    results = {}
    with pytest.raises(CompileError, match="broken bfloat16"):
        results.update(found.compile_each(jobs))
    assert set(results) == set(jobs[1:]) and all(is_cubin(compiled.cubin) for compiled in results.values())


@both_compilers
def test_text_that_is_not_ascii(found: compiler.Compiler) -> None:
    assert is_cubin(found.compile(Kernel("Größe", "fill", f"// μ = Größe\n{TEXT}"), "sm_80").cubin)


# ------------------------------------------------------------------------------------------------------------------- headers


@both_compilers
def test_awkward_include_paths_reach_the_compiler(
    found: compiler.Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / AWKWARD
    mine.mkdir()
    (mine / "mine.cuh").write_text("constexpr int MINE = 1;\n")
    monkeypatch.setenv(sources.VARIABLE, f"/nowhere:{tmp_path / 'kernels' / 'value.cuh'}:{mine}")  # what is no folder first
    assert is_cubin(
        found.compile(Kernel("mine", "fill", f'#include "mine.cuh"\nstatic_assert(MINE == 1, "");\n{TEXT}'), "sm_80").cubin
    )
    monkeypatch.setenv(sources.VARIABLE, "/nowhere")
    with pytest.raises(CompileError, match=r"mine\.cuh"):
        found.compile(Kernel("mine", "fill", f'#include "mine.cuh"\n{TEXT}'), "sm_80")


@both_compilers
def test_our_own_folder_may_have_an_awkward_name(
    found: compiler.Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels").rename(tmp_path / AWKWARD)
    monkeypatch.setattr(sources, "KERNELS", tmp_path / AWKWARD)
    assert is_cubin(found.compile(TINY, "sm_80").cubin)


@both_compilers
def test_the_users_header_stands_before_ours(
    found: compiler.Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("first", 7), ("second", 8)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "value.cuh").write_text(f"constexpr int VALUE = {value};\n")
    monkeypatch.setenv(sources.VARIABLE, f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    found.compile(Kernel("seven", "fill", f'{TEXT}static_assert(VALUE == 7, "");\n'), "sm_80")


@both_compilers
def test_the_working_folder_is_no_include_path(
    found: compiler.Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "value.cuh").write_text("#error a header of the working folder\n")
    monkeypatch.chdir(trap)
    assert is_cubin(found.compile(TINY, "sm_80").cubin)


@needs_nvcc
def test_nvcc_itself_may_be_at_an_awkward_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = nvcc.nvcc_path()
    home = tmp_path / AWKWARD
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "nvcc").write_text(f'#!/bin/sh\necho called >> "{tmp_path}/calls"\nexec {real} "$@"\n')
    (home / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert nvcc.nvcc_path() == str(home / "bin" / "nvcc")
    monkeypatch.setenv(compiler.VARIABLE, "nvcc")
    assert is_cubin(the_compiler().compile(TINY, "sm_80").cubin)
    assert len((tmp_path / "calls").read_text().split()) == 2  # for the version, and to compile


@needs_nvcc
def test_temporary_files_may_be_at_an_awkward_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / AWKWARD).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / AWKWARD))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv(compiler.VARIABLE, "nvcc")
    assert is_cubin(the_compiler().compile(TINY, "sm_80").cubin)
    assert list((tmp_path / AWKWARD).iterdir()) == []


@needs_nvcc
def test_options_of_the_users_for_nvcc_are_part_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiler.VARIABLE, "nvcc")
    plain = the_compiler().name
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DMORE=1")
    compiler._find.cache_clear()
    assert the_compiler().name == f"{plain} with NVCC_APPEND_FLAGS=-DMORE=1"
