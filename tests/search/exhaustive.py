"""`python -m tests.search.exhaustive [--count 200] [--seed 0] [--pins]`: the search against all points, planned one
by one.

Small programs with random holes. The oracle fills the holes in the text, in every way that there is, checks and plans
each text whole, and takes the least time. With `--pins`, each hole but stages and schedules is also pinned to each of
its values: what is found is as fast as the fastest with that pin, and nothing is found where none fits.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache

from shardlang import driver
from shardlang.cost.hardware import Hardware
from shardlang.cost.planned import work
from shardlang.cost.work import Attention, Collective, Copy, MemoryBound, Product, Workload
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.peak.step import step_peaks
from shardlang.plan.pipeline.actions import timeline
from shardlang.plan.plan import Plan
from shardlang.plan.planner import laid_out
from shardlang.search.request import SearchRequest
from shardlang.search.tune import Tuned, tune
from shardlang.search.write import text_of
from shardlang.sources.source import Source
from tests.emit import sources

PROGRAM = """use std.nn: Linear

dim batch = {batch}, pixels = 8, classes = 8

model Net(d: dim = {d}) {{
  layer up = Linear(pixels, d)
  layer hidden[{layers}] = Linear(d, d)
  layer down = Linear(d, classes)

  forward(image: [batch, pixels]) -> [batch, classes] {{
    a = up(image) |> relu
    b = a |> hidden
    return down(b)
  }}
}}

strategy s {{
{rules}
}}

train {{
  model = Net()
  data = random(image: [batch, pixels], label: i64[batch] < 8, batches = 4, seed = 1)
  loss = cross_entropy(model(image), label)
  optimizer = adam(lr = 0.1)
  epochs = 1
}}
"""
SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b")
ZERO = ("", "zero 1 over dp", "zero 2 over dp", "zero 3 over dp", "zero 3 over dp, keep")
HARDWARE = Hardware("h", compute=1e12, compute_f32=1e12, bandwidth=1e11, link=1e10, devices=16)
BUCKETS = ("", "bucket gradients 5MB", "bucket gradients 100MB", "bucket gradients 400MB")


def seconds(of: Workload) -> float:
    """A stand-in for the predicted time: each kind of work costs something, and a pipeline has its bubble."""
    each = {}
    for stage in of.stages:
        for segment in (*stage.forward, *stage.backward):
            cost = sum(n * price(item) for item, n in segment.items.items())
            cost += sum(2e-6 + g.bytes * 1e-9 for g in segment.gathers)
            cost += sum(1e-6 + sum(part[2] for part in r.parts) * 1e-9 for r in segment.reductions)
            each[id(stage)] = each.get(id(stage), 0.0) + segment.times * cost
    once = 0.0
    for at in of.coordinates:
        here = sum(each[id(of.stages[stage])] for stage in at.stages) * of.microbatches
        here += sum(u.elements * 2e-9 + 1e-7 * u.tensors for u in at.updates)
        here += sum(2e-6 + g.bytes * 1e-9 for g in at.gathers)
        here += sum(n * price(item) for items in (at.ahead, at.after) for item, n in items.items())
        once = max(once, here)
    bubble = timeline(of.actions, len(of.stages)).bubble
    return once / (1 - bubble) + of.bucket_bytes * 1e-16


def price(item: Product | Attention | MemoryBound | Collective | Copy) -> float:
    match item:
        case Product() | Attention():
            return 1e-6 + item.flops * 1e-9
        case MemoryBound():
            return 1e-7 + (item.read + item.written) * 1e-10
        case _:
            return 2e-6 + item.bytes * 1e-9


@dataclass
class Case:
    """A program with holes. rules: each as (what is written where it is open, all that may stand there); a rule that is
    not open has one value."""

    batch: int
    d: int
    layers: int
    ranks: int
    axes: list[tuple[str, int | None]]
    rules: dict[str, list[str]]
    limit: int | None = None
    open: set[str] = field(default_factory=set)

    def text(self, mesh: list[tuple[str, int | None]], rules: list[str]) -> str:
        line = "mesh " + ", ".join(f"{name} = {'auto' if size is None else size}" for name, size in mesh)
        lines = "\n".join(f"  {rule}" for rule in (line, *filter(None, rules)))
        return PROGRAM.format(batch=self.batch, d=self.d, layers=self.layers, rules=lines)

    def with_holes(self) -> str:
        rules = [OPEN[name] if name in self.open else values[0] for name, values in self.rules.items()]
        return self.text(self.axes, ["split batch over dp", *rules])

    def filled(self) -> Iterator[str]:
        """The program with each hole filled, in all ways."""
        for mesh in self.meshes():
            for values in itertools.product(*self.rules.values()):
                rules = [value.replace("{pp}", str(dict(mesh).get("pp", 1))) for value in values]
                if dict(mesh).get("pp", 1) == 1:  # without stages
                    rules = [rule for rule in rules if not rule.startswith(("stages", "schedule"))]
                yield self.text(mesh, ["split batch over dp", *rules])

    def pinned(self) -> Iterator[Case]:
        """The case with one hole filled, for each hole and each of its values."""
        for at, (name, size) in enumerate(self.axes):
            for pin in sorted({dict(mesh)[name] for mesh in self.meshes()} if size is None else ()):
                yield replace(self, axes=[*self.axes[:at], (name, pin), *self.axes[at + 1 :]])
        for name in sorted(self.open - {"stages", "schedule"}):
            for value in filter(None, self.rules[name]):
                yield replace(self, rules={**self.rules, name: [value]}, open=self.open - {name})

    def meshes(self) -> Iterator[list[tuple[str, int | None]]]:
        sizes = [[size] if size else range(1, self.ranks + 1) for _, size in self.axes]
        for chosen in itertools.product(*sizes):
            product = 1
            for size in chosen:
                product *= size
            if product == self.ranks:
                yield [(name, size) for (name, _), size in zip(self.axes, chosen, strict=True)]


OPEN = {
    "stages": "stages over pp auto", "microbatches": "microbatches auto", "schedule": "schedule auto",
    "zero": "zero auto over dp", "bucket": "bucket gradients auto", "recompute": "recompute auto",
    "split": "split auto over tp",
}  # fmt: skip


MOST = 150


def case(rng: random.Random) -> Case:
    """A random program, with at most so many ways to fill it."""
    while True:
        made = drawn(rng)
        if sum(1 for _ in itertools.islice(made.filled(), MOST + 1)) <= MOST:
            return made


def drawn(rng: random.Random) -> Case:
    layers = rng.choice((2, 3, 4))
    ranks = rng.choice((2, 4, 4, 8, 8, 16))
    made = Case(rng.choice((8, 16)), rng.choice((8, 16)), layers, ranks, [("dp", None)], {})
    kinds = rng.sample(sorted(OPEN), rng.choice((1, 2, 2, 3)))
    if rng.random() < 0.5 or {"stages", "schedule"} & set(kinds):
        made.axes.insert(0, ("pp", rng.choice((None, None, 2))))
        made.rules["stages"] = [f"stages over pp balanced{f', virtual = {v}' * (v > 1)}" for v in range(1, layers + 2)]
        made.rules["microbatches"] = ["", *(f"microbatches {m}" for m in (2, 4, 8, 16))]
        made.rules["schedule"] = [f'schedule "{name}"' for name in SCHEDULES]
        kinds = [*kinds, "microbatches"]
    if "split" in kinds:
        made.axes.append(("tp", rng.choice((None, 2))))
        ways = [["", *(f"split {dim} over tp{may}" for may in ("", "?"))] for dim in ("pixels", "classes", "d")]
        made.rules["split"] = ["\n  ".join(filter(None, each)) for each in itertools.product(*ways)]
    if "zero" in kinds:
        made.rules["zero"] = list(ZERO)
    if "bucket" in kinds:
        made.rules["bucket"] = list(BUCKETS)
    if "recompute" in kinds:
        some = [c for n in range(layers + 1) for c in itertools.combinations(range(layers), n)]
        paths = [", ".join(f"hidden[{i}]" for i in each) for each in some]
        kinds_of = ("", " all but products")
        made.rules["recompute"] = [f"at {path}: recompute{what}" if path else "" for path in paths for what in kinds_of]
        made.rules["recompute"] = list(dict.fromkeys(made.rules["recompute"]))
    made.open = set(kinds) & set(made.rules)
    for name in set(made.rules) - made.open:
        made.rules[name] = made.rules[name][:1]
    if "schedule" not in made.open and "schedule" in made.rules:
        made.rules["schedule"] = [""]
    return made


@cache
def plan_of(text: str, ranks: int) -> Plan | None:
    sink = Sink()
    program = driver.check_source(Source("t.shard", text), sink)
    return laid_out(program, program.strategies[0], ranks, sink) if program is not None else None


def peak(plan: Plan) -> int:
    return max(each.bytes for each in step_peaks(plan))


def tuned(made: Case, text: str, limit: int | None) -> tuple[Tuned | None, Sink]:
    program, sink = sources.checked(text), Sink()
    return tune(program, "s", SearchRequest(made.ranks, seconds, limit, HARDWARE, budget=1e9), sink), sink


def wrong(rng: random.Random, pins: bool = False) -> str | None:
    """What is wrong with the search of one program; None where nothing is."""
    made = case(rng)
    peaks = sorted({peak(plan) for text in made.filled() if (plan := plan_of(text, made.ranks)) is not None})
    limit = rng.choice((None, None, *peaks, peaks[0] - 1)) if peaks else None
    return next((said for each in (made, *(made.pinned() if pins else ())) if (said := wrong_of(each, limit))), None)


def wrong_of(made: Case, limit: int | None) -> str | None:
    """What is wrong with the search within so many bytes a rank."""
    plans = [(text, plan) for text in made.filled() if (plan := plan_of(text, made.ranks)) is not None]
    fits = [(seconds(work(plan)), text) for text, plan in plans if limit is None or peak(plan) <= limit]
    found, sink = tuned(made, made.with_holes(), limit)
    if not fits:
        # Operators choose where nothing is left open, and pins of theirs are none of the points here.
        pinned = found is not None and found.outcome.best[0].point.pins and found.outcome.best[0].memory <= (limit or 0)
        if found is not None and not pinned:
            return f"{found.outcome.best[0].point} was found where nothing fits ({limit})\n{made.with_holes()}"
        # SH326, or what is wrong with the strategy whatever stands in its holes.
        return None if sink.failed or pinned else f"nothing fits, and nothing is said\n{made.with_holes()}"
    if found is None:
        return f"nothing was found on {made.ranks} ranks, and this fits ({limit})\n{min(fits)[1]}"
    least, text = min(fits)
    best = found.outcome.best[0]
    if best.seconds > least * (1 + 1e-12):
        fact = f"{best.seconds} found on {made.ranks} ranks ({limit}), {least} is least"
        return f"{fact}\n{text_of(best.strategy, [])}{text}"
    return _written(made, best.strategy, best.seconds)


def _written(made: Case, strategy: object, expected: float) -> str | None:
    """The strategy as text, in the place of the one with holes, is what it was found to be."""
    written = text_of(strategy, [])  # type: ignore[arg-type]
    head, _, rest = made.with_holes().partition("strategy s {")
    text = head + written + rest.partition("\n}\n")[2]
    plan = plan_of(text, made.ranks)
    if plan is None or abs(seconds(work(plan)) - expected) > 1e-12 * expected:
        return f"as text it is something else\n{text}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pins", action="store_true")
    asked = parser.parse_args()
    failed = 0
    for seed in range(asked.seed, asked.seed + asked.count):
        plan_of.cache_clear()
        found = wrong(random.Random(seed), asked.pins)
        if found is not None:
            failed += 1
            print(f"--seed {seed}: {found}", flush=True)
    print(f"{asked.count - failed} of {asked.count} programs: the search finds the least time of all points")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
