"""Strategies that `tune` found and examples ship: they check, plan within memory, and keep their predicted share of the
peak."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.cost.hardware import with_speeds
from shardlang.cost.planned import work
from shardlang.cost.predict import predict_work
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import device, needed
from shardlang.format.format import format_file
from shardlang.sources.source import Source

FOLDER = Path(__file__).parent.parent.parent / "examples" / "tuned"


def test_the_example_fits_the_ranks_of_the_readme() -> None:
    """All its strategies, on the devices that it names, which `plan` shows and `tune` compares."""
    readme = (FOLDER.parent.parent / "README.md").read_text()
    (ranks,) = {int(found) for found in re.findall(r"examples/llama\.shard --ranks (\d+)", readme)}
    source = Source("llama.shard", (FOLDER.parent / "llama.shard").read_text())
    program = driver.check_source(source, sink := Sink())
    assert program is not None and len(program.strategies) == 2
    for strategy in program.strategies:
        driver.plan_program(program, strategy.name.text, ranks, sink)
    assert [d.message for d in sink.found] == []


@pytest.mark.parametrize(("name", "ranks", "least"), [("llama_8b_64", 64, 0.43), ("llama_405b_16384", 16384, 0.27)])
def test_a_shipped_strategy_holds(name: str, ranks: int, least: float) -> None:
    sink, source = Sink(), Source(f"{name}.shard", (FOLDER / f"{name}.shard").read_text())
    assert format_file(driver.parse_source(source, sink)) == source.text
    program = driver.check_source(source, sink)
    program = driver.with_cluster(program, "std.clusters.h100_pod", sink) if program is not None else None
    plan = driver.plan_program(program, f"tuned_{ranks}", ranks, sink) if program is not None else None
    assert program is not None and plan is not None and not sink.failed
    has = device(plan.program)
    assert has is not None and max(needed(plan)) <= has.memory
    hardware = with_speeds(program, ranks, sink)
    assert hardware is not None and predict_work(work(plan), hardware).mfu >= least
