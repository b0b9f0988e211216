"""Stages: what is in which, what is handed on, what is balanced; every plan on simulated ranks against one device."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.pipeline.actions import most_alive, timeline
from shardlang.plan.pipeline.balance import cut
from shardlang.plan.pipeline.schedules import SCHEDULES
from shardlang.plan.plan import Pipeline, Plan
from shardlang.sources.source import Source
from tests.interpret.verify_plan import verify_plan

MODEL = """
use std.nn: Dropout, LayerNorm, Linear

dim batch = 16, seq = 4, vocab = 12

model Block(d: dim) {
  layer norm = LayerNorm(d)
  layer up = Linear(d, 2 * d)
  layer drop = Dropout(0.2)
  layer down = Linear(2 * d, d)
  forward(x: [batch, seq, d], bias: [seq, d]) -> [batch, seq, d] {
    h = norm(x) |> up |> gelu |> drop
    return x + down(h) + bias
  }
}

model Net(d: dim = 8, layers: int = 4) {
  param table: [vocab, d] = normal(0.5)
  param place: [seq, d] = normal(0.5)
  layer blocks[layers] = Block(d)
  layer head = Linear(d, d)
  forward(ids: i64[batch, seq]) -> [batch, seq, vocab] {
    first = embedding(ids, table)
    kept = cast(ids != 0, f32)
    shift = tanh(place)
    y = first |> blocks(shift)
    z = head(y) * rearrange(kept -> [batch, seq, 1]) + first     # skips all stages between
    return einsum(z, table -> [batch, seq, vocab])               # tied
  }
}

train {
  model = Net()
  data = random(ids: i64[batch, seq] < 12, label: i64[batch, seq] < 12, batches = 4, seed = 1)
  scores = model(ids)
  loss = cross_entropy(scores, label, ignore_index = 0) + 0.01 * mean(model.table * model.table)
  metric accuracy = mean(argmax(scores, over = vocab) == label)
  metric size = sqrt(mean(model.first * model.first))
  metric perplexity = exp(loss)
  optimizer = adamw(lr = 0.1)
  epochs = 1
}
"""


def checked(rules: str, model: str = MODEL, **given: str) -> tuple[CheckedProgram | None, Sink]:
    sink = Sink()
    lines = "".join(f"  {line.strip()}\n" for line in rules.strip().splitlines())
    source = Source("test.shard", f"{model}\nstrategy s {{\n{lines}}}\n")
    return driver.check_source(source, sink, given), sink


def planned(rules: str, ranks: int, model: str = MODEL, **given: str) -> Plan:
    program, sink = checked(rules, model, **given)
    plan = driver.plan_program(program, None, ranks, sink) if program is not None else None
    assert plan is not None, [(d.code, d.message) for d in sink.found]
    return plan


def agrees(plan: Plan, steps: int = 1) -> Pipeline:
    found = verify_plan(plan, steps=steps)
    assert found.ok, str(found.difference)
    assert plan.pipeline is not None
    return plan.pipeline


def stages_of(plan: Plan) -> dict[str, int]:
    assert plan.pipeline is not None
    return {op.path: plan.pipeline.op_stage[op.id] for op in plan.graph.ops}


def test_written_stages() -> None:
    plan = planned(
        """
        mesh pp = 2, dp = 2, mp = 2
        split batch over dp
        split vocab over mp
        stages over pp {
          0: blocks[0..2]
          1: blocks[2..4], head
        }
        microbatches 4
        schedule "1f1b"
    """,
        8,
    )
    pipeline = agrees(plan, steps=2)
    at = stages_of(plan)
    assert pipeline.coordinates == (0, 1)
    assert [a.name for a in pipeline.mesh.axes] == ["pp", "dp", "mp"]
    assert [m.timeless.size for m in plan.meshes] == [4]
    # Outside of all layers: where the last input is, or where it is first used; what comes of data alone: where it is.
    assert at["first"] == at["shift"] == 0
    assert at["kept"] == at["z"] == at["return"] == at["train.loss"] == 1
    assert {p for p, s in at.items() if p.endswith("@1")} == {"first@1", "shift@1", "blocks[1].return@1"} | (
        {p for p in at if "metric" in p and p.endswith("@1")}
    )
    names = {plan.graph.values[v].path: s for v, s in pipeline.param_stages.items()}
    assert names["table"] == (0, 1)
    assert names["train.label"] == (1,)
    assert names["train.ids"] == (0, 1)
    assert names["blocks[0].up.weight"] == (0,)


def test_metrics_end_beside_the_loss() -> None:
    plan = planned("mesh pp = 4\nstages over pp balanced\nmicrobatches 4", 4)
    pipeline = agrees(plan)
    assert plan.graph.loss is not None
    assert {pipeline.op_stage[plan.graph.producers[v]] for v in (plan.graph.loss, *plan.graph.metrics.values())} == {3}


def test_what_is_outside_of_layers_runs_where_its_last_input_is() -> None:
    model = """
use std.nn: Linear
dim batch = 4, d = 8
model Net {
  layer a = Linear(d, d)
  layer b = Linear(d, d)
  forward(x: [batch, d]) -> [batch, d] {
    y = a(x)
    z = b(y)
    return y * z
  }
}
train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 2, seed = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""
    plan = planned('mesh pp = 2\nstages over pp {\n0: a\n1: b\n}\nmicrobatches 2\nschedule "gpipe"', 2, model)
    agrees(plan)
    assert stages_of(plan)["return"] == 1


def test_a_value_passes_every_boundary_once() -> None:
    plan = planned("mesh pp = 4\nstages over pp balanced\nmicrobatches 4", 4)
    handed = [op.path for op in plan.graph.ops if op.operator == "transfer" and op.section == "loss"]
    assert [p for p in handed if p.startswith("first@")] == ["first@1", "first@2", "first@3"]
    assert len(handed) == len(set(handed))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("rules", ["mesh pp = 2", "mesh dp = 2, pp = 2\nsplit batch over dp"])
def test_every_schedule(name: str, rules: str) -> None:
    virtual = 1 if name in ("gpipe", "1f1b") else 2
    extra = f", virtual = {virtual}" if virtual > 1 else ""
    ranks = 4 if "dp" in rules else 2
    layers = {"model.layers": "4" if "dp" in rules else "5"}  # 5 do not divide over the stages
    plan = planned(f'{rules}\nstages over pp balanced{extra}\nmicrobatches 4\nschedule "{name}"', ranks, **layers)
    pipeline = agrees(plan)
    assert pipeline.schedule == name
    assert pipeline.coordinates == ((0, 1, 1, 0) if name in ("zbv", "dualpipe_v") else tuple(range(2)) * virtual)
    assert set(pipeline.op_stage) == set(range(2 * virtual))


def test_positional_rules_are_over_the_ranks_of_a_stage() -> None:
    plan = planned(
        """
        mesh pp = 2
        stages over pp balanced
        at first: shard ((2, 1), (1, 2))
        microbatches 2
    """,
        8,
    )
    pipeline = agrees(plan)
    assert [(a.name, a.size) for a in pipeline.mesh.axes] == [("pp", 2), ("a", 2), ("b", 2)]


def test_zero_clip_and_ties_within_stages() -> None:
    for level in (1, 2, 3):
        agrees(planned(f"mesh pp = 2, dp = 2\nsplit batch over dp\nzero {level} over dp\nstages over pp balanced\n"
                       "microbatches 2", 4), steps=2)  # fmt: skip


def test_one_microbatch_and_one_stage() -> None:
    assert agrees(planned("mesh pp = 2\nstages over pp balanced", 2)).schedule == "gpipe"
    rules = "mesh pp = 1, dp = 2\nsplit batch over dp\nstages over pp balanced\nmicrobatches 2"
    assert planned(rules, 2).pipeline is None


def test_a_file_of_actions(tmp_path: object) -> None:
    rules = 'mesh pp = 2\nstages over pp balanced\nmicrobatches 2\nschedule "orders.csv"'
    good = "0F0,0F1,,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n"
    bad = {
        "0F0,0F1,0B0,0B1\n": "1 line, and `pp` = 2",
        "0F0,0X1\n1F0\n": "`0X1` is no action",
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n": "microbatch 1 in stage 1 has no backward",
        "0F0,0F1,0B0,0B1,1F0\n1F1,1B1,1B0\n": "stage 1 is on lines 1 and 2",
        "0B0,0F0,0F1,0B1\n1F0,1B0,1F1,1B1\n": "waits for itself",
        "0F0,0F1,0I0,0B1\n1F0,1B0,1F1,1B1\n": "microbatch 0 in stage 0 has no `W`",
        "0F0,0F1,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n": "done 2 times",
        "0F0,0F1,0B0,0B1,0F2\n1F0,1B0,1F1,1B1\n": "no microbatch 2",
        "0F0,0F1,0B0,0B1,2F0\n1F0,1B0,1F1,1B1\n": "no stage 2",
    }
    program, _ = checked(rules)
    assert program is not None
    for text, message in {good: "", **bad}.items():
        sink = Sink()
        given = CheckedProgram(**{**{f: getattr(program, f) for f in program.__dataclass_fields__},
                           "schedules": {"orders.csv": Source("orders.csv", text)}})  # fmt: skip
        plan = driver.plan_program(given, None, 2, sink)
        if not message:
            assert plan is not None and plan.pipeline is not None
            assert agrees(plan).schedule == "orders.csv"
        else:
            assert {d.code for d in sink.found} == {"SH444"}, text
            assert message in sink.found[0].message, [d.message for d in sink.found]


def test_cuts_are_the_best_of_all() -> None:
    """Against every way to cut: the largest part least, then the squares, then the last parts smallest."""
    rng = random.Random(1)
    for turn in range(600):
        size = rng.randint(1, 8)
        weights = [rng.choice((2, 3) if turn % 3 == 0 else (0, 1, 1, 2, 9)) for _ in range(size)]
        count = rng.randint(1, size)
        assert _key(weights, cut(weights, count)) == min(_key(weights, way) for way in _ways(size, count))


def _ways(size: int, count: int) -> Iterator[list[range]]:
    for ends in combinations(range(1, size), count - 1):
        yield [range(a, b) for a, b in pairwise((0, *ends, size))]


def _key(weights: list[int], parts: list[range]) -> tuple[int, int, list[int]]:
    sizes = [sum(weights[i] for i in part) for part in parts]
    return max(sizes), sum(s * s for s in sizes), [len(part) for part in reversed(parts)]


def test_a_model_with_work_beyond_64_bits_is_cut_evenly() -> None:
    """405B: 126 layers and a head in 32 stages."""
    layer, head = 190 * 10**18, 128 * 10**18
    sizes = [len(part) for part in cut([layer] * 126 + [head], 32)]
    assert sorted(sizes) == [3] + [4] * 31


def test_balanced_counts_what_is_dear() -> None:
    plan = planned("mesh pp = 2\nstages over pp balanced", 2, **{"model.layers": "7"})
    at = stages_of(plan)
    first = [i for i in range(7) if at[f"blocks[{i}].return"] == 0]
    assert first == list(range(len(first))) and len(first) in (4, 5)


def test_bubbles_and_what_is_alive() -> None:
    for stages, microbatches in ((2, 4), (4, 8), (4, 4)):
        for name in ("gpipe", "1f1b"):
            made = SCHEDULES[name].make(stages, stages, microbatches)
            expected = (stages - 1) / (microbatches + stages - 1)  # Huang et al., 2019
            assert timeline(made, stages).bubble == pytest.approx(expected)
    alive = most_alive(SCHEDULES["1f1b"].make(4, 4, 8))
    assert alive == {0: 4, 1: 3, 2: 2, 3: 1}
    assert most_alive(SCHEDULES["gpipe"].make(4, 4, 8)) == dict.fromkeys(range(4), 8)
    looped = timeline(SCHEDULES["interleaved_1f1b"].make(8, 4, 8), 8).bubble
    assert looped == pytest.approx(3 / (2 * 8 + 3))  # Narayanan et al., 2021: a part of 1F1B's for each stage more


def test_recomputed_layers_by_call() -> None:
    plan = planned("mesh dp = 2\nsplit batch over dp\nat blocks[1..3]: recompute\nat blocks[2].norm: recompute", 2)
    paths = [[plan.graph.ops[at].path for at in group.ops] for group in plan.recompute]
    firsts = [group[0].partition(":")[0] for group in paths]
    assert firsts[:2] == ["blocks[1].norm.return", "blocks[2].norm.return"] and firsts[2].startswith("blocks[2].up.")
    assert all(p.startswith("blocks[1].") for p in paths[0]) and len(paths[0]) > 6
    assert verify_plan(plan).ok
    program, sink = checked("mesh dp = 2\nsplit batch over dp\nat table: recompute")
    assert program is not None and driver.plan_program(program, None, 2, sink) is None
    assert [d.code for d in sink.found] == ["SH308"]


def test_a_layer_called_twice_is_two_groups() -> None:
    model = MODEL.replace("y = first |> blocks(shift)", "y = first |> blocks(shift) |> blocks(shift)")
    plan = planned("mesh dp = 2\nsplit batch over dp\nat blocks[*]: recompute", 2, model)
    assert len(plan.recompute) == 8
    assert {plan.graph.ops[at].call for group in plan.recompute[4:] for at in group.ops} == {1}
