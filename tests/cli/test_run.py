"""`shardc run` from its words to figures, weights and logs on real ranks, and how it ends where it cannot."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.cli.process import NET, SHARDC, shardc

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
    first, *_, step, last = done.stdout.splitlines()
    assert (
        first
        == "net.shard, strategy dp, 2 ranks on the CPU by gloo: 4 parameters, 6 steps; logs in logs, no checkpoints"
    )
    assert step.startswith("epoch 2  step 6/6  0 s left  loss ")
    found = losses(here / "m.jsonl")
    best = f"lowest loss {min(found):.6g} after step {found.index(min(found)) + 1}"
    assert (
        re.sub(r"[0-9.]+ m?s:", "0 s:", last)
        == f"finished after 0 s: {best}; logs in logs, no checkpoints, weights in w.safetensors"
    )
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


def test_no_file_of_a_command_may_be_read_by_others_where_the_user_wants_none(here: Path) -> None:
    """The umask is 077; a file that was there keeps its mode."""
    (here / "old").mkdir()
    (here / "old" / "main.py").write_text("")
    (here / "old" / "main.py").chmod(0o640)
    apart = "import os, sys; os.umask(0o77); from shardlang.cli.main import main; main()"
    for words in (
        ("run", "net.shard", "--ranks", "1", "--device", "cpu", "--save-weights", "w.st", "--metrics", "m.jsonl"),
        ("compile", "net.shard", "--ranks", "1", "-o", "made"), ("compile", "net.shard", "--ranks", "1", "-o", "old"),
        ("new", "first", "--from", "digits"),
    ):  # fmt: skip
        done = warm.run([sys.executable, "-c", apart, *words], cwd=here)
        assert done.returncode == 0, done.stderr
    (here / "net.shard").unlink()
    (here / "old").chmod(0o700)
    seen = {str(path.relative_to(here)) for path in here.rglob("*") if path.lstat().st_mode & 0o77}
    assert seen == {"old/main.py", "shardlang-logs/latest"}


def test_one_of_several_tasks_is_refused_in_lines(here: Path) -> None:
    words = [*SHARDC, "run", "net.shard", "--ranks", "2"]
    done = warm.run(words, cwd=here, env={**os.environ, "RANK": "3", "WORLD_SIZE": "8"})
    first, second = done.stderr.splitlines()
    assert first == "error[SH503]: `shardc run` starts all ranks itself, and torchrun has started it as task 3 of 8"
    assert done.returncode == 2 and second.startswith("help: shardc launch writes a job")


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
