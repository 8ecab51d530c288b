"""explain(): which backend a call would take, and why each other one would not do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from core_plugins import FakeKernel, PlugIns
from flashrnn import ConfigError, Explanation, FlashRNNConfig, explain
from flashrnn.discovery import choose

MISSING = ("cuda", "cuda_fused", "triton_fused")


def test_the_fields(plug_ins: PlugIns) -> None:
    told = explain(16, 1024, 12, 64, "slstm", dtype="bfloat16", device="cpu", lengths=True)
    assert isinstance(told, Explanation) and told.backend == "vanilla_fwbw"
    assert told.reasons["vanilla_fwbw"] is told.reasons["vanilla"] is None
    problem = told.problem
    assert (problem.batch_size, problem.sequence_size, problem.num_heads, problem.head_dim) == (16, 1024, 12, 64)
    assert problem.cell.name == "slstm" and problem.dtype == problem.states_dtype == torch.bfloat16
    assert problem.device == torch.device("cpu") and problem.requires_grad
    assert (problem.has_lengths, problem.has_resets, problem.has_states) == (True, False, False)


def test_the_defaults(plug_ins: PlugIns) -> None:
    problem = explain(1, 2, 3, 4).problem
    assert problem.cell.name == "lstm" and problem.dtype == torch.float32
    assert problem.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert not (problem.has_lengths or problem.has_resets) and problem.config.backend == "auto"
    assert not explain(1, 2, 3, 4, requires_grad=False).problem.requires_grad
    assert explain(1, 2, 3, 4, resets=True).problem.has_resets


def test_what_is_not_installed_is_said_with_the_package(plug_ins: PlugIns) -> None:
    reasons = explain(1, 2, 3, 4, device="cpu").reasons
    assert list(reasons) == ["vanilla_fwbw", "vanilla", *reasons][:2] + [x for x in reasons if x in MISSING]
    assert all("not installed: install flashrnn-" in reasons[name] for name in MISSING)


def test_the_text(plug_ins: PlugIns) -> None:
    plug_ins.offer("kernel", FakeKernel("kernel", refuses=("gru",)))
    lines = str(explain(16, 1024, 12, 64, "gru", dtype="bfloat16", device="cpu")).splitlines()
    assert lines[0] == "gru, B 16, T 1024, 12 x 64, bfloat16 on cpu: backend 'auto' takes vanilla_fwbw"
    assert lines[1:4] == [
        "kernel        kernel has no gru, found gru; vanilla_fwbw has it.",
        "vanilla_fwbw  taken",
        "vanilla       would work too",
    ]
    assert sorted(line.split()[0] for line in lines[4:]) == sorted(MISSING)
    assert all(line[12:14] == "  " and line[14] != " " for line in lines[1:])  # columns are aligned


def test_how_a_backend_would_do_it(plug_ins: PlugIns, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = plug_ins.offer("kernel", FakeKernel("kernel"))
    monkeypatch.setattr(kernel, "how", lambda problem: f"{problem.num_heads} CTAs", raising=False)
    told = explain(16, 1024, 12, 64, device="cpu")
    assert told.plans["kernel"] == "12 CTAs" and not told.plans["vanilla"]
    assert str(told).splitlines()[1] == "kernel        taken: 12 CTAs"

    def fail(problem: object) -> str:
        raise ValueError("no idea")

    monkeypatch.setattr(kernel, "how", fail)
    assert explain(16, 1024, 12, 64, device="cpu").plans["kernel"] == "its how raised ValueError: no idea"


@pytest.mark.parametrize("function", ["lstm", "gru"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", ["auto", "kernel", "k", "vanilla", "vanilla_fwbw"])
def test_it_says_what_a_call_does(plug_ins: PlugIns, backend: str, dtype: str, function: str) -> None:
    plug_ins.offer("kernel", FakeKernel("kernel", aliases=("k",), refuses=(torch.float64, "gru")))
    told = explain(2, 3, 1, 2, function, backend=backend, dtype=dtype, device="cpu")
    if told.backend is None:
        with pytest.raises(RuntimeError) as caught:
            choose(told.problem)
        assert str(caught.value) == told.reasons["kernel"] and backend in ("kernel", "k")
    else:
        assert told.backend == choose(told.problem).name
        assert told.reasons[told.backend] is None


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("cudnn", "expected one of auto, vanilla_fwbw, vanilla"),
        ("triton", "not installed: install flashrnn-triton"),
        ("cuda", "not installed: install flashrnn-cuda"),
        ("broken", "no_such_module_at_all"),
    ],
)
def test_a_backend_that_cannot_run_is_a_reason_not_an_error(plug_ins: PlugIns, backend: str, reason: str) -> None:
    if backend == "broken":
        plug_ins.promise("broken", "no_such_module_at_all:BACKEND")
    told = explain(1, 2, 3, 4, backend=backend, device="cpu")
    assert told.backend is None and reason in told.reasons[backend]
    head, *rows = str(told).splitlines()
    assert head.endswith(f"backend {backend!r} takes nothing")
    assert any(row.startswith(f"{backend} ") and reason in row for row in rows)
    assert sum("taken" in row for row in rows) == 0


def test_a_gpu_that_is_not_there_can_be_asked_about_without_a_warning(plug_ins: PlugIns) -> None:
    plug_ins.offer("kernel", FakeKernel("kernel"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert explain(1, 2, 3, 4, device="cuda:3").backend == "kernel"
        assert explain(1, 2, 3, 4, device="cuda", backend="vanilla").backend == "vanilla"


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "xpu"])
def test_a_device_that_is_not_there_takes_nothing(plug_ins: PlugIns, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    kind = torch.device(device).type
    monkeypatch.setattr(getattr(torch, kind), "device_count", lambda: torch.device(device).index or 0)
    plug_ins.offer("kernel", FakeKernel("kernel", refuses=(kind,)))
    told = explain(1, 2, 3, 4, device=device)
    assert not told.device_is_here and "takes" not in str(told).partition("takes nothing")[2]
    lines = str(told).splitlines()
    assert lines[0].endswith(f"float32 on {device}, which this machine does not have: backend 'auto' takes nothing")
    assert lines[1].endswith(f"kernel has no {kind}, found {kind}; vanilla_fwbw has it.")
    assert lines[2:4] == ["vanilla_fwbw  would work there", "vanilla       would work there"]
    monkeypatch.setattr(getattr(torch, kind), "device_count", lambda: 2)
    told = explain(1, 2, 3, 4, device=device)
    assert told.device_is_here and str(told).splitlines()[0].endswith(f"on {device}: backend 'auto' takes vanilla_fwbw")


@pytest.mark.parametrize("device", ["cpu", "cpu:1", "meta"])
def test_a_device_that_is_always_there(device: str) -> None:
    assert explain(1, 2, 3, 4, device=device).device_is_here


def test_a_config_counts_as_in_a_call(plug_ins: PlugIns) -> None:
    config = FlashRNNConfig("gru", "vanilla", "float64", recompute=True)
    told = explain(1, 2, 3, 4, config=config, device="cpu")
    assert told.backend == "vanilla" and told.problem.cell.name == "gru" and told.problem.config.recompute
    assert told.problem.dtype == torch.float64
    with pytest.raises(ConfigError, match="function: the call says 'slstm' and its config 'gru'"):
        explain(1, 2, 3, 4, "slstm", config)


@pytest.mark.parametrize("value", [-1, 1.5, True, "2", None], ids=repr)
@pytest.mark.parametrize(("name", "least"), [("batch_size", 0), ("sequence_size", 0), ("num_heads", 1), ("head_dim", 1)])
def test_a_size_that_is_none_is_an_error(name: str, least: int, value: Any) -> None:
    sizes = {"batch_size": 1, "sequence_size": 2, "num_heads": 3, "head_dim": 4}
    for wrong in (value, least - 1):
        with pytest.raises(ConfigError) as caught:
            explain(**{**sizes, name: wrong})
        assert str(caught.value) == f"{name}: expected an integer of at least {least}, got {wrong!r}."
    assert explain(**{**sizes, name: least}).backend is not None


def test_sizes_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    told = explain(*(numpy.int64(size) for size in (1, 2, 3, 4)), device="cpu")
    assert told.problem == explain(1, 2, 3, 4, device="cpu").problem and type(told.problem.batch_size) is int


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:-1", True, 1.0], ids=repr)
def test_a_device_that_torch_does_not_know_is_an_error(device: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        explain(1, 2, 3, 4, device=device)
    assert str(caught.value) == f"device: expected a device by its name in torch, 'cpu' or 'cuda:0', got {device!r}."


@pytest.mark.parametrize("wrong", [{"function": "rnn"}, {"dtype": "float33"}, {"backend": None}], ids=str)
def test_a_wrong_option_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected"):
        explain(1, 2, 3, 4, **wrong)
