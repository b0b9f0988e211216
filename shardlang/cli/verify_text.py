"""Verdicts of `shardc verify` in words, and as JSON. specs/verify.md explains them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardlang.cli import output
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.block_report import same_layers
from shardlang.frozen.records import dataclass
from shardlang.paths.runs import patterns

if TYPE_CHECKING:
    from shardlang.interpret.verify.compare import Comparison, ValueDifference
    from shardlang.interpret.verify.judge import Verdict, VerifyJob


@dataclass(frozen=True)
class VerifyRequest:
    """The options of the command line. real: run the emitted program too."""

    file: str
    ranks: int
    steps: int
    dtype: str
    real: bool
    random: bool


@dataclass(frozen=True)
class Check:
    """One strategy: its verdict, or why there is none."""

    strategy: str
    job: VerifyJob | None = None
    verdict: Verdict | None = None
    skipped: str = ""


_TYPES = {"f64": "float64", "f32": "float32"}
_CULPRITS = {
    "emitted": "the emitted program does not compute what one device does",
    "plan": "the plan, on simulated ranks, does not compute what one device does",
    "both": "neither the plan nor the emitted program computes what one device does",
}
_BLAME = {
    "emitted": "the fault is in what was emitted from the plan, or in the runtime",
    "plan": "the fault is in a part of the plan that the emitter does not read, or in the simulation",
    "both": "the fault is in the plan, which both follow",
}


def tell(check: Check, wanted: VerifyRequest, sink: Sink) -> None:
    """Prints that all agree, or reports what does not."""
    verdict, job = check.verdict, check.job
    name = f"{wanted.file}, strategy {check.strategy}" if check.strategy else wanted.file
    ranks = f"{wanted.ranks} rank{'s' * (wanted.ranks != 1)}"
    if verdict is None or job is None:
        output.tell(f"{name}: not on {ranks}: {check.skipped}")
    elif verdict.ok:
        output.tell(f"{name}: {ranks} compute what one device does")
        for line in _compared(verdict, wanted):
            output.tell(f"  {line}")
    elif verdict.difference is None:
        output.tell(f"{name}: the emitted program failed, as is said above; what it computed before is right")
        output.tell(f"  the emitted program is {job.folder / 'main.py'}")
    else:
        _report(check, job, verdict, verdict.difference, sink)


def _compared(verdict: Verdict, wanted: VerifyRequest) -> Iterator[str]:
    """Lines on what was compared of each, and what was not."""
    why = "" if verdict.drawn.startswith("--") else f" ({verdict.drawn})"
    steps, data = verdict.simulated.step, f"random data{why}" if verdict.drawn else "the program's data"
    yield f"{steps} step{'s' * (steps != 1)} in {_TYPES[wanted.dtype]} on {data}"
    if verdict.emitted is not None:
        yield f"emitted program on {wanted.ranks} real ranks: {_counts(verdict.emitted)}"
    else:
        yield "emitted program: not run, as that needs as many processes (--real runs it)"
    yield f"plan on {wanted.ranks} simulated ranks: {_counts(verdict.simulated)}"
    if _undecided(verdict):
        yield f"not compared, as rounding decides them: {', '.join(patterns(_undecided(verdict)))}"


def _counts(report: Comparison) -> str:
    return (
        f"{report.values} values, {report.gradients} gradients, {report.parameters} parameters; "
        f"largest relative error {report.largest:.1e}"
    )


def _undecided(verdict: Verdict) -> tuple[str, ...]:
    found = (*verdict.simulated.undecided, *(verdict.emitted.undecided if verdict.emitted is not None else ()))
    return tuple(dict.fromkeys(found))


def _report(check: Check, job: VerifyJob, verdict: Verdict, first: ValueDifference, sink: Sink) -> None:
    """The first difference, where it is, and who is to blame."""
    span, same = job.plan.graph.values[first.form[0]].span, same_layers(job.plan, first.path)
    notes = [
        f"{check.strategy or 'no strategy'}, {first.when}, {first.where}",
        *([f"{', '.join(same)} are the same: what is wrong in one layer is wrong in all"] if same else []),
        *_others(verdict, first),
        _BLAME[verdict.culprit] if verdict.emitted is not None else "the emitted program was not run",
        f"the emitted program is {job.folder / 'main.py'}{_named(job, first)}",
    ]
    sink.report(
        "SH510", f"{_CULPRITS[verdict.culprit]}: {first.what}", span, first.path, notes=tuple(notes),
        help="this is a fault of shardc, not of your program: please report it with the program and this command",
    )  # fmt: skip


def _named(job: VerifyJob, found: ValueDifference) -> str:
    """The name of the value in the emitted program."""
    if found.kind not in ("value", "gradient", "step"):
        return ""
    from shardlang.interpret.verify.emitted import homes

    home = homes(job.plan).get(found.form)
    if home is None:
        return ""
    return f", where it is `{home.name}`" if home.file == "main.py" else f", where it is `{home.name}` of {home.file}"


def _others(verdict: Verdict, first: ValueDifference) -> Iterator[str]:
    """How the two stand that are not the first difference's own."""
    for who, report in (("the emitted program", verdict.emitted), ("the plan, on simulated ranks,", verdict.simulated)):
        if report is None:
            continue
        found = report.difference
        if found is None:
            yield f"{who} agrees with one device"
        elif (found.kind, found.path, found.layout) != (first.kind, first.path, first.layout):
            yield f"{who} differs first in {found.what}, {found.where}"
        else:
            yield f"{who} has {'another shape' if math.isnan(found.found) else repr(found.found)} there"
    if verdict.failed:
        yield "the emitted program failed after that"


def as_json(checks: list[Check], wanted: VerifyRequest) -> dict[str, Any]:
    """All verdicts; see specs/verify.md for the names."""
    return {
        "file": wanted.file,
        "ok": all(c.verdict is None or c.verdict.ok for c in checks),
        "checks": [_check_json(check, wanted) for check in checks],
    }


def _check_json(check: Check, wanted: VerifyRequest) -> dict[str, Any]:
    head = {"strategy": check.strategy, "ranks": wanted.ranks, "dtype": wanted.dtype}
    verdict = check.verdict
    if verdict is None:
        return {**head, "skipped": check.skipped}
    return {
        **head, "ok": verdict.ok, "data": "random" if verdict.drawn else "own",
        "emitted": _report_json(verdict.emitted) if verdict.emitted is not None else None,
        "simulated": _report_json(verdict.simulated), "failed": verdict.failed, "differs": verdict.culprit,
        "difference": _difference_json(verdict.difference), "not_compared": list(_undecided(verdict)),
    }  # fmt: skip


def _report_json(report: Comparison) -> dict[str, Any]:
    counts = {name: getattr(report, name) for name in ("ok", "values", "gradients", "parameters")}
    largest = report.largest if math.isfinite(report.largest) else None
    found = _difference_json(report.difference)
    return {**counts, "steps": report.step, "largest_error": largest, "difference": found}


_SHOWN = (
    "kind", "path", "layout", "place", "step", "rank", "microbatch", "index", "summed", "found", "expected", "message",
)  # fmt: skip


def _difference_json(found: ValueDifference | None) -> dict[str, Any] | None:
    return None if found is None else {name: _finite(getattr(found, name)) for name in _SHOWN}


def _finite(x: Any) -> Any:
    """The value as JSON has it: there are no infinities and no NaN."""
    return str(x) if isinstance(x, float) and not math.isfinite(x) else list(x) if isinstance(x, tuple) else x
