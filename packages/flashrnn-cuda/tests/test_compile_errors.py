"""What a compiler says when it refuses a kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from compile_helpers import BROKEN, TEXT, TINY, both_compilers
from flashrnn_cuda.compile import CompileError, Kernel, compiler, nvcc
from flashrnn_cuda.compile.errors import compile_error

pytestmark = pytest.mark.usefixtures("folder")


@both_compilers
def test_an_error_says_the_kernel_and_the_first_error(found: compiler.Compiler) -> None:
    text = BROKEN.text.replace(
        "void fill", 'void other();\nint warns() { int unused; return 0; }\nextern "C" __global__ void fill'
    )
    kernel = Kernel(BROKEN.name, "fill", text + "int second = another_error;\n")
    with pytest.raises(CompileError) as caught:
        found.compile(kernel, "sm_90a")
    top, empty, *log = str(caught.value).split("\n")
    assert top.startswith(f"{found.name} cannot compile broken bfloat16 D=64 for sm_90a: ")
    assert 'error: identifier "NO_SUCH_VALUE" is undefined' in top and empty == ""
    assert "another_error" not in top and any("another_error" in line for line in log)
    assert isinstance(caught.value, RuntimeError)


@both_compilers
def test_an_error_in_a_header_says_which(found: compiler.Compiler, tmp_path: Path) -> None:
    (tmp_path / "kernels" / "value.cuh").write_text("constexpr float VALUE = oops;\n")
    with pytest.raises(CompileError) as caught:
        found.compile(TINY, "sm_80")
    assert f"{tmp_path}/kernels/value.cuh(1): error:" in str(caught.value).split("\n")[0]


@both_compilers
def test_an_error_of_the_assembler(found: compiler.Compiler) -> None:
    with pytest.raises(CompileError) as caught:
        found.compile(Kernel("assembly", "fill", TEXT.replace("{ x", '{ asm("nonsense.f32;"); x')), "sm_80")
    assert "ptxas" in str(caught.value).split("\n")[0]


@both_compilers
def test_an_architecture_that_the_compiler_does_not_know(found: compiler.Compiler) -> None:
    with pytest.raises(CompileError) as caught:
        found.compile(TINY, "sm_33")
    top = str(caught.value).split("\n")[0]
    assert "tiny float32 for sm_33" in top and ("--gpu-architecture" in top or "compute_33" in top)


@pytest.mark.parametrize(
    ("log", "first"),
    [
        ("a.cu(1): warning #1-D: error handling is odd\na.cu(2): error: bad\na.cu(3): error: worse", "a.cu(2): error: bad"),
        ("a.cu(2): catastrophic error: cannot open source file", "a.cu(2): catastrophic error: cannot open source file"),
        ("note\nnvcc fatal   : Unsupported gpu architecture", "nvcc fatal   : Unsupported gpu architecture"),
        ("ptxas /tmp/x, line 5; error   : Not a name", "ptxas /tmp/x, line 5; error   : Not a name"),
        ("Killed", "Killed"),
        ("", "the compiler said nothing"),
    ],
)
def test_the_first_error_of_a_log(log: str, first: str) -> None:
    message = str(compile_error(TINY, "some 1.0", "sm_80", log))
    assert message.split("\n")[0] == f"some 1.0 cannot compile tiny float32 for sm_80: {first}"
    assert message.endswith(log)


def test_ninja_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "find_ninja", lambda: str(tmp_path / "no-ninja"))
    with pytest.raises(CompileError, match="pip install ninja"):
        list(nvcc.run_ninja(tmp_path))
