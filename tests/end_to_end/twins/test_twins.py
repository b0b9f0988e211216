"""Examples compute what their twins in torch do: figures of several steps, under each strategy of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shardlang.folds.memory import memory
from shardlang.step.gradient_sums import gradient_sums
from tests.emit.sources import planned
from tests.end_to_end.curves import ROOT, RunOf, figures
from tests.end_to_end.kept import held
from tests.end_to_end.twins.beside import program, trained
from tests.end_to_end.twins.models import TWINS


@pytest.fixture(autouse=True)
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", TWINS)
def test_an_example_is_its_twin(name: str, tmp_path: Path) -> None:
    """On one rank, and on four that talk by gloo, to 1e-9 of each figure."""
    torch.manual_seed(7)
    twin = TWINS[name]()
    text = program(name, twin, tmp_path)
    strategies = re.findall(r"^strategy (\w+)", text, re.MULTILINE)
    runs = [RunOf("", 1), *(RunOf(strategy, 4) for strategy in strategies)]
    found, theirs = figures(text, runs, tmp_path), trained(twin)
    for run, ours in found.items():
        for of_step, expected in zip(ours.steps, theirs, strict=True):
            told = {figure: of_step[figure] for figure in expected}
            assert told == pytest.approx(expected, rel=1e-9, abs=1e-12), run


@pytest.mark.slow
@pytest.mark.parametrize("name", ["distillation", "lora"])
def test_a_frozen_parameter_costs_no_byte_of_gradient_or_state(name: str, tmp_path: Path) -> None:
    """In the plan and on ranks: gradients and two moments of what is trained, in f32, and of nothing else."""
    text = (ROOT / "examples" / f"{name}.shard").read_text("utf-8")
    # Ranks keep a parameter's state in multiples of 16 elements.
    text = text.replace("classes = 10", "classes = 16")
    text = text.replace("split batch over dp\n", "split batch over dp\n  microbatches 2\n", 1)
    plan, twin = planned(text, 2, "data_parallel"), TWINS[name]()
    kept = {id(p) for group in twin.optimizer.param_groups for p in group["params"]}
    of_path = {plan.graph.values[v].path: v for v in plan.params}
    trained_ones = {of_path[path] for path, p in twin.state_dict(keep_vars=True).items() if id(p) in kept}
    learning = sum(plan.graph.values[v].type.bytes for v in trained_ones)
    for value in plan.params:
        assert plan.graph.frozen(value) == (value not in trained_ones)
        assert bool(gradient_sums(plan)[value]) == (value in trained_ones)
    assert (memory(plan).gradients, memory(plan).optimizer) == (learning, 2 * learning)
    for on_rank in held(text, 2, tmp_path / "run", "data_parallel"):
        assert (on_rank["gradients"], on_rank["optimizer"]) == (learning, 2 * learning)
