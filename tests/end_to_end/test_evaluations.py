"""`evaluate = every(..)`: how often, the best evaluation's checkpoint, and the end of a run that gets no better."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardlang.runtime.program import Evaluation
from shardlang.runtime.state.best import Best
from tests.cli.process import NET, shardc
from tests.end_to_end.test_resume import PROGRAM, records, run

SETTINGS = {"optimizer": "adam(lr = 0.3)", "zero": 1}


def program(folder: Path, evaluate: str, *more: str) -> Path:
    folder.mkdir()
    text = (PROGRAM % SETTINGS).replace("steps = 30", "\n  ".join(("epochs = 6", f"evaluate = {evaluate}", *more)))
    text = "\n".join(line for line in text.splitlines() if "lr_schedule" not in line)
    (folder / "p.shard").write_text(text.replace("keep = 3", "keep = 1"))
    return folder


def without_time(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "step_ms"} for line in lines]


def steps_kept(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "kept").iterdir())


def test_a_run_that_gets_no_better_ends_and_the_best_is_kept(tmp_path: Path) -> None:
    whole = program(tmp_path / "whole", "every(7, best = lowest(loss), patience = 3)")
    said = run(whole, "--ranks", "2", "--strategy", "rows", "--metrics", "m.jsonl")
    lines = records(whole / "m.jsonl")
    evaluated = {line["step"]: line["eval.loss"] for line in lines if "eval.loss" in line}
    last, best = max(evaluated), min(evaluated, key=evaluated.__getitem__)
    assert list(evaluated) == list(range(7, last + 1, 7)) and last == best + 21 < 132
    why = "and 3 evaluations since then were no better; a run with a greater `patience` goes on"
    assert f"ends after step {last}: `loss` was lowest after step {best}" in said and why in said
    assert said.splitlines()[-1].startswith("ended early after ") and f" after step {best}; logs in " in said
    assert said.splitlines()[-1].endswith(f", checkpoints in kept, the best in step-{best} there")
    assert steps_kept(whole) == sorted({best, last})  # `keep = 1`, and the best besides
    # From a checkpoint in the middle the same run again, under another strategy: the same end.
    half = program(tmp_path / "half", "every(7, best = lowest(loss), patience = 3)")
    run(half, "--ranks", "2", "--strategy", "rows", "--metrics", "m.jsonl", "--set", f"train.steps={best + 7}")
    run(half, "--ranks", "2", "--strategy", "rows", "--metrics", "m.jsonl", "--resume")
    assert without_time(records(half / "m.jsonl")) == without_time(lines)
    assert steps_kept(half) == sorted({best, last})
    # What has ended goes on to nothing but the same evaluation.
    again = run(half, "--ranks", "2", "--strategy", "rows", "--resume")
    assert f"ends after step {last}" in again
    shown = shardc("checkpoint", "show", f"kept/step-{last}", folder=half).stdout
    assert f"best: figure loss, lowest true, value {evaluated[best]}, step {best}, worse 2" in shown
    more = run(
        half,
        "--ranks",
        "2",
        "--strategy",
        "rows",
        "--resume",
        "--set",
        "train.evaluate=every(7, best = lowest(loss), patience = 4)",
    )
    assert f"goes on after step {last}" in more and f"ends after step {last}:" not in more


def test_the_best_of_epochs(tmp_path: Path) -> None:
    folder = program(tmp_path / "p", "every(best = highest(accuracy))",
                     "metric accuracy = mean(argmax(model(image), over = classes) == label)")  # fmt: skip
    run(folder, "--ranks", "1", "--metrics", "m.jsonl")
    found = [line for line in records(folder / "m.jsonl") if "eval.accuracy" in line]
    assert [line["epoch"] for line in found] == [1, 2, 3, 4, 5, 6] and all("step" not in line for line in found)
    best = max(range(6), key=lambda at: found[at]["eval.accuracy"])
    assert steps_kept(folder) == sorted({22 * (best + 1), 132})


def test_a_checkpoint_of_another_figure_is_gone_on_from_and_said(tmp_path: Path) -> None:
    folder = program(tmp_path / "p", "every(10, best = lowest(loss))")
    run(folder, "--ranks", "1", "--set", "train.steps=20")
    text = (folder / "p.shard").read_text()
    (folder / "p.shard").write_text(text.replace("lowest(loss)", "highest(loss)"))
    said = run(folder, "--ranks", "1", "--resume", "--set", "train.steps=30")
    assert "looks for the best `loss` from here on: the checkpoint has another figure" in said
    shutil.rmtree(folder)


def test_an_evaluation_after_a_checkpoint_is_made_under_another_interval_too(tmp_path: Path) -> None:
    folder = program(tmp_path / "p", "every(10, best = lowest(loss))")
    (folder / "p.shard").write_text((folder / "p.shard").read_text().replace("epochs = 6", "steps = 20"))
    run(folder, "--ranks", "2", "--metrics", "m.jsonl")
    first = [line for line in without_time(records(folder / "m.jsonl")) if "eval.loss" in line]
    text = (folder / "p.shard").read_text()
    text = text.replace("every(10, best", "every(7, best").replace("every(10, keep", "every(4, keep")
    (folder / "p.shard").write_text(text)
    run(folder, "--ranks", "2", "--metrics", "m.jsonl", "--resume", "--set", "train.steps=30")
    found = [line for line in without_time(records(folder / "m.jsonl")) if "eval.loss" in line]
    assert [line["step"] for line in found] == [10, 20, 21, 28, 30] and found[:2] == first
    best = min(found, key=lambda line: line["eval.loss"])["step"]
    assert steps_kept(folder) == sorted({best, 30})


@pytest.mark.parametrize(
    ("setting", "figures", "judged", "over"),
    [
        (Evaluation(best="loss", patience=2), [3.0, 2.0, 2.0, 1.5, 1.6, 1.7], [True, True, False, True, False, False],
         6),
        (Evaluation(best="loss", lowest=False, patience=1), [1.0, 2.0, 1.9], [True, True, False], 3),
        (Evaluation(best="loss", patience=1), [float("nan"), 2.0], [False, True], 1),
        (Evaluation(best="loss", patience=3), [2.0, float("nan"), float("inf"), 2.5], [True, False, False, False], 4),
        (Evaluation(best="loss", patience=2), [float("inf"), 2.0, float("-inf")], [False, True, False], 0),
        (Evaluation(), [3.0, 2.0], [False, False], 0),
    ],
)  # fmt: skip
def test_what_is_best(setting: Evaluation, figures: list[float], judged: list[bool], over: int) -> None:
    best, found, ends = Best(setting), [], 0
    for step, value in enumerate(figures, 1):
        found.append(best.told({"loss": value}, step))
        ends = ends or (step if best.over else 0)
    assert found == judged and ends == over
    if setting.best is not None:
        other = Best(setting)
        assert other.resumed(json.loads(json.dumps(best.kept()))) and other == best


def test_a_run_whose_evaluations_are_all_nan_ends_and_says_so(tmp_path: Path) -> None:
    np.savez(tmp_path / "nan.npz", x=np.full((8, 4), np.nan, np.float32))
    evaluated = 'eval = numpy("nan.npz", x: [batch, d])\n  evaluate = every(1, best = lowest(loss), patience = 2)'
    (tmp_path / "net.shard").write_text(NET.replace("epochs = 2", f"epochs = 2\n  {evaluated}"))
    done = shardc("run", "net.shard", "--ranks", "2", "--device", "cpu", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ends after step 2: `loss` was a finite number in none of 2 evaluations" in done.stdout


@pytest.mark.parametrize("kept", [{}, {"figure": "loss", "lowest": True, "value": "1", "step": 3, "worse": 0}, 7])
def test_a_damaged_best_is_told(kept: Mapping[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError)):
        Best(Evaluation(best="loss")).resumed(kept)
