"""`shardc run` from its words to figures, weights and logs on real ranks, and how it ends where it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.process import NET, shardc

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "net.shard").write_text(NET)
    return tmp_path


def losses(file: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in file.read_text().splitlines()]


def test_figures_weights_and_logs(here: Path) -> None:
    words = ("--device", "cpu", "--metrics", "m.jsonl", "--save-weights", "w.safetensors", "--log-dir", "logs")
    done = shardc("run", "net.shard", "--ranks", "2", *words, folder=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert "step 6/6" in done.stdout
    found = losses(here / "m.jsonl")
    assert len(found) == 6
    ranks = [f"rank-{rank}.{kind}" for rank in (0, 1) for kind in ("collectives", "log")]
    assert sorted(p.name for p in (here / "logs").iterdir() if p.is_file()) == ["main.py", *ranks]
    from safetensors.numpy import load_file

    assert load_file(here / "w.safetensors")["w"].shape == (4,)
    # From the standard input, on another number of ranks, with a setting changed: the same curve, half as long.
    again = shardc("run", "-", "--ranks", "4", "--set", "train.epochs=1", *words, folder=here, input=NET)
    assert again.returncode == 0, again.stderr
    assert losses(here / "m.jsonl") == pytest.approx(found[:3], rel=1e-5)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("nowhere.shard", "--ranks", "2"), 2, "nowhere.shard"),
        (("net.shard", "--ranks", "3"), 1, "SH304"),
        (("net.shard", "--ranks", "2", "--metrics", "nowhere/m.jsonl"), 2, "there is no folder"),
        (("net.shard", "--ranks", "2", "--set", "train.epochs=0"), 1, "SH213"),
        (("steep.shard", "--ranks", "2", "--device", "cpu"), 3, "error[SH506]: the loss is "),
    ],
)
def test_how_it_ends_where_it_cannot(here: Path, words: tuple[str, ...], code: int, told: str) -> None:
    (here / "steep.shard").write_text(NET.replace("lr = 0.1", "lr = 1e38"))
    done = shardc("run", *words, folder=here)
    assert done.returncode == code, done.stderr
    assert told in done.stderr + done.stdout and "Traceback" not in done.stderr
