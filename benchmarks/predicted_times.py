"""Claim: predicted steps of small programs on this machine's CPU are within 15 % in the median, none beyond 30 %.

The hardware is that of a file of `shardc calibrate --device cpu --ranks 2`; without one the script measures it first.
Strategies take turns. Each rank has the threads that it had when the machine was measured.

    python benchmarks/predicted_times.py [--cluster machine.shard] [--turns 7]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from emitted import emitted, planned, training
from ranks import on_ranks
from timing import verdict

from shardlang import driver
from shardlang.cost.hardware import Hardware, with_speeds
from shardlang.cost.predict import predict
from shardlang.diagnostics.diagnostic import Sink
from shardlang.runtime.step.train import datasets
from shardlang.sources.source import Source

HERE = Path(__file__).parent
RANKS = 2
MEDIAN, MOST = 0.15, 0.30


@dataclass(frozen=True)
class Case:
    """A program with its strategies for 2 ranks, and the epochs of a turn."""

    file: Path
    strategies: Sequence[str]
    epochs: int
    settings: Mapping[str, str] = field(default_factory=dict)


CASES = {
    "digits": Case(HERE.parent / "examples" / "digits.shard", ("data_parallel", "tensor_parallel", "sharded"), 2),
    "translator": Case(HERE / "programs" / "translator.shard", ("data_parallel", "tensor_parallel", "zero_3"), 2),
    "gpt2": Case(HERE / "programs" / "gpt2.shard", ("data_parallel", "tensor_parallel", "zero_3"), 1),
}  # fmt: skip


def hardware(cluster: Path, case: Case) -> Hardware:
    """The machine that the file describes."""
    sink = Sink()
    program = driver.check_source(Source(str(case.file), case.file.read_text()), sink, case.settings)
    program = driver.with_cluster(program, str(cluster), sink) if program is not None else None
    found = with_speeds(program, RANKS, sink) if program is not None else None
    if found is None:
        sys.exit("\n".join(diagnostic.message for diagnostic in sink.found))
    return found


def measured(case: Case, strategies: Sequence[str], ranks: int, turns: int) -> dict[str, float]:
    """Seconds of a step under each strategy, which take turns."""
    whole = {name: emitted(case.file, name, ranks, case.settings) for name in strategies}
    programs = {name: dataclasses.replace(program, eval=None) for name, program in whole.items()}
    data = {name: datasets(program) for name, program in programs.items()}

    def sides() -> Mapping[str, Callable[[], Sequence[float] | None]]:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // RANKS))
        return {name: training(program, data[name], case.epochs) for name, program in programs.items()}

    wall, _ = on_ranks(ranks, sides, turns)
    steps = {name: case.epochs * (data[name]["data"].length // programs[name].data.batch) for name in programs}
    return {name: timing.median / steps[name] for name, timing in wall.items()}


def rows(cluster: Path, turns: int) -> list[tuple[str, int, str, float, float]]:
    """(program, ranks, strategy, predicted, measured) of every case, printed."""
    found = []
    for name, case in CASES.items():
        machine = hardware(cluster, case)
        for ranks in (1, RANKS):
            strategies = case.strategies if ranks > 1 else case.strategies[:1]
            taken = measured(case, strategies, ranks, turns)
            for strategy in strategies:
                plan = planned(case.file, strategy, ranks, case.settings)
                said, real = predict(plan, machine).step_s, taken[strategy]
                found.append((name, ranks, strategy, said, real))
                told = f"predicted {said * 1e3:9.3f} ms, measured {real * 1e3:9.3f} ms: {said / real - 1:+.0%}"
                print(f"{name:12} {ranks} rank{'s' * (ranks > 1)} {strategy:16} {told}", flush=True)
    return found


def ordered(found: Sequence[tuple[str, int, str, float, float]]) -> bool:
    """Whether of each program on several ranks the strategy predicted fastest is the fastest, or within 5 % of it."""
    right = True
    for name in CASES:
        here = [(said, real, strategy) for n, ranks, strategy, said, real in found if n == name and ranks > 1]
        best, chosen = min(real for _, real, _ in here), min(here)
        right &= chosen[1] <= 1.05 * best
        print(f"{name}: predicted fastest is {chosen[2]}, {chosen[1] / best - 1:+.0%} over the fastest measured")
    return right


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--cluster", type=Path)
    options.add_argument("--turns", type=int, default=7)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = given.cluster
        if cluster is None:
            cluster = Path(folder) / "machine.shard"
            words = ("calibrate", "--device", "cpu", "--ranks", str(RANKS), "-o", str(cluster))
            subprocess.run([sys.executable, "-c", "from shardlang.cli.main import main; main()", *words], check=True)
        found = rows(cluster, given.turns)
    errors = [abs(said / real - 1) for *_, said, real in found]
    held = verdict("predicted times, median error", errors, MEDIAN)
    held &= verdict("predicted times, largest error", [max(errors)], MOST)
    return 0 if ordered(found) and held else 1


if __name__ == "__main__":
    sys.exit(main())
