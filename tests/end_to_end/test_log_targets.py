"""`shardc run --log`: who hears of a run on real ranks, and what a callback may ask for."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.cli.process import NET, SHARDC, shardc

pytestmark = pytest.mark.slow

LONG = NET.replace("epochs = 2", 'eval = random(x: [batch, d], batches = 2, seed = 5)\n  steps = 60000\n'
                   '  evaluate = every(50000, best = lowest(loss))\n'
                   '  checkpoint = every(50000, to = "kept")')  # fmt: skip
WATCH = """
import json, pathlib, time

def slow(event, run):
    time.sleep(0.02)

def raises(event, run):
    raise KeyError("lr")

def noted(event, run):
    with open("seen.jsonl", "a") as file:
        file.write(json.dumps(event) + "\\n")

class Stops:
    def __init__(self):
        self.seen = 0

    def __call__(self, event, run):
        self.seen += event["event"] == "step"
        if self.seen == 5:
            run.stop()

class Asks:
    def __init__(self):
        self.seen, self.kept, self.judged = 0, 0, 0

    def __call__(self, event, run):
        self.seen += event["event"] == "step"
        self.kept += event["event"] == "checkpoint"
        self.judged += event["event"] == "evaluation"
        if self.seen == 5:
            run.checkpoint()
        if self.kept == 1 and event["event"] == "checkpoint":
            run.evaluate()
        if self.judged == 1 and event["event"] == "evaluation":
            run.stop()
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "net.shard").write_text(NET)
    (tmp_path / "long.shard").write_text(LONG)
    (tmp_path / "watch.py").write_text(WATCH)
    return tmp_path


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def train(folder: Path, name: str, *words: str) -> str:
    done = shardc("run", name, "--ranks", "2", "--device", "cpu", "--log-dir", "logs", *words, folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_events_are_the_lines_of_metrics_between_start_and_end(here: Path) -> None:
    train(here, "net.shard", "--metrics", "m.jsonl", "--log", "jsonl:e.jsonl", "--log", "python:watch.py:noted")
    start, *steps, end = lines(here / "e.jsonl")
    assert lines(here / "seen.jsonl") == [start, *steps, end]
    assert [{**{"step": line.pop("step")}, **line} for line in map(dict, steps) if line.pop("event") == "step"] \
        == lines(here / "m.jsonl")  # fmt: skip
    assert end == {"event": "end", "step": 6, "why": "finished"}
    settings = start["settings"]
    assert (settings["strategy"], settings["ranks"], settings["mesh"]) == ("dp", 2, {"dp": 2})
    assert settings["optimizer"] == {
        "kind": "sgd", "lr": 0.1, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False,
    }  # fmt: skip
    assert len(settings["hash"]) == 64 and (settings["steps"], settings["batch"]) == (6, 8)
    # Another program has another hash, the same program the same.
    train(here, "net.shard", "--log", "jsonl:e.jsonl")
    assert lines(here / "e.jsonl")[0]["settings"] == settings
    train(here, "net.shard", "--log", "jsonl:e.jsonl", "--set", "train.optimizer.lr=0.2")
    assert lines(here / "e.jsonl")[0]["settings"]["hash"] != settings["hash"]


def test_a_slow_one_slows_no_step_and_one_that_raises_is_told_once(here: Path) -> None:
    words = ("--log", "python:watch.py:slow", "--log", "python:watch.py:raises", "--set", "train.epochs=40")
    said = train(here, "net.shard", "--metrics", "m.jsonl", *words)
    assert said.count("--log python:watch.py:raises is dropped, and the run goes on: KeyError: 'lr'") == 1
    taken = sorted(line["step_ms"] for line in lines(here / "m.jsonl"))
    assert len(taken) == 120 and taken[60] < 20  # the slow one takes 20 ms an event


def test_a_callback_stops_all_ranks_after_one_step_with_a_checkpoint(here: Path) -> None:
    said = train(here, "long.shard", "--metrics", "m.jsonl", "--log", "python:watch.py:Stops",
                 "--save-weights", "w.st", "--log", "jsonl:e.jsonl")  # fmt: skip
    (kept,) = (here / "kept").iterdir()
    step = int(kept.name.removeprefix("step-"))
    assert 5 <= step < 50000 and f"ends after step {step}, as a callback asks" in said
    events = lines(here / "e.jsonl")
    kinds = [e["event"] for e in events if e["event"] != "step"]
    assert (kinds[0], sorted(kinds[1:3]), kinds[3:]) == ("start", ["checkpoint", "evaluation"], ["end"])
    assert events[-1] == {"event": "end", "step": step, "why": "stopped"}
    assert (here / "w.st").exists()
    # What goes on from there is the run that nobody stopped.
    train(here, "long.shard", "--metrics", "m.jsonl", "--resume", "--set", f"train.steps={step + 20}")
    (here / "kept").rename(here / "before")
    train(here, "long.shard", "--metrics", "whole.jsonl", "--set", f"train.steps={step + 20}")
    one, other = ([x["loss"] for x in lines(here / name) if "loss" in x] for name in ("m.jsonl", "whole.jsonl"))
    assert one == other and len(one) == step + 20


def test_a_callback_asks_for_a_checkpoint_and_an_evaluation(here: Path) -> None:
    train(here, "long.shard", "--log", "python:watch.py:Asks", "--log", "jsonl:e.jsonl", "--metrics", "m.jsonl")
    events = [e for e in lines(here / "e.jsonl") if e["event"] != "step"]
    first, judged = events[1], next(e for e in events if e["event"] == "evaluation")
    assert first["event"] == "checkpoint" and (here / first["folder"]).is_dir() and "eval.loss" in judged
    assert first["step"] <= judged["step"] <= events[-1]["step"]
    assert next(x["step"] for x in lines(here / "m.jsonl") if "eval.loss" in x) == judged["step"]
    # That evaluation is not the best so far for who goes on from the last checkpoint, which is made before its own.
    kept = [here / e["folder"] for e in events if e["event"] == "checkpoint"]
    last = json.loads((kept[-1] / "index.json").read_text().splitlines()[0])
    assert last["step"] == events[-1]["step"] and last["best"]["value"] is None


def test_what_the_program_lacks_is_said(here: Path) -> None:
    (here / "long.shard").write_text("\n".join(x for x in LONG.splitlines() if "eval" not in x).replace(
        '  checkpoint = every(50000, to = "kept")', ""))  # fmt: skip
    asks = WATCH.replace('self.kept == 1 and event["event"] == "checkpoint"', "self.seen == 50")
    asks = asks.replace('self.judged == 1 and event["event"] == "evaluation"', "self.seen == 500")
    (here / "watch.py").write_text(asks)
    said = train(here, "long.shard", "--log", "python:watch.py:Asks")
    assert "asks for `checkpoint`, which the program does not set" in said and "asks for `evaluate`, which" in said
    assert "as a callback asks" in said


def test_files_of_tensorboard_are_read_back(here: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")
    train(here, "net.shard", "--log", "tensorboard:runs", "--metrics", "m.jsonl")
    found = events.EventAccumulator(str(here / "runs")).Reload()
    losses = [(e.step, e.value) for e in found.Scalars("loss")]
    assert losses == [(line["step"], pytest.approx(line["loss"])) for line in lines(here / "m.jsonl")]
    assert "settings/text_summary" in found.Tags()["tensors"] and "end/text_summary" in found.Tags()["tensors"]
    text = found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| strategy | dp |" in text and "| mesh.dp | 2 |" in text


def offline(here: Path, target: str, **more: str) -> str:
    """A run with a target in a process whose environment lets no service be called."""
    words = [*SHARDC, "run", "net.shard", "--ranks", "2", "--device", "cpu", "--log-dir", "logs", "--log", target]
    done = warm.run([*words, "--metrics", "m.jsonl"], cwd=here, env={**os.environ, "WANDB_MODE": "offline", **more})
    assert (done.returncode, done.stderr) == (0, "") and "is dropped" not in done.stdout
    return done.stdout


def test_a_run_of_mlflow_is_read_back(here: Path) -> None:
    pytest.importorskip("mlflow", reason="no mlflow")
    offline(here, f"mlflow:file:{here}/tracked", MLFLOW_ALLOW_FILE_STORE="true")
    (run,) = [path.parent for path in (here / "tracked").glob("*/*/params")]
    assert (run / "params" / "strategy").read_text() == "dp" and (run / "params" / "ranks").read_text() == "2"
    values = [line.split()[1:] for line in (run / "metrics" / "loss").read_text().splitlines()]
    assert [(int(step), float(value)) for value, step in values] == [
        (line["step"], pytest.approx(line["loss"])) for line in lines(here / "m.jsonl")
    ]
    assert (run / "tags" / "end").read_text() == "finished"


def test_a_run_of_wandb_is_written_offline(here: Path) -> None:
    pytest.importorskip("wandb", reason="no wandb")
    offline(here, "wandb:trial")
    (file,) = (here / "wandb").glob("offline-run-*/run-*.wandb")
    written = file.read_bytes()
    assert b"trial" in written and b"loss" in written and b"finished" in written


@pytest.mark.parametrize(
    ("target", "code", "told"),
    [
        ("csv:x", 2, "is none of tensorboard:DIR"), ("python:none.py:f", 3, "names a file that is not there"),
        ("python:watch.py:none", 3, "error[SH619]: the file has no function `none`"),
        ("python:broken.py:f", 3, "error[SH619]: the file cannot be loaded: NameError"),
        ("jsonl:watch.py", 3, "error[SH512]: events would replace a file that holds something else"),
        ("jsonl:none/e.jsonl", 3, "there is no folder `none`"),
    ],
)  # fmt: skip
def test_a_target_that_cannot_be_is_told_before_the_run(here: Path, target: str, code: int, told: str) -> None:
    (here / "broken.py").write_text("x = y\n")
    done = shardc("run", "net.shard", "--ranks", "2", "--log-dir", "logs", "--log", target, folder=here)
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert "step" not in done.stdout


def test_a_program_under_torchrun_tells_the_same(here: Path) -> None:
    assert shardc("compile", "net.shard", "--ranks", "2", "-o", "out", folder=here).returncode == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "out/main.py", "--base", "."]
    words = ["--events", "jsonl:e.jsonl", "--events", "python:watch.py:raises"]
    done = warm.run([*launcher, *words, "--device", "cpu"], cwd=here)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is dropped, and the run goes on: KeyError") == 1
    events = lines(here / "e.jsonl")
    assert [e["event"] for e in events] == ["start", *["step"] * 6, "end"]
