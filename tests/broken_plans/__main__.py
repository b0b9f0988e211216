"""`python -m tests.broken_plans --count 500`: faults of communication, each in a plan or in its text, are all found by
the proof, with both lines named; and as many legal plans of random strategies pass it. With `--run` these also train on
real ranks, else every 25th of them.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.emit.emit import emission, files_of
from shardlang.matched.proof import prove
from tests.broken_plans.faults import Fault, faults
from tests.generated.pairs import legal


def told(fault: Fault) -> str:
    """Why the proof has not found a fault as it should; "" where it has."""
    sink = Sink()
    prove(fault.emission, fault.files, sink)
    first = next((d for d in sink.found if d.code.startswith("SH46")), None)
    if first is None:
        return "not found"
    return "" if both_named(first) else f"both lines are not named: {first}"


def both_named(found: Diagnostic) -> bool:
    """Whether a line of the program and one of the emitted text are named."""
    spans = [label.span for label in (found.primary, *found.labels) if label is not None]
    names = {span.source.name for span in spans}
    return any(name.endswith(".py") for name in names) and len(names) > 1


def main(arguments: Sequence[str]) -> int:
    """0 where all faults are found and no legal plan is refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.broken_plans", description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", action="store_true")
    options = parser.parse_args(arguments)
    seed, caught, passed, ran, wrong = options.seed, 0, 0, 0, 0
    while min(caught, passed) < options.count:
        plan, seed = legal(seed), seed + 1
        if plan is None:
            continue
        made, sink = emission(plan), Sink()
        files = files_of(made)
        prove(made, files, sink)
        passed += 1
        if sink.found:
            wrong += 1
            print(f"seed {seed - 1} is refused: {sink.found[0].message}", flush=True)
        for fault in faults(made, files, random.Random(seed)) if caught < options.count else ():
            caught += 1
            if why := told(fault):
                wrong += 1
                print(f"seed {seed - 1}: {fault.said}: {why}", flush=True)
        if options.run or passed % 25 == 0:
            ran += 1
            wrong += _runs(seed - 1)
    print(f"{caught} faults, {passed} legal plans, {ran} of them run; {wrong} wrong")
    return 1 if wrong else 0


def _runs(seed: int) -> int:
    """1 where a legal plan does not train to its end on real ranks."""
    from tests.generated.real import RANKS, Real

    with TemporaryDirectory(prefix="broken-plans-") as folder, closing(Real(Path(folder))) as real:
        outcome = real.case(seed) if legal(seed, RANKS[seed % len(RANKS)]) is not None else None
    if outcome is not None and outcome.failed:
        print(f"seed {seed} does not run: {outcome.kind} {outcome.detail}", flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
