"""The text of a generated pair by the roads that the command takes: compiled, run on simulated ranks, verified."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Mapping
from pathlib import Path

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.interpret.ranks.simulate import simulate
from shardlang.interpret.verify.batches import own
from shardlang.interpret.verify.judge import StartedJob, VerifyJob, judge
from shardlang.plan.plan import Plan
from shardlang.runtime.launch.launcher import read_program
from shardlang.sources.source import Source
from tests.generated.worlds import trial

_STRATEGY = re.compile(r"^strategy \w+ \{\n.*?^\}\n", re.DOTALL | re.MULTILINE)
STEPS = 2


class Failed(Exception):
    """A program that real ranks could not run."""


class NotPlanned(Failed):
    """A pair that is refused on so many ranks."""


def alone(text: str) -> str:
    """The program without its strategies."""
    return _STRATEGY.sub("", text)


def planned(text: str, ranks: int) -> Plan:
    sink = Sink()
    program = driver.check_source(Source("generated.shard", text), sink)
    plan = driver.plan_program(program, None, ranks, sink) if program is not None else None
    if plan is None:
        raise NotPlanned(f"nothing is planned for {ranks} ranks: {[d.message for d in sink.found]}")
    return plan


def emitted(plan: Plan) -> Mapping[str, str]:
    """The files of a plan, as `shardc compile` writes them."""
    sink = Sink()
    files = driver.emit_plan(plan, sink)
    if files is None:
        raise Failed(f"nothing is emitted for {plan.ranks} ranks: {[d.message for d in sink.found]}")
    return files


def without_eval(text: str, ranks: int) -> str:
    """The text as it is, or without its `eval`: some losses and metrics cannot be accumulated yet."""
    if "eval = " in text:
        try:
            emitted(planned(text, ranks))
        except Failed as failure:
            if "cannot accumulate" in str(failure):
                return re.sub(r"\n  eval = .*", "", text)
    return text


def written(files: Mapping[str, str], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder / "main.py"


def simulated(text: str, ranks: int, folder: Path) -> Path:
    """`shardc run --simulate`: the folder with its figures and weights."""
    main = written(emitted(planned(alone(text), 1)), folder)
    plan = planned(text, ranks)
    whole = written(emitted(plan), folder / "ranks")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = simulate(plan, main, whole, folder, folder / "metrics.jsonl", folder / "weights.safetensors")
    if code:
        raise Failed(f"--simulate on {ranks} ranks ended with {code}: {said.getvalue()}")
    return folder


def watched(plan: Plan, main: Path) -> str:
    """`shardc verify`, once its real ranks have run: what differs, or ""."""
    program = read_program(main)
    program.base = main.parent
    job = VerifyJob(plan, main.parent, main.parent, "f64", STEPS)
    started = StartedJob(job, own(program, plan.graph), trial(main, STEPS))
    verdict = judge(started)
    return f"{verdict.culprit}: {verdict.difference}" if verdict.difference is not None else ""
