"""Tries many inputs and reports what did not end in diagnostics, was too slow or too large.

python -m tests.fuzz --count 200000 --seed 0 --save /tmp/failures
python -m tests.fuzz --kind mutated --seed 0 --index 1234        # one input again: its text and what did not hold
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests.fuzz.case import Case
from tests.fuzz.found import FOUND
from tests.fuzz.kinds import KINDS, counts, made
from tests.fuzz.mutate import ROOT, sound
from tests.fuzz.pool import SHIFT, Outcome, measured, outcomes
from tests.fuzz.shrink import shrunk
from tests.fuzz.trial import Fault, told


@dataclass
class Tally:
    """What a run found."""

    seed: int
    further: str
    save: Path | None
    tried: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest: Outcome = field(default_factory=lambda: Outcome(0))
    largest: Outcome = field(default_factory=lambda: Outcome(0))
    places: dict[int, str] = field(default_factory=dict)

    def take(self, kind: str, outcome: Outcome) -> None:
        self.tried[kind] += 1
        self.seconds[kind] += outcome.seconds  # type: ignore[assignment]
        self.places[id(outcome)] = f"{kind} {outcome.index}"
        self.slowest = max(self.slowest, outcome, key=lambda o: o.seconds)
        self.largest = max(self.largest, outcome, key=lambda o: o.megabytes)
        for fault in outcome.faults:
            self.faults[fault.sort, fault.where] += 1
            if self.faults[fault.sort, fault.where] == 1:
                self.note(kind, outcome.index, fault)

    def note(self, kind: str, index: int, fault: Fault) -> None:
        """Prints the first fault of its sort and place, and saves its input, shrunk."""
        print(f"{fault.sort}: {fault.where}  (--kind {kind} --seed {self.seed} --index {index})", flush=True)
        if self.save is None:
            return
        case = shrunk(made(kind, self.seed, index, self.further), fault)
        self.save.mkdir(parents=True, exist_ok=True)
        stem = self.save / f"{fault.sort}-{kind}-{self.seed}-{index}"
        stem.with_suffix(".shard").write_bytes(case.text)
        stem.with_suffix(".txt").write_text(
            f"{described(case)}\n{fault.where}\n{fault.text}\n", "utf-8", "backslashreplace"
        )

    def told(self) -> int:
        """Prints the figures; the number of faults."""
        for kind, many in self.tried.items():
            print(f"{kind:>12} {many:>8} inputs {self.seconds[kind]:>9.1f} s")
        print(f"{'all':>12} {sum(self.tried.values()):>8} inputs {sum(self.seconds.values()):>9.1f} s")
        by_sort: Counter[str] = Counter()
        for (sort, _), many in self.faults.items():
            by_sort[sort] += many
        print("faults: " + (", ".join(f"{many} {sort}" for sort, many in by_sort.items()) or "none"))
        for (sort, where), many in self.faults.most_common():
            print(f"  {many:>6} {sort}: {where}")
        print(f"slowest: {self.slowest.seconds:.2f} s ({self.places.get(id(self.slowest), '-')})")
        print(f"largest: {self.largest.megabytes:.0f} MB ({self.places.get(id(self.largest), '-')})", flush=True)
        return sum(self.faults.values())


def described(case: Case) -> str:
    options = {"ranks": case.ranks, "strategy": case.strategy, "overrides": dict(case.overrides), "argv": case.argv}
    return repr({k: v for k, v in options.items() if v} | ({"files": dict(case.files)} if case.files else {}))[:4_000]


def warmed() -> None:
    """The compiler is imported, and has run once, before the clock runs."""
    for text in sound()[:3]:
        sink = Sink()
        program = driver.check_source(Source("main.shard", text), sink)
        plan = driver.check_strategies(program, None, 8, sink) if program is not None else None
        if plan is not None:
            driver.emit_plan(plan, sink)
            import shardlang.folds.report  # noqa: F401
        driver.format_source(Source("main.shard", text), sink)
    sink.report("SH101", "x", None)
    told(sink.found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS))
    parser.add_argument("--index", type=int)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--found", action="store_true", help="what was found before: name -> faults, as JSON")
    parser.add_argument("--programs", default="", help="a folder of further programs to mutate")
    given = parser.parse_args()
    os.chdir(ROOT)
    warmed()
    if given.found:
        return _found()
    if given.index is not None:
        return _again(made(given.kind, given.seed, given.index, given.programs))
    tally = Tally(given.seed, given.programs, given.save)
    wanted = {given.kind: given.count} if given.kind else counts(given.count)
    for kind, many in wanted.items():
        make, shift = partial(made, kind, given.seed), 1 if kind == "large" else SHIFT
        for outcome in outcomes(lambda i, make=make: make(i, given.programs), range(many), shift):  # type: ignore[misc]
            tally.take(kind, outcome)
    return 1 if tally.told() else 0


def _found() -> int:
    """Each input of found.py in a worker of its own."""
    faults = {name: next(iter(outcomes(lambda i, case=case: case, [0]))).faults for name, (case, _) in FOUND.items()}  # type: ignore[misc]
    print(json.dumps({name: [[f.sort, f.where, f.text] for f in found] for name, found in faults.items()}))
    return 0


def _again(case: Case) -> int:
    """One input in this process."""
    sys.stdout.buffer.write(case.text + b"\n")
    print(described(case))
    outcome = measured(case)
    for fault in outcome.faults:
        print(f"{fault.sort}: {fault.where}\n{fault.text}")
    print(f"{outcome.seconds:.2f} s, {outcome.megabytes:.0f} MB")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    sys.exit(main())
