"""Claim: keeping the last collectives on record takes at most 1 % of a step of quickstart.

One run on 8 ranks, whose steps are on record or are not by turns of a few, drawn by lot and alike on all ranks: nothing
else differs, and what slows the machine slows both. The records are files, as those of `shardc run` are.

    python benchmarks/record.py [steps]
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from emitted import planned, training
from ranks import forked
from timing import verdict

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.record import BYTES, record
from shardlang.runtime.launch.launcher import read_program
from shardlang.runtime.step.train import datasets

EXAMPLE = Path(__file__).parent.parent / "examples" / "quickstart.shard"
RANKS, BATCHES, WARMUP = 8, 4, 200
# Steps of a turn: a sum that one has begun may be waited for in the next.
TURN = 5
# A ratio is of so many steps, of which the slowest tenth of each side are left out.
PART = 1000


class Bare:
    """In the place of `Work`: torch's own work, and nothing is written."""

    def __call__(self, *_: Any) -> Bare:
        return self

    def of(self, work: Any) -> Any:
        return work


class Turns:
    """Has this rank's steps on record or not. taken: of each step after the first ones, whether it was, and its seconds
    of the clock and of the processor.
    """

    def __init__(self) -> None:
        bare: dict[str, Any] = {
            "LoggedWork": Bare(),
            "about": lambda _: contextlib.nullcontext(),
            "here": lambda _=1: b"",
        }
        modules = [vars(module) for name, module in sys.modules.items() if name.startswith("shardlang.runtime.")]
        self.there = [(module, name) for module in modules for name in bare if name in module]
        self.sides = [bare[name] for _, name in self.there], [module[name] for module, name in self.there]
        self.at_step, self.took = record.at_step, record.took
        self.lot, self.on, self.taken = random.Random(0), True, list[tuple[bool, float, float]]()
        self.since = 0.0, 0.0
        vars(record).update(at_step=self.begin, took=self.end)  # found before the methods of the class

    def begin(self, step: int) -> None:
        """A step begins, and the one before has ended."""
        clock, processor = time.perf_counter(), time.process_time()
        if step > WARMUP:
            self.taken.append((self.on, clock - self.since[0], processor - self.since[1]))
        if step % TURN == 0:
            self.on = self.lot.random() < 0.5
            for (module, name), value in zip(self.there, self.sides[self.on], strict=True):
                module[name] = value
        self.since = time.perf_counter(), time.process_time()
        if self.on:
            self.at_step(step)

    def end(self, seconds: float) -> None:
        if self.on:
            self.took(seconds)


def measured(folder: Path, steps: int) -> tuple[list[tuple[bool, float, float]], float]:
    """On each rank: its steps as `Turns.taken`, and how many collectives a step has."""
    program = read_program(folder / "main.py")
    program.base = EXAMPLE.parent
    run = training(program, datasets(program), -(-(steps + WARMUP) // BATCHES))
    record.open(folder / f"rank-{world.rank}.collectives", folder, world.rank, RANKS)
    turns = Turns()
    run()
    on = sum(1 for step in turns.taken if step[0]) / len(turns.taken)
    return turns.taken, record.number / (steps + WARMUP) / on


def mean(values: Sequence[float]) -> float:
    return statistics.fmean(sorted(values)[: len(values) * 9 // 10])


def sides(steps: Sequence[tuple[bool, float, float]], what: int) -> tuple[float, float]:
    """Microseconds of a step off and on record: of the clock (1), or of the processor (2)."""
    off, on = ([step[what] * 1e6 for step in steps if step[0] == side] for side in (False, True))
    return mean(off), mean(on)


def main(steps: int) -> bool:
    files = driver.emit_plan(planned(EXAMPLE, "propagated", RANKS), Sink())
    assert files is not None
    with tempfile.TemporaryDirectory() as name:
        for file, text in files.items():
            (Path(name) / file).write_text(text)
        of_ranks = forked(RANKS, lambda: measured(Path(name), steps))
    (first, collectives), *_ = of_ranks
    off, on = sides(first, 1)
    print(
        f"{RANKS} ranks: a step takes {on:.0f} us on record, {off:.0f} us without; {collectives:.1f} collectives each"
    )
    used = [sides(taken, 2) for taken, _ in of_ranks]
    off, on = (statistics.fmean(each) for each in zip(*used, strict=True))
    each = (on - off) / collectives
    ratio = f"ratio {on / off:.3f}"
    print(f"processor time of a rank: {on:.0f} us on record, {off:.0f} us without: {ratio}, {each:.1f} us a collective")
    print(f"{BYTES} bytes a rank")
    parts = [first[at : at + PART] for at in range(0, len(first) - PART + 1, PART)]
    found = [on / off for off, on in (sides(part, 1) for part in parts)]
    return verdict(f"quickstart on {RANKS} ranks on record", found, 1.01)


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]) if sys.argv[1:] else 8000) else 1)
