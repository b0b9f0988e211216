"""`python -m tests.generated --count 10000 --seed 0 --real 300`: generated pairs of program and strategy, held to 1e-9.

Simulated ranks for all of them, each on one real rank too, and as many real gloo ranks as it asks for for `--real`
more; with `--precision bf16` these are held to what rounding moves one rank. Outcomes are kept in `--folder` as they
come, so a run that was ended goes on where it was; failures are made smaller and kept there as .shard files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests.generated import program, strategies
from tests.generated.cases import AGREED, Outcome, case
from tests.generated.real import RANKS, Real
from tests.generated.shrink import shrunk
from tests.generated.tally import Kept, Tally

# Seeds of pairs on real ranks begin here, so that they are none of the simulated ones.
REAL_SEEDS = 1_000_000


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.generated", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="pairs on simulated ranks")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--real", type=int, default=0, help="pairs on real ranks, planned ones only")
    parser.add_argument("--precision", default="f64", help="of pairs on real ranks: f64, bf16, 'bf16(stream = bf16)'")
    parser.add_argument("--jobs", type=int, default=1, help="processes for simulated ranks")
    parser.add_argument("--folder", type=Path, help="where outcomes are kept")
    parser.add_argument("--feature", nargs="+", default=(), help="only pairs that have all of these")
    parser.add_argument("--first", action="store_true", help="end with the first pair that fails")
    parser.add_argument("--whole", action="store_true", help="leave failures as large as they are")
    return parser.parse_args(arguments)


def _has(seed: int, wanted: Sequence[str], ranks: int | None = None) -> bool:
    """Whether the pair of a seed has all these features, those of its strategy included."""
    rng = random.Random(seed)
    written = program.write(rng)
    if written.features >= {*wanted}:
        return True
    checked = driver.check_source(Source("generated.shard", written.text("")), Sink())
    if checked is None:
        return False
    rules = strategies.write(rng, checked.graph, ranks, written.apart, written.deep)
    return written.features | rules.features >= {*wanted}


def _one_thread() -> None:
    torch.set_num_threads(1)


def _case(seed: int) -> Outcome:
    """Odd seeds in the element type in which they can be held against a real rank to the last digits."""
    return case(seed, None, "f64" if seed % 2 else "f32")


def _outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(_case, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, initializer=_one_thread) as pool:
        yield from pool.imap_unordered(_case, seeds, chunksize=4)


def _on_one(outcome: Outcome, real: Real) -> Outcome:
    """A pair that agrees, also on one real rank, where it can be compared to the last digits."""
    if outcome.kind != AGREED or outcome.seed % 2 == 0:
        return outcome
    found = real.judged(outcome, 1)
    return replace(found, features=found.features | {"one real rank"})


def _simulated(options: argparse.Namespace, kept: Kept) -> Tally:
    tally, done = Tally(), set()
    for record in kept.records(real=False):
        if options.seed <= record["seed"] < options.seed + options.count:
            done.add(record["seed"])
            tally.add(record)
    seeds = [s for s in range(options.seed, options.seed + options.count) if s not in done and _has(s, options.feature)]
    told, real = time.monotonic(), Real(kept.folder / "alone")
    for outcome in _outcomes(seeds, options.jobs):
        _note(_on_one(outcome, real), kept, tally, options, real=False)
        if options.first and tally.failed:
            break
        if time.monotonic() - told > 30:
            told = time.monotonic()
            print(f"simulated: {tally.line()}", flush=True)
    real.close()
    return tally


def _real(options: argparse.Namespace, kept: Kept) -> Tally:
    """Pairs until `--real` of them are planned."""
    tally, seed = Tally(), REAL_SEEDS + options.seed
    for record in kept.records(real=True):
        tally.add(record)
        seed = max(seed, record["seed"] + 1)
    real = Real(kept.folder / "runs")
    try:
        while sum(tally.kinds.values()) - tally.kinds["refused"] < options.real:
            if _has(seed, options.feature, RANKS[seed % len(RANKS)]):
                _note(real.case(seed, options.precision), kept, tally, options, real=True)
            seed += 1
            if options.first and tally.failed:
                break
            if seed % 20 == 0:
                print(f"real: {tally.line()}", flush=True)
    finally:
        real.close()
    return tally


def _note(outcome: Outcome, kept: Kept, tally: Tally, options: argparse.Namespace, real: bool) -> None:
    tally.add(kept.keep(outcome, real))
    if outcome.failed:
        small = outcome if real or options.whole else shrunk(outcome)
        print(f"{outcome.kind}: {kept.fault(outcome, small, real)}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """0 where no pair failed."""
    options = _options(arguments)
    _one_thread()
    kept = Kept((options.folder or Path(tempfile.mkdtemp(prefix="generated-"))).resolve())  # as tracebacks name files
    kept.folder.mkdir(parents=True, exist_ok=True)
    print(f"outcomes are kept in {kept.folder}", flush=True)
    tallies = {"simulated": _simulated(options, kept)}
    if options.real:
        tallies["real"] = _real(options, kept)
    for name, tally in tallies.items():
        print(f"\n{name}: {tally.text()}")
    return 1 if any(tally.failed for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
