"""Pipeline stages change no figure: emitted programs under every schedule against one rank; torchrun; failures."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.cli.process import shardc
from tests.end_to_end.curves import ROOT, RunOf, figures
from tests.end_to_end.test_accumulation import same
from tests.runtime.apart import apart

pytestmark = pytest.mark.slow
PROGRAM = ROOT / "tests" / "emit" / "programs" / "staged.shard"
ALONE = RunOf("alone", 1)
RUNS = [
    RunOf("two", 2),
    RunOf("looped", 4),
    RunOf("gpipe", 4),
    RunOf("zero_bubble", 4),
    RunOf("zbv", 4),
    RunOf("dualpipe_v", 4),
]


def test_every_schedule(tmp_path: Path) -> None:
    found = figures(PROGRAM.read_text(), [ALONE, *RUNS], tmp_path)
    for run in RUNS:
        same(found[run], found[ALONE], run.name, 1e-9)


def test_every_level_of_zero(tmp_path: Path) -> None:
    text = PROGRAM.read_text()
    runs = []
    for level in (1, 2, 3):
        for name in ("looped", "two"):
            start = text.index(f"strategy {name} ")
            end = text.index("}\n\nstrategy", start)
            changed = text[start:end].replace(f"strategy {name} ", f"strategy {name}{level} ")
            text += f"\n{changed}  zero {level} over dp\n}}\n"
            runs.append(RunOf(f"{name}{level}", 4))
    found = figures(text, [ALONE, *runs], tmp_path)
    for run in runs:
        same(found[run], found[ALONE], run.name, 1e-9)


def test_compiled_files_under_torchrun(tmp_path: Path) -> None:
    done = shardc("compile", str(PROGRAM), "--ranks", "2", "--strategy", "two", "-o", str(tmp_path), folder=ROOT)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"main.py", "stage0.py", "stage1.py"}
    ended = apart(2, "main.py", "--device", "cpu", "--metrics", "m.jsonl", folder=tmp_path)
    assert [done.returncode for done in ended] == [0, 0], ended
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert len([line for line in lines if "loss" in line]) == 8


def test_a_stage_that_fails_ends_the_run_and_is_named(tmp_path: Path) -> None:
    done = shardc("compile", str(PROGRAM), "--ranks", "2", "--strategy", "two", "-o", str(tmp_path), folder=ROOT)
    assert done.returncode == 0, done.stderr
    stage = tmp_path / "stage1.py"
    text = stage.read_text()
    stage.write_text(text.replace("    y = torch.relu(y_1)", "    y = torch.relu(y_1) / {}", 1))
    done = warm.run(
        [sys.executable, str(tmp_path / "main.py"), "--device", "cpu", "--log-dir", str(tmp_path / "logs")],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 3
    assert "rank 1 failed" in done.stderr and "y = last(m) + h |> relu" in done.stderr
    assert "torch.relu(y_1) / {}" in done.stderr
