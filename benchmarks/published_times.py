"""Claim: predicted seconds of 88 published steps of training: mean error at most 7 %, median 4 %.

Each row's model is planned by `shardlang`, the plan's work is timed by `shardlang.cost`, with what the measured system
does differently (`executors`). One number a machine is fitted: the share of its peak that products reach, on the row
that is marked `fit` in published_steps.json.

    python benchmarks/published_times.py                every row, its error and where its seconds go
    python benchmarks/published_times.py --rows FILE    rows of one's own in the same format, with the same shares
    python benchmarks/published_times.py --ranking      of each model of vTrain: is the fastest predicted to be so?
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from executors import machine_of
from published_rows import HERE, Row, read
from published_seconds import Parts, predicted
from published_work import profile

ROWS = HERE / "published_steps.json"
MEGATRON = ("K22", "N21")


@dataclass(frozen=True)
class Found:
    """A row, its measured seconds a step, and the predicted ones by kind."""

    row: Row
    measured: float
    parts: Parts

    @property
    def error(self) -> float:
        return self.parts.seconds / self.measured - 1


def fitted(row: Row) -> float:
    """The share of the peak at which a row is predicted exactly, by the secant method: seconds are
    nearly a line over 1 / share."""
    measured = row.seconds(profile(row).flops)

    def beyond(inverse: float) -> float:
        return predicted(row, machine_of(row), 1 / inverse).seconds / measured - 1

    before, inverse = 2.0, 1.5
    there, here = beyond(before), beyond(inverse)
    for _ in range(20):
        if abs(here) < 1e-9:
            return 1 / inverse
        if here == there:
            break
        before, inverse = inverse, min(10.0, max(0.5, inverse - here * (inverse - before) / (here - there)))
        there, here = here, beyond(inverse)
    sys.exit(f"{row.id}: no share of the peak gives the measured {measured:.3f} s")


def found(rows: Sequence[Row], shares: Mapping[str, float]) -> list[Found]:
    """All rows, predicted with the share of their machine."""
    unknown = [row for row in rows if row.machine not in shares]
    if unknown:
        sys.exit(f"{unknown[0].id}: no row of machine `{unknown[0].machine}` is marked `fit`")
    steps = [predicted(row, machine_of(row), shares[row.machine]) for row in rows]
    return [Found(row, row.seconds(profile(row).flops), step) for row, step in zip(rows, steps, strict=True)]


def show(all_of: Sequence[Found]) -> None:
    print(f"{'row':16} {'measured':>9} {'predicted':>9} {'error':>7}  of the predicted seconds")
    for each in all_of:
        kinds = sorted(each.parts.items(), key=lambda kind: -kind[1])
        shares = [f"{name} {100 * s / each.parts.seconds:.0f} %" for name, s in kinds if s > 0.005 * each.parts.seconds]
        figures = f"{each.measured:9.3f} {each.parts.seconds:9.3f} {100 * each.error:+6.1f}%"
        print(f"{each.row.id:16} {figures}  {', '.join(shares)}{' (fit)' if each.row.fit else ''}")


def judged(label: str, values: Sequence[float], limits: Mapping[str, float]) -> bool:
    """Prints figures of errors against their limits (percent); returns whether all hold."""
    errors = sorted(100 * abs(value) for value in values)
    figures = {
        "mean": statistics.mean(errors), "median": statistics.median(errors), "largest": errors[-1],
        "90th percentile": errors[max(0, -(-9 * len(errors) // 10) - 1)],
    }  # fmt: skip
    for name, limit in limits.items():
        ratio = figures[name] / limit
        word = "held" if ratio <= 1 else "MISSED"
        print(f"{label}, {name} error {figures[name]:.1f} %: ratio {ratio:.3f} (limit 1.00, spread -): {word}")
    return all(figures[name] <= limit for name, limit in limits.items())


def ranked(all_of: Sequence[Found]) -> bool:
    """Prints, for each model, how far from the fastest the configuration is that is predicted fastest."""
    models: dict[tuple[int, int, int], list[Found]] = {}
    for each in all_of:
        models.setdefault((each.row.d, each.row.layers, each.row.batch), []).append(each)
    held = True
    for (d, layers, batch), mine in models.items():
        chosen, best = min(mine, key=lambda f: f.parts.seconds), min(mine, key=lambda f: f.measured)
        ratio = chosen.measured / best.measured
        held &= ratio <= 1.05
        print(f"{layers} layers of {d}, batch {batch}, {len(mine)} configurations: predicted fastest {chosen.row.id}, "
              f"{chosen.measured:.3f} s; measured fastest {best.row.id}, {best.measured:.3f} s")  # fmt: skip
        word = "held" if ratio <= 1.05 else "MISSED"
        print(f"ranking, {layers} layers of {d}: ratio {ratio:.3f} (limit 1.05, spread -): {word}")
    return held


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks published_times")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="rows of one's own, as in published_steps.json")
    parser.add_argument("--ranking", action="store_true", help="of vTrain's rows, model by model")
    given = parser.parse_args()
    development = read(ROWS)
    rows = read(given.rows) if given.rows else development
    if given.ranking:
        rows = [row for row in rows if row.machine == "vtrain"] or sys.exit("no rows of machine `vtrain`")
    needed = {row.machine for row in rows}
    shares = {row.machine: fitted(row) for row in development if row.fit and row.machine in needed}
    print("share of the peak that products reach, fitted:", ", ".join(f"{m} {s:.3f}" for m, s in shares.items()))
    if given.ranking:
        return 0 if ranked(found(rows, shares)) else 1
    all_of = found(rows, shares)
    show(all_of)
    errors = [each.error for each in all_of]
    if given.rows:
        return 0 if judged("rows", errors, {"mean": 9, "median": 5, "90th percentile": 20}) else 1
    held = judged("development rows", errors, {"mean": 7, "median": 4})
    megatron = [each.error for each in all_of if each.row.id[:3] in MEGATRON]
    held &= judged("Korthikanti and Narayanan", megatron, {"mean": 5, "largest": 10})
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
