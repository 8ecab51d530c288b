"""For which architectures kernels are compiled, whatever TORCH_CUDA_ARCH_LIST says."""

from __future__ import annotations

from typing import Optional

import pytest

from flashrnn import BackendUnavailable, ConfigError
from flashrnn_cuda.compile.architectures import VARIABLE, architecture_for, architectures, runnable

Capability = tuple[int, int]


def set_list(monkeypatch: pytest.MonkeyPatch, text: Optional[str]) -> None:
    if text is None:
        monkeypatch.delenv(VARIABLE, raising=False)
    else:
        monkeypatch.setenv(VARIABLE, text)


@pytest.mark.parametrize("text", [None, "", " ; ", "\n", "native", " native;"])
@pytest.mark.parametrize(
    ("device", "name"),
    [
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), "sm_103a"),
        ((12, 0), "sm_120a"),
    ],
)
def test_without_a_list_it_is_the_devices_own(
    monkeypatch: pytest.MonkeyPatch, text: Optional[str], device: Capability, name: str
) -> None:
    set_list(monkeypatch, text)
    assert architecture_for(device).name == name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("8.0", ["sm_80"]),
        ("8.0;8.6;9.0", ["sm_80", "sm_86", "sm_90"]),
        ("8.0 8.6  9.0a", ["sm_80", "sm_86", "sm_90a"]),
        (" 9.0a; 8.0 ;", ["sm_90a", "sm_80"]),
        ("\t8.0\n;;9.0;\n", ["sm_80", "sm_90"]),
        ("9.0;9.0+PTX;9.0", ["sm_90"]),
        ("7.5;8.0", ["sm_80"]),
        ("12.0a+PTX", ["sm_120a"]),
        ("Ampere", ["sm_80", "sm_86"]),
        ("Ada;Hopper", ["sm_89", "sm_90"]),
        ("Volta Turing Ampere", ["sm_80", "sm_86"]),
        ("Blackwell", ["sm_100", "sm_103", "sm_120", "sm_121"]),
    ],
)
def test_a_list_is_read_as_torch_reads_it(monkeypatch: pytest.MonkeyPatch, text: str, names: list[str]) -> None:
    set_list(monkeypatch, text)
    assert [entry.name for entry in architectures(None, [])] == names
    set_list(monkeypatch, "10.0")
    assert [entry.name for entry in architectures(text, [(12, 0)])] == names


@pytest.mark.parametrize("text", [None, "native"])
@pytest.mark.parametrize(
    ("here", "names"),
    [
        ([], ["sm_80", "sm_90a"]),
        ([(8, 6)], ["sm_86"]),
        ([(9, 0), (9, 0), (8, 0)], ["sm_90a", "sm_80"]),
        ([(7, 5)], ["sm_80", "sm_90a"]),
    ],
)
def test_without_a_list_it_is_built_for_the_gpus_that_are_there(
    monkeypatch: pytest.MonkeyPatch, text: Optional[str], here: list[Capability], names: list[str]
) -> None:
    set_list(monkeypatch, text)
    found = architectures(None, here)
    assert [entry.name for entry in found] == names == [entry.name for entry in architectures("native", here)]
    for device in here:
        assert device < (8, 0) or architecture_for(device) in found


@pytest.mark.parametrize(
    ("text", "device", "name"),
    [
        ("8.0;8.6;9.0", (8, 6), "sm_86"),
        ("8.0;8.6;9.0", (9, 0), "sm_90"),
        ("9.0;9.0a", (9, 0), "sm_90a"),
        ("9.0a;9.0", (9, 0), "sm_90a"),
        ("8.0;8.6", (8, 9), "sm_86"),  # the highest below
        ("8.6;8.0", (8, 9), "sm_86"),
        ("8.0;8.9", (8, 6), "sm_80"),  # never a newer one
        ("10.0a;10.0", (10, 3), "sm_100"),  # "a" is for one capability only
        ("8.0;9.0+PTX", (12, 0), "sm_120a"),  # compiled for the device itself
        ("8.0+PTX", (9, 0), "sm_90a"),
        ("8.0+PTX", (8, 6), "sm_80"),  # a cubin that runs goes first
        ("Hopper", (10, 0), "sm_100a"),
        ("7.5;9.0", (9, 0), "sm_90"),
    ],
)
def test_the_entry_that_serves_a_device(monkeypatch: pytest.MonkeyPatch, text: str, device: Capability, name: str) -> None:
    set_list(monkeypatch, text)
    assert architecture_for(device).name == name
    assert [entry.name for entry in runnable(device)] == [name]


@pytest.mark.parametrize(
    ("text", "device", "have"),
    [
        ("8.0;8.6", (9, 0), "9.0"),
        ("8.6", (8, 0), "8.0"),
        ("9.0", (8, 9), "8.9"),
        ("10.0a", (10, 3), "10.3"),
        ("9.0a+PTX", (10, 0), "10.0"),  # PTX for exactly 9.0 runs on nothing else
        ("9.0+PTX", (8, 0), "8.0"),
        ("7.5+PTX;8.0", (9, 0), "9.0"),  # too old to be counted
    ],
)
def test_a_device_that_is_left_out_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, device: Capability, have: str
) -> None:
    set_list(monkeypatch, text)
    with pytest.raises(BackendUnavailable) as caught:
        architecture_for(device)
    for part in (VARIABLE, repr(text), f"compute capability {have}", f"add {have}", "unset it"):
        assert part in str(caught.value)


@pytest.mark.parametrize("text", ["7.5", "Turing", "Volta;7.5+PTX"])
def test_a_list_of_old_ones_only_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    set_list(monkeypatch, text)
    for call in (lambda: architectures(None, []), lambda: architecture_for((9, 0))):
        with pytest.raises(BackendUnavailable, match=r"Entries below 8\.0 are ignored") as caught:
            call()
        assert repr(text) in str(caught.value)


@pytest.mark.parametrize("word", ["sm_90", "9", "90", "9.0b", "9.0A", "9.0+ptx", "10.0f", "Hoper", "hopper", "8.0,9.0"])
def test_what_is_no_architecture_is_an_error(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    set_list(monkeypatch, f"8.0;{word}")
    with pytest.raises(ConfigError) as caught:
        architecture_for((8, 0))
    assert str(caught.value).startswith(f"{VARIABLE}: expected a list such as") and repr(word) in str(caught.value)


def test_without_a_list_whatever_a_device_can_run_may_have_been_built(monkeypatch: pytest.MonkeyPatch) -> None:
    set_list(monkeypatch, None)
    assert [entry.name for entry in runnable((9, 0))] == ["sm_90a", "sm_90"]
    names = [entry.name for entry in runnable((8, 6))]
    assert names[0] == "sm_86" and names[-1] == "sm_80" and "sm_89" not in names and "sm_75" not in names
