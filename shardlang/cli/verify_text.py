"""Verdicts of `shardc verify` in words, and as JSON. specs/verify.md explains them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from shardlang.cli import output
from shardlang.diagnostics.diagnostic import Sink
from shardlang.path_runs import patterns
from shardlang.plan.bytes.block_report import same_layers
from shardlang.records import dataclass

if TYPE_CHECKING:
    from shardlang.interpret.verify.compare import Difference, Report
    from shardlang.interpret.verify.judge import Job, Verdict

# Each is a process with a torch of its own: more than these tell nothing new, and a laptop may not
# hold them.
REAL_RANKS = 8


@dataclass(frozen=True)
class Wanted:
    """The options of the command line. real: None where the number of ranks decides."""

    file: str
    ranks: int
    steps: int
    dtype: str
    real: bool | None
    random: bool

    @property
    def on_real_ranks(self) -> bool:
        return self.ranks <= REAL_RANKS if self.real is None else self.real


@dataclass(frozen=True)
class Check:
    """One strategy: its verdict, or why there is none."""

    strategy: str
    job: Job | None = None
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


def tell(check: Check, wanted: Wanted, sink: Sink) -> None:
    """Prints that all agree, or reports what does not."""
    verdict, job = check.verdict, check.job
    if verdict is None or job is None:
        output.tell(f"{_name(check, wanted)}: not on {_ranks(wanted.ranks)}: {check.skipped}")
        return
    if verdict.ok:
        output.tell(f"{_name(check, wanted)}: {_ranks(wanted.ranks)} compute what one device does")
        output.tell(f"  {_steps(verdict.simulated.steps)} in {_TYPES[wanted.dtype]} on {_data(verdict)}")
        for line in _sides(verdict, wanted):
            output.tell(f"  {line}")
        return
    _report(check, verdict, wanted, sink)


def _name(check: Check, wanted: Wanted) -> str:
    return f"{wanted.file}, strategy {check.strategy}" if check.strategy else wanted.file


def _ranks(count: int) -> str:
    return f"{count} rank{'s' * (count != 1)}"


def _steps(count: int) -> str:
    return f"{count} step{'s' * (count != 1)}"


def _data(verdict: Verdict) -> str:
    if not verdict.drawn:
        return "the program's data"
    why = "" if verdict.drawn.startswith("--") else f" ({verdict.drawn})"
    return f"random data{why}"


def _sides(verdict: Verdict, wanted: Wanted) -> list[str]:
    """Lines on what was compared of each, and what was not."""
    lines = []
    if verdict.emitted is not None:
        lines.append(f"emitted program on {wanted.ranks} real ranks: {_counts(verdict.emitted)}")
    else:
        lines.append("emitted program: not run, as that needs as many processes (--real runs it)")
    lines.append(f"plan on {wanted.ranks} simulated ranks: {_counts(verdict.simulated)}")
    if _undecided(verdict):
        lines.append(f"not compared, as rounding decides them: {', '.join(patterns(_undecided(verdict)))}")
    return lines


def _counts(report: Report) -> str:
    return (
        f"{report.values} values, {report.gradients} gradients, {report.parameters} parameters; "
        f"largest relative error {report.largest:.1e}"
    )


def _undecided(verdict: Verdict) -> tuple[str, ...]:
    found = (*verdict.simulated.undecided, *(verdict.emitted.undecided if verdict.emitted is not None else ()))
    return tuple(dict.fromkeys(found))


def _report(check: Check, verdict: Verdict, wanted: Wanted, sink: Sink) -> None:
    """The first difference, where it is and whose fault; or that a rank failed, all else right."""
    assert check.job is not None
    first = verdict.difference
    emitted = f"the emitted program is {check.job.folder / 'main.py'}{_named(check.job, first)}"
    if first is None:
        said = "the emitted program failed, as is said above; what it computed before is right"
        output.tell(f"{_name(check, wanted)}: {said}")
        output.tell(f"  {emitted}")
        return
    span = check.job.plan.graph.values[first.form[0]].span
    notes = [
        f"{check.strategy or 'no strategy'}, {first.when}, {_where(first)}",
        *_others(verdict, first, wanted),
        _BLAME[verdict.culprit] if verdict.emitted is not None else "the emitted program was not run",
        emitted,
    ]
    same = same_layers(check.job.plan, first.path)
    notes[1:1] = [f"{', '.join(same)} are the same: what is wrong in one layer is wrong in all"] if same else []
    sink.report(
        "SH510", f"{_CULPRITS[verdict.culprit]}: {first.what}", span, first.path, notes=tuple(notes),
        help="this is a fault of shardc, not of your program: please report it with the program and this command",
    )  # fmt: skip


def _named(job: Job, found: Difference | None) -> str:
    """The name of the value in the emitted program."""
    if found is None or found.kind not in ("value", "gradient", "step"):
        return ""
    from shardlang.interpret.verify.emitted import homes

    home = homes(job.plan).get(found.form)
    if home is None:
        return ""
    return f", where it is `{home.name}`" if home.file == "main.py" else f", where it is `{home.name}` of {home.file}"


def _where(found: Difference) -> str:
    rank = f"rank {found.rank}, microbatch {found.microbatch}" if found.microbatch else f"rank {found.rank}"
    if found.message:
        return f"{'cannot be computed' if found.kind == 'step' else rank}: {found.message}"
    summed = f", summed over {', '.join(found.summed)}" if found.summed else ""
    at = f" at {list(found.index)}" if found.index else ""
    return f"{rank}{summed}{at}: {found.found!r}, and {found.expected!r} on one device"


def _others(verdict: Verdict, first: Difference, wanted: Wanted) -> list[str]:
    """How the two stand that are not the first difference's own."""
    lines = []
    for who, report in (("the emitted program", verdict.emitted), ("the plan, on simulated ranks,", verdict.simulated)):
        if report is None:
            continue
        found = report.difference
        if found is None:
            lines.append(f"{who} agrees with one device")
        elif (found.kind, found.path, found.layout) != (first.kind, first.path, first.layout):
            lines.append(f"{who} differs first in {found.what}, {_where(found)}")
        else:
            lines.append(f"{who} has {_number(found.found)} there")
    if verdict.failed:
        lines.append("the emitted program failed after that")
    return lines


def _number(x: float) -> str:
    return "another shape" if math.isnan(x) else repr(x)


def as_json(checks: list[Check], wanted: Wanted) -> dict[str, Any]:
    """All verdicts; see specs/verify.md for the names."""
    return {
        "file": wanted.file,
        "ok": all(c.verdict is None or c.verdict.ok for c in checks),
        "checks": [_check_json(check, wanted) for check in checks],
    }


def _check_json(check: Check, wanted: Wanted) -> dict[str, Any]:
    head = {"strategy": check.strategy, "ranks": wanted.ranks, "dtype": wanted.dtype}
    verdict = check.verdict
    if verdict is None:
        return {**head, "skipped": check.skipped}
    return {
        **head,
        "ok": verdict.ok,
        "data": "random" if verdict.drawn else "own",
        "emitted": _report_json(verdict.emitted),
        "simulated": _report_json(verdict.simulated),
        "failed": verdict.failed,
        "differs": verdict.culprit,
        "difference": _difference_json(verdict.difference),
        "not_compared": list(_undecided(verdict)),
    }


def _report_json(report: Report | None) -> dict[str, Any] | None:
    if report is None:
        return None
    return {
        "ok": report.ok,
        "steps": report.steps,
        "values": report.values,
        "gradients": report.gradients,
        "parameters": report.parameters,
        "largest_error": report.largest if math.isfinite(report.largest) else None,
        "difference": _difference_json(report.difference),
    }


def _difference_json(found: Difference | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "kind": found.kind, "path": found.path, "layout": found.layout, "place": found.place, "step": found.step,
        "rank": found.rank, "microbatch": found.microbatch, "index": list(found.index), "summed": list(found.summed),
        "found": _finite(found.found), "expected": _finite(found.expected), "message": found.message,
    }  # fmt: skip


def _finite(x: float) -> float | str:
    """JSON has no infinities and no NaN."""
    return x if math.isfinite(x) else str(x)
