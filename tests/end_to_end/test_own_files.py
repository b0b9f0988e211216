"""Every command that writes, in a folder full of a user's own files with every name that it could take: none of them
changes. And runs at once in one folder: each is the run that it would be alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from shardlang.cli.main import run
from tests import warm
from tests.cli.process import NET, SHARDC, shardc
from tests.warm import Warm

PLAIN = NET.replace("x * w", "dropout(x * w, p = 0.5)").replace("epochs = 2", "steps = 4")
PROGRAM = PLAIN.replace("steps = 4", 'steps = 4\n  checkpoint = every(2, keep = 1, to = ".")')
# Files of the user's: data and programs, and every name that something is written under.
MINE = (
    "main.py", "stage0.py", "rank-0.log", "rank-1.log", "data.csv", "train.npz", "m.jsonl", "figures.jsonl",
    "w.safetensors", "w.safetensors.part", "out/main.py", "out/notes.txt", "logs/rank-1.log", "text.txt", "tokens.bin",
    ".d.st.shardlang-part", ".l.st.shardlang-lock", "lock/.shardlang-lock", "read/x",
    "shardlang-logs/run-1/main.py", "shardlang-logs/run-7/notes.txt", "shardlang-logs/latest/rank-0.log",
    "shardlang-logs/main.py", "shardlang-logs/rank-0.log", "shardlang-logs/.latest-8",
    "step-1/rank-00000.safetensors", "step-1/index.json", "step-2/notes.txt", ".step-2.part/rank-00000.safetensors",
    ".step-4.part/index.json", "step-4/index.json", "checkpoints/step-2/index.json",
)  # fmt: skip
RUN = ("run", "plain.shard", "--ranks", "1", "--device", "cpu")
REFUSED = {
    "figures: the program": (*RUN, "--metrics", "net.shard"),
    "figures: data": (*RUN, "--metrics", "data.csv"),
    "figures: other lines": (*RUN, "--metrics", "m.jsonl"),
    "figures: a folder": (*RUN, "--metrics", "logs"),
    "figures: a link": (*RUN, "--metrics", "link"),
    "weights: the program": (*RUN, "--save-weights", "net.shard"),
    "weights: data": (*RUN, "--save-weights", "train.npz"),
    "weights: others": (*RUN, "--save-weights", "w.safetensors"),
    "weights: a link": (*RUN, "--save-weights", "link"),
    "weights: a pipe": (*RUN, "--save-weights", "pipe"),
    "weights: the draft": (*RUN, "--save-weights", "d.st"),
    "weights: the lock": (*RUN, "--save-weights", "l.st"),
    "figures: a lock": (*RUN, "--metrics", "checkpoints/.shardlang-lock"),
    "weights: a lock": (*RUN, "--save-weights", ".new.shardlang-lock"),
    "weights: a draft": (*RUN, "--save-weights", ".new.shardlang-part"),
    "logs: a lock's name": (*RUN, "--log-dir", "checkpoints/.shardlang-lock"),
    "weights: the logs": (*RUN, "--save-weights", "new", "--log-dir", "new"),
    "figures: above the logs": (*RUN, "--metrics", "new", "--log-dir", "new/logs"),
    "two in one": (*RUN, "--save-weights", "new", "--metrics", "new"),
    "logs: here": (*RUN, "--log-dir", "."),
    "logs: another rank's": ("run", "plain.shard", "--ranks", "2", "--log-dir", "logs"),
    "logs: the lock": (*RUN, "--log-dir", "lock"),
    "logs: a file": (*RUN, "--log-dir", "data.csv"),
    "logs: below a file": (*RUN, "--log-dir", "data.csv/logs"),
    "simulated: figures": (*RUN, "--simulate", "--metrics", "m.jsonl"),
    "simulated: two in one": (*RUN, "--simulate", "--save-weights", "new", "--metrics", "new"),
    "simulated: weights": (*RUN, "--simulate", "--save-weights", "w.safetensors"),
    "compile: out": ("compile", "net.shard", "--ranks", "1", "-o", "out"),
    "compile: here": ("compile", "net.shard", "--ranks", "1", "-o", "."),
    "compile: a file": ("compile", "net.shard", "--ranks", "1", "-o", "data.csv"),
    "tokens: others": ("tokens", "text.txt", "-o", "tokens.bin"),
    "tokens: the text itself": ("tokens", "text.txt", "-o", "text.txt"),
    "tokens: a link": ("tokens", "text.txt", "-o", "link"),
    "tokens: a folder": ("tokens", "text.txt", "-o", "out"),
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.shard").write_text(PROGRAM)
    (tmp_path / "plain.shard").write_text(PLAIN)
    for name in MINE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f'{{"mine": "{name}"}}\n')
    (tmp_path / "link").symlink_to("train.npz")
    os.mkfifo(tmp_path / "pipe")  # in the place of a device, which a fault would replace
    return tmp_path


def sums(folder: Path) -> dict[str, str]:
    """By path the sha256 of each file, and what each link says."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = os.readlink(path)
        elif path.is_file():
            found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_in_the_way_is_told_before_anything_is_written(
    case: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sums(here)
    assert run(list(REFUSED[case])) == (3 if REFUSED[case][0] == "run" else 2)
    told = capsys.readouterr().err
    assert told.startswith("error[SH512]: "), told
    assert "help: " in told and sums(here) == before
    # What is in the way may be what the run reads: it is not to be moved.
    assert "mv " not in told and "another run" not in told


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("weights: data", "saved weights would replace a file that holds something else"),
        ("figures: a folder", "figures would replace a folder"),
        ("weights: the draft", "saved weights cannot be written: something else has this name"),
        ("weights: the logs", "this run would write both logs and saved weights here"),
        ("logs: a file", "logs cannot be written: a file is in the way"),
    ],
)
def test_what_is_in_the_way_is_told_in_plain_words(
    case: str, words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(list(REFUSED[case])) == 3
    assert f"error[SH512]: {words}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "folders"),
    [
        (("--save-weights", "kept"), ()),
        (("--metrics", "kept"), ()),
        (("--save-weights", "kept/step-4"), ("kept",)),
        (("--metrics", "kept/.step-4.part"), ("kept",)),
        (("--save-weights", "kept/step-9/w.st"), ("kept/step-9",)),
        (("--log-dir", "kept/step-4"), ()),
        (("--save-weights", "shardlang-logs"), ()),
        (("--save-weights", "shardlang-logs/run-1"), ("shardlang-logs",)),
        (("--metrics", "stored", "--host-storage", "stored"), ()),
    ],
)
def test_places_of_one_run_are_compared_before_it_trains(
    words: tuple[str, ...], folders: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """None of them is there yet."""
    monkeypatch.chdir(tmp_path)
    Path("net.shard").write_text(PROGRAM.replace('to = "."', 'to = "kept"'))
    for folder in folders:
        Path(folder).mkdir(parents=True)
    assert run(["run", "net.shard", "--ranks", "1", "--device", "cpu", *words]) == 3
    told = capsys.readouterr().err
    assert told.startswith("error[SH512]: ") and f"{words[1]}\nhelp: " in told, told
    assert "mv " not in told
    assert not list(tmp_path.rglob("rank-*"))
    assert not Path(words[1]).is_file()


@pytest.mark.slow
def test_a_run_beside_files_of_the_users(here: Path) -> None:
    """Logs in a folder of its own, new figures and weights: nothing that was there changes, and the second run of the
    same command replaces what the first wrote.
    """
    before = sums(here)
    words = ("--metrics", "new.jsonl", "--save-weights", "new.st", "--host-storage", ".")
    text = PLAIN.replace("  split batch over dp", "  split batch over dp\n  at w: place on host")
    (here / "hosted.shard").write_text(text)
    for _ in range(2):
        done = shardc("run", "hosted.shard", "--ranks", "2", "--device", "cpu", *words, folder=here)
        assert done.returncode == 0, done.stderr
        after = sums(here)
        assert {name: after.get(name) for name in before} == before
    new = {name for name in after if name not in before}
    ranks = [f"rank-{rank}.{kind}" for rank in (0, 1) for kind in ("log", "collectives")]
    written = (".shardlang-run", "main.py", *ranks)
    runs = {f"shardlang-logs/run-{n}/{name}" for n in (8, 9) for name in written}
    assert new == {"hosted.shard", "new.jsonl", "new.st", *runs}
    assert len((here / "new.jsonl").read_text().splitlines()) == 4


@pytest.mark.slow
def test_checkpoints_beside_files_of_the_users(here: Path) -> None:
    """A run stops before it trains; `verify` writes no checkpoint at all; a folder of its own is taken."""
    before = sums(here)
    another = "error[SH508]: no checkpoint is whole; of the newest: the checkpoint has format None, and this is for 2"
    for words, told in (
        ((), f"`to` of `checkpoint`; or move this one away: mv {here}/"),
        (("--resume",), f"{another}: shardlang did not write it\n  --> {here}/step-4/index.json"),
    ):
        new = ("--metrics", "new.jsonl")
        done = shardc("run", "net.shard", "--ranks", "1", "--device", "cpu", *new, *words, folder=here)
        assert done.returncode == 3
        assert told in done.stderr
        assert words or "error[SH512]: something else is in the way of a checkpoint\n" in done.stderr
    verified = shardc("verify", "net.shard", "--ranks", "2", "--steps", "2", folder=here)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    # Beside step-1 of the user's, checkpoints after other steps are written, and dropped by `keep`.
    for name in (".step-2.part", ".step-4.part", "step-2", "step-4"):
        (here / name).rename(here / f"{name}.mine")
    moved = sums(here)
    done = shardc("run", "net.shard", "--ranks", "2", "--device", "cpu", folder=here)
    assert done.returncode == 0, done.stderr
    after = sums(here)
    assert {name: after.get(name) for name in moved} == moved
    assert sorted(path.name for path in here.glob("step-*")) == ["step-1", "step-2.mine", "step-4", "step-4.mine"]
    assert set(before.values()) <= set(after.values())


def figures(path: Path) -> list[Mapping[str, float]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "step_ms"} for line in lines]


ALONE = """
import sys
from shardlang.cli.main import run
for seed in sys.argv[1:]:
    words = ["run", "plain.shard", "--ranks", "1", "--device", "cpu", "--set", f"train.seed={seed}"]
    assert run([*words, "--metrics", f"{seed}.jsonl"]) == 0
"""


@pytest.mark.slow
def test_eight_runs_at_once_are_the_runs_that_they_are_alone(tmp_path: Path) -> None:
    """One program, eight seeds, one folder: eight curves, each to the bit that of a run that had the folder alone."""
    seeds = [str(seed) for seed in range(1, 9)]
    both = tmp_path / "at once", tmp_path / "alone"
    for folder in both:
        folder.mkdir()
        (folder / "plain.shard").write_text(PLAIN)
    started = [
        Warm(
            [*SHARDC, *RUN, "--set", f"train.seed={seed}", "--metrics", f"{seed}.jsonl"],
            cwd=both[0], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for seed in seeds
    ]  # fmt: skip
    for process in started:
        told, _ = process.communicate()
        assert process.returncode == 0, told
    alone = warm.run([sys.executable, "-c", ALONE, *seeds], cwd=both[1])
    assert alone.returncode == 0, alone.stdout + alone.stderr
    at_once = [figures(both[0] / f"{seed}.jsonl") for seed in seeds]
    assert at_once == [figures(both[1] / f"{seed}.jsonl") for seed in seeds]
    assert len({json.dumps(curve) for curve in at_once}) == 8
    logs = both[0] / "shardlang-logs"
    assert sorted(path.name for path in logs.iterdir()) == ["latest", *(f"run-{n}" for n in range(1, 9))]
    assert len({(logs / f"run-{n}" / "main.py").read_text() for n in range(1, 9)}) == 8
