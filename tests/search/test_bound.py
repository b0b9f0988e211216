"""A bound is never above the prediction of the whole plan of its point, and an estimate of bytes is near them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.cost.hardware import Hardware, with_speeds
from shardlang.cost.planned import work
from shardlang.cost.predict import predict_work
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.reserved.communicators import MORE
from shardlang.folds.reserved.footprint import beside_tensors
from shardlang.plan.planner import laid_out
from shardlang.search.deep.priced import Priced
from shardlang.search.fill_holes import filled
from shardlang.search.layers import arrays
from shardlang.search.pipelines import pipe
from shardlang.search.profiles import Profiles
from shardlang.search.space import Cuts, Open, Point, courses, heads, zeros
from shardlang.search.tune import everything
from shardlang.sources.source import Source

GPT2 = """use std.gpt2: GPT2

dim batch = 256, seq = 1024

train {
  model = GPT2(vocab = 50304, d = 1024, heads = 16, layers = 8, max_len = 1024)
  data = random(tokens: i64[batch, seq] < 50304, label: i64[batch, seq] < 50304, batches = 1, seed = 1)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 3e-4)
  clip = 1.0
  steps = 1
}
"""
LLAMA = (Path(__file__).parent.parent.parent / "examples" / "llama.shard").read_text()
# A program, what it is called with, and the dims that are split over tp.
PROGRAMS = {
    "llama": (LLAMA, {"model.layers": "12"}, ("heads", "kv_heads", "ffn", "vocab")),
    "gpt2": (GPT2, {}, ("heads", "ffn", "vocab")),
}


def program(name: str) -> CheckedProgram:
    text, overrides, _ = PROGRAMS[name]
    made = driver.check_source(Source("t.shard", text), Sink(), overrides)
    placed = driver.with_cluster(made, "std.clusters.h100_pod", Sink()) if made is not None else None
    assert placed is not None
    return placed


def ways(name: str, degrees: dict[str, int]) -> list[Cuts]:
    over = [(axis, axis == "tp") for axis in ("cp", "tp") if degrees.get(axis, 1) > 1]
    splits = [(0, dim, (("tp", False),)) for dim in PROGRAMS[name][2] if degrees.get("tp", 1) > 1]
    return [Cuts((*splits, *([(0, "seq", tuple(over))] if over else [])))]


def drawn(of: Open, name: str, count: int) -> Iterator[Point]:
    rng, every = random.Random(7), list(heads(of, lambda degrees: ways(name, degrees)))
    while count:
        found = list(courses(of, rng.choice(every)))
        point = rng.choice(found) if found else None
        if point is None or point.microbatches * max(1, point.virtual) * dict(point.sizes).get("pp", 1) > 500:
            continue
        yield rng.choice(list(zeros(of, point)))
        count -= 1


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("ranks", [16, 128])
def test_a_bound_is_no_more_than_the_prediction(name: str, ranks: int) -> None:
    it = program(name)
    hardware = with_speeds(it, ranks, Sink())
    assert isinstance(hardware, Hardware)
    of = Open(it, everything(it), ranks)
    profiles = Profiles(of, arrays(of.told.graph)[0], None)
    sizes = tuple((axis.name, 1) for axis in of.axes)
    reference = Point(sizes, microbatches=of.share(dict(sizes)), zero=((0, False),) * len(of.zeros))
    priced, seen = Priced(profiles, hardware, reference), 0
    for point in drawn(of, name, 8):
        found, profile = pipe(of, profiles.array, point), profiles.profile(point, None)
        plan = laid_out(it, filled(of, point, "s"), ranks, Sink())
        if found is None or profile is None or plan is None:
            assert plan is None or found is None
            continue
        plain = profiles.profile(next(zeros(of, point)), None)
        least, estimate = priced.least(point, profile, found, None), profiles.estimate(point, None)
        assert plain is not None and least is not None and estimate is not None
        seconds, seen = predict_work(work(plan), hardware).step_s, seen + 1
        bounds = priced.ideal(point, found), priced.first(point, plain, found), least
        assert max(bounds) <= seconds * (1 + 1e-9), point
        assert least > 0.5 * seconds, point
        has, peaks = profiles.device, step_peaks(plan)
        assert has is not None
        nccl = beside_tensors(plan, 0, has.group, has.node)
        memory = max(peak.bytes + more for peak, more in zip(peaks, nccl, strict=True))
        guessed = [profiles.of_nccl(profile, found, at) for at in range(found.size)]
        assert all(abs(a - b) <= MORE for a, b in zip(guessed, nccl, strict=True)), point
        every = profiles.coordinates(point, profile, found, range(found.size))
        assert max(held.most for held in every) <= memory, point
        assert estimate.memory == pytest.approx(memory, rel=0.2), point
    assert seen > 3
