"""The examples run, with every cell, and refuse what they cannot use."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

import char_lm
import packing
import state_tracking
from corpus import as_streams, read_files
from flashrnn.cells import CELLS

SMALL = ["--steps", "60", "--num-heads", "2", "--head-dim", "32", "--batch-size", "16"]


@pytest.mark.parametrize("function", CELLS)
def test_char_lm_learns_and_draws(function: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    curve = tmp_path / "curve.png"
    code = char_lm.main(["--function", function, "--out", str(curve), *SMALL])
    printed = capsys.readouterr().out
    assert "A sample at temperature" in printed
    last = printed.strip().splitlines()[-1]
    bits, bigram = (float(part.split()[-1]) for part in last.split(": ")[1].split(","))
    assert code == (0 if bits < bigram else 1)
    assert bits < 4.0  # knowing nothing takes 6.66
    assert curve.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("function", ["lstm", "gru", "elman"])
def test_char_lm_learns_the_same_with_the_layers_of_flashrnn_and_of_torch(function: str) -> None:
    text, _ = read_files(Path(sysconfig.get_paths()["stdlib"]), 200_000)
    options = char_lm.parse(["--function", function, "--steps", "30", "--batch-size", "8", "--sequence-size", "32"])
    streams, valid = as_streams(text, 8, 32), as_streams(text[:5_000], 16, 1)
    curves = []
    for layer in ("flashrnn.nn", "torch.nn"):
        torch.manual_seed(0)
        model = char_lm.CharModel(layer, function, "auto", num_heads=1, head_dim=32)
        curves.append([loss for curve in char_lm.train(model, streams, valid, options) for _, loss in curve])
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)
    assert curves[0][-1] < curves[0][0] - 0.5


def test_char_lm_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="too little text"):
        char_lm.main(["--folder", str(tmp_path), "--out", str(tmp_path / "x.png")])
    with pytest.raises(SystemExit):
        char_lm.main(["--function", "transformer"])
    with pytest.raises(SystemExit):
        char_lm.main(["--layer", "torch.nn", "--num-heads", "2"])
    with pytest.raises(SystemExit, match="expected one of auto"):
        char_lm.main(["--backend", "no_such_backend", "--out", str(tmp_path / "x.png"), *SMALL])


def test_state_tracking_goes_on_beyond_the_training_s_length(capsys: pytest.CaptureFixture[str]) -> None:
    assert state_tracking.main(["--function", "lstm"]) == 0
    assert "Accuracy on 400 bits" in capsys.readouterr().out


def test_state_tracking_does_not_pass_untrained() -> None:
    assert state_tracking.main(["--max-steps", "1"]) == 1


@pytest.mark.parametrize("layer", packing.LAYERS)
def test_packing_gives_the_same_gradients(layer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert packing.main(["--layer", layer, "--count", "12", "--longest", "10"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("12 sequences of 1 to 10 steps") and "% of the time; loss and gradients differ by " in printed


def test_packing_holds_every_sequence_once() -> None:
    torch.manual_seed(0)
    sequences = packing.random_sequences(50, 20)
    batch = packing.packed(sequences)
    found = []
    for x, length, resets in zip(batch.x, batch.lengths, batch.resets):
        starts = resets.nonzero().flatten().tolist()
        assert not resets[length:].any() and not x[length:].any()
        found += [x[start:end] for start, end in zip(starts, [*starts[1:], length])]
    for one, other in zip(sorted(found, key=lambda x: x[0, 0]), sorted(sequences, key=lambda x: x[0, 0])):
        assert torch.equal(one, other)
    assert len(found) == 50 and len(batch.x) < 25 and batch.padding < packing.padded(sequences).padding / 2


def test_packing_tells_results_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = packing.packed
    monkeypatch.setattr(packing, "packed", lambda sequences: packed(sequences)._replace(resets=None))
    assert packing.main(["--count", "12", "--longest", "10"]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="torchrun and Gloo as on Linux")
def test_train_ddp_learns_on_two_processes() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("train_ddp.py"))], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 processes on ") and float(done.stdout.split("loss ")[1].split()[0]) < 0.3


@pytest.mark.skipif(sys.platform != "linux", reason="reads the names of threads from /proc")
def test_train_ddp_leaves_no_thread_of_the_process_group() -> None:
    """One that is still there when Python ends, and lets go of a tensor then, ends the process with SIGABRT."""
    program = """
import os, train_ddp
assert train_ddp.main(["--steps", "1"]) == 0
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
assert not [name for name in names if "gloo" in name], names
"""
    environment = {**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
