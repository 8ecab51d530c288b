"""Where triton_fused cannot run it says why, in one sentence; and nobody loads triton to hear it."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Optional

import pytest
import torch

from flashrnn import BackendUnavailable, ConfigError, FlashRNNConfig, explain, flashrnn
from flashrnn.cells import CELLS
from flashrnn.problem import Problem
from flashrnn_testing import create_inputs
from flashrnn_triton import TRITON_FUSED, availability, elman_tr_fwbw, gru_tr_fwbw, lstm_tr_fwbw, slstm_tr_fwbw
from flashrnn_triton.cells import READS

FUNCTIONS = {"lstm": lstm_tr_fwbw, "gru": gru_tr_fwbw, "elman": elman_tr_fwbw, "slstm": slstm_tr_fwbw}


def problem(head_dim: int = 64, dtype: torch.dtype = torch.float32, **options: Any) -> Problem:
    options = {"backend": "triton_fused", **options}
    return Problem(FlashRNNConfig(dtype=dtype, **options), 2, 3, 1, head_dim, torch.device("cuda", 0), dtype)


def reason(**of_problem: Any) -> str:
    found = TRITON_FUSED.why_not(problem(**of_problem))
    assert found is not None
    return found


@pytest.fixture
def before_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had imported triton yet."""
    monkeypatch.setattr(availability, "was_interpreted", lambda: None)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, before_triton: None) -> None:
    """A machine that looks as if it had an H200, and compiles."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(availability, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)


@pytest.mark.usefixtures("gpu")
def test_what_it_takes() -> None:
    for head_dim in (1, 64):
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            assert TRITON_FUSED.why_not(problem(head_dim, dtype, backend="auto")) is None


@pytest.mark.usefixtures("gpu")
def test_a_larger_head_names_the_others() -> None:
    assert "head_dim up to 64, got 65" in reason(head_dim=65)
    assert "'cuda_fused'" in reason(head_dim=65) and "'cuda'" in reason(head_dim=65)


@pytest.mark.usefixtures("gpu")
def test_in_float64() -> None:
    assert "backend='vanilla'" in reason(dtype=torch.float64)


@pytest.mark.usefixtures("gpu")
def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(availability, "find_spec", lambda name: None)
    assert "pip install triton" in reason()


@pytest.mark.usefixtures("gpu")
def test_a_folder_is_no_triton(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "notes.txt").touch()
    assert PathFinder.find_spec("triton", [str(tmp_path)]) is not None
    monkeypatch.setattr(availability, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)]))
    assert "pip install triton" in reason()


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("backend", ["auto", "triton_fused"])
def test_without_a_c_compiler(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(availability, "which", lambda name: None)
    assert "needs a C compiler" in reason(backend=backend) and "neither CC is set nor gcc or clang" in reason()
    assert explain(2, 3, 1, 8, backend=backend, device="cuda:0").backend != "triton_fused"
    monkeypatch.setenv("CC", "/opt/cc")
    assert "CC names '/opt/cc', which is not found" in reason()
    monkeypatch.setattr("sys.platform", "win32")  # where builds of Triton bring their own
    assert TRITON_FUSED.why_not(problem()) is None


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("named", "found"), [(None, "gcc"), (None, "clang"), ("/opt/cc", "/opt/cc")])
def test_with_a_c_compiler(monkeypatch: pytest.MonkeyPatch, named: Optional[str], found: str) -> None:
    monkeypatch.setattr(availability, "which", lambda name: name if name == found else None)
    if named is not None:
        monkeypatch.setenv("CC", named)
    assert TRITON_FUSED.why_not(problem()) is None


@pytest.mark.usefixtures("gpu")
def test_on_an_old_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "needs compute capability 8.0 or newer, Tesla T4 has 7.5" in reason()


@pytest.mark.usefixtures("gpu")
def test_on_an_amd_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert "ROCm" in reason()


@pytest.mark.usefixtures("gpu")
def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(device: torch.device) -> None:
        raise RuntimeError("Found no NVIDIA driver on your system.")

    monkeypatch.setattr(torch.cuda, "get_device_name", missing)
    assert reason() == "triton_fused found no usable GPU 'cuda:0' on this machine: Found no NVIDIA driver on your system."


@pytest.mark.usefixtures("before_triton")
def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    told = explain(2, 3, 1, 8, backend="triton_fused", device="cuda:99")
    assert told.backend is None and "no usable GPU 'cuda:99' on this machine" in str(told.reasons["triton_fused"])


@pytest.mark.usefixtures("before_triton")
@pytest.mark.parametrize(
    ("has_gpu", "todo"),
    [
        (True, "not on 'cpu': move tensors there with x.to('cuda')."),
        (False, "of which none is found; backend='vanilla_fwbw' computes on 'cpu'."),
    ],
)
def test_on_a_cpu_tensor(monkeypatch: pytest.MonkeyPatch, has_gpu: bool, todo: str) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    inputs = create_inputs(2, 3, 2, 4, "lstm", create_states=False, device="cpu")
    with pytest.raises(BackendUnavailable) as caught:
        flashrnn(*inputs, backend="triton")
    assert str(caught.value).startswith(f"triton_fused computes on NVIDIA GPUs, {todo}")
    assert "TRITON_INTERPRET=1" in str(caught.value)


@pytest.mark.usefixtures("before_triton")
def test_the_interpreter_runs_what_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert TRITON_FUSED.why_not(problem()) is None
    for dtype in (torch.float32, torch.bfloat16):  # the report asks for the second
        assert "backend='triton_fused' takes it, in float32 and float16" in reason(backend="auto", dtype=dtype)
    assert "cannot compute in bfloat16" in reason(dtype=torch.bfloat16)
    assert explain(2, 3, 1, 8, "lstm", device="cpu").backend == "vanilla_fwbw"
    monkeypatch.setattr(availability, "which", lambda name: None)
    assert TRITON_FUSED.why_not(problem()) is None  # it compiles nothing


@pytest.mark.usefixtures("before_triton")
def test_the_interpreter_needs_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    find_spec = availability.find_spec
    monkeypatch.setattr(availability, "find_spec", lambda name: None if name == "numpy" else find_spec(name))
    assert "needs numpy, which is not installed" in reason() and "needs numpy" in reason(backend="auto")
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "numpy" not in str(TRITON_FUSED.why_not(problem()))


@pytest.mark.parametrize(("then", "now"), [("0", "1"), ("1", "0")])
def test_the_interpreter_asked_for_too_late_or_no_longer(then: str, now: str) -> None:
    code = f"""
import os
os.environ["TRITON_INTERPRET"] = {then!r}
import triton.language
os.environ["TRITON_INTERPRET"] = {now!r}
from flashrnn import explain
print(explain(2, 3, 1, 8, backend="triton_fused", device="cpu").reasons["triton_fused"])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    said = ("without", "is") if now == "1" else ("with", "is not")
    assert "triton was imported {} TRITON_INTERPRET=1, which {} set now".format(*said) in done.stdout


@pytest.mark.parametrize("value", ["true", "True", "on", "yes"])
def test_what_versions_of_triton_read_differently_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert reason() == f"TRITON_INTERPRET: expected 1, on which all versions of Triton agree, got {value!r}."


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("value", ["", "0", "false"])
def test_without_the_interpreter(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", value)
    assert TRITON_FUSED.why_not(problem()) is None


def test_every_cell_is_there() -> None:
    assert set(availability.FUNCTIONS) == set(READS) == set(CELLS) == set(FUNCTIONS)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_public_functions_are_the_backend(function: str) -> None:
    inputs = create_inputs(2, 3, 1, 16, function, create_states=False)
    states, last_states = FUNCTIONS[function](*inputs)
    again, last_again = flashrnn(*inputs, function=function, backend="triton_fused")
    assert torch.equal(states, again) and torch.equal(last_states, last_again)
    other = "slstm" if function != "slstm" else "gru"
    with pytest.raises(ConfigError, match=r"config\.function"):
        FUNCTIONS[function](*inputs, config=FlashRNNConfig(other))
    with pytest.raises(ConfigError, match=r"^backend: .*'triton_fused'.*'vanilla'"):
        FUNCTIONS[function](*inputs, backend="vanilla")


def test_the_report_loads_no_triton() -> None:
    code = (
        "import sys, flashrnn, flashrnn_triton; from flashrnn.report import report; data = report();"
        "assert any(x['name'] == 'triton_fused' and x['aliases'] == ['triton'] for x in data['backends']);"
        "assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
