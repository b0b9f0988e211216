"""`python -m tests.mutants [--only NAME ...] [--list]`: makes each fault in a copy of the tree and runs its tests.

Prints what caught it, and ends with 1 where a fault survives or is broken: a test that caught one must pass without it.
NAME is a part of a fault's name or file, or the module of tests/mutants/ that it is in. The test that caught a fault
the last time is run first; `caught.json` has them, and `--keep` writes it anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.fault import ROOT, Fault
from tests.mutants.faults import FAULTS, MODULES
from tests.mutants.trial import Copy, Outcome, attempt, confirmed

CAUGHT = Path(__file__).with_name("caught.json")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="faults whose name or file holds NAME")
    parser.add_argument("--list", action="store_true", help="name the faults and their tests, and run nothing")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write what caught each, as Markdown")
    parser.add_argument("--own", action="store_true", help="do not go on to the whole suite where a fault's tests pass")
    parser.add_argument("--keep", action="store_true", help="write the tests that caught faults to caught.json")
    return parser.parse_args()


def chosen(only: Sequence[str]) -> list[Fault]:
    named = [f for name, faults in MODULES.items() if name in only for f in faults]
    return [f for f in FAULTS if not only or f in named or any(part in f.name or part in f.file for part in only)]


def known() -> dict[str, str]:
    """The test that caught each fault the last time, by the fault's name."""
    found: dict[str, str] = json.loads(CAUGHT.read_text("utf-8"))
    return found


def keep(outcomes: Sequence[Outcome]) -> None:
    """Writes what caught faults; what is known of those that were not tried stays."""
    caught = known() | {o.fault.name: o.by for o in outcomes if o.verdict == "caught"}
    kept = {f.name: caught[f.name] for f in FAULTS if f.name in caught}
    CAUGHT.write_text(json.dumps(kept, indent=0, ensure_ascii=False) + "\n", "utf-8")


def main() -> int:
    options = _arguments()
    faults, last = chosen(options.only), known()
    if options.list or not faults:
        for fault in faults:
            print(f"{fault.file}: {fault.name} ({fault.breaks}): {', '.join(fault.tests)}")
        return 0 if faults else 2
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy.of(ROOT, Path(folder))
        tried = [_shown(attempt(copy, fault, last.get(fault.name, ""), not options.own)) for fault in faults]
        outcomes = confirmed(copy, tried)
    for outcome in outcomes:
        if outcome not in tried:
            _shown(outcome)
    if options.keep:
        keep(outcomes)
    if options.table is not None:
        options.table.write_text(table(outcomes), "utf-8")
    return _summed(outcomes)


def _shown(outcome: Outcome) -> Outcome:
    by = f" by {outcome.by}" if outcome.by else ""
    why = f": {outcome.reason[:160]}" if outcome.verdict != "survived" else ""
    print(f"{outcome.verdict:8} {outcome.seconds:5.0f} s  {outcome.fault.name}{by}{why}", flush=True)
    return outcome


def _summed(outcomes: Sequence[Outcome]) -> int:
    counts = {v: sum(o.verdict == v for o in outcomes) for v in ("caught", "survived", "broken")}
    print(f"{len(outcomes)} faults: " + ", ".join(f"{n} {v}" for v, n in counts.items()))
    return 0 if counts["caught"] == len(outcomes) else 1


def table(outcomes: Sequence[Outcome]) -> str:
    """A row a fault."""
    rows = [f"| {o.fault.name} | {o.fault.breaks} | {o.by or o.verdict} | {o.seconds:.0f} |" for o in outcomes]
    return "\n".join(["| fault | what it breaks | caught by | seconds |", "|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.exit(main())
