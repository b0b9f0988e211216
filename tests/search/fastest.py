"""`python -m tests.search.fastest [--only NAME,...] [--ranks N,...]`: on the examples, the strategies that
`shardc tune` finds are never predicted slower than a strategy of the file that fits.

Each search mode but `sharding_propagation`, which takes one of these strategies, starts from nothing; the times are
those that `shardc plan` predicts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.search.request import DYNAMIC, EXACT, RECURSIVE
from shardlang.sources.source import Source
from tests.end_to_end.curves import ROOT

RANKS: Mapping[str, Sequence[int]] = {"llama": (64, 512)}
CLUSTER = "std.clusters.h100_pod"


def of(file: Path) -> CheckedProgram:
    sink = Sink()
    program = driver.check_source(Source(str(file), file.read_text()), sink)
    program = driver.with_cluster(program, CLUSTER, sink) if program is not None else None
    assert program is not None, sink.found
    return program


def written(program: CheckedProgram, ranks: int) -> dict[str, float]:
    """The strategies of the file that fit on so many ranks, with the seconds of a step."""
    found = {}
    for strategy in program.strategies:
        plan = driver.plan_program(program, strategy.name.text, ranks, Sink())
        step = driver.predict_plan(plan, Sink()) if plan is not None else None
        if step is not None:
            found[strategy.name.text] = step.step_s
    return found


def lines(file: Path, ranks: int) -> Iterator[tuple[str, bool]]:
    """The seconds of a mode's best beside those of the file's fastest, and whether they are no more."""
    program = of(file)
    times = written(program, ranks)
    for mode in (EXACT, DYNAMIC, RECURSIVE):
        sink = Sink()
        answer = driver.tune_program(program, driver.TuneRequest(ranks, None, mode), sink)
        name, least = min(times.items(), key=lambda each: each[1], default=("none", float("inf")))
        if answer is None:
            yield f"{file.stem} on {ranks}, {mode}: {sink.found[0].message}", not times
            continue
        best = answer.rows[0].prediction.step_s
        text = f"{best * 1e3:.4g} ms, {least * 1e3:.4g} ms is {name}, gap {answer.gap:.1%}"
        yield f"{file.stem} on {ranks}, {mode}: {text}", best <= least * (1 + 1e-12)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--ranks", default="")
    asked, wrong = parser.parse_args(), 0
    for file in sorted((ROOT / "examples").glob("*.shard")):
        counts = [int(n) for n in asked.ranks.split(",") if n] or RANKS.get(file.stem, (2, 4, 8))
        for ranks in counts if not asked.only or file.stem in asked.only.split(",") else ():
            for text, right in lines(file, ranks):
                wrong += not right
                print(f"{text}{'' if right else ': SLOWER'}", flush=True)
    print(f"{wrong} are slower than a strategy of the file")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
