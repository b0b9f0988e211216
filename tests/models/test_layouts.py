"""Transformers under data, tensor, sequence and context parallelism: what plans move, and that it changes nothing."""

from __future__ import annotations

import pytest

from shardlang.folds.traffic import sent_bytes
from shardlang.graph.graph import GraphValue
from shardlang.plan.plan import Conversion, MoveKind, Plan
from tests.interpret.verify_plan import verify_plan
from tests.models.planned import HERE, plan_of, plan_text

CASES = [
    ("translator", "dp", (1, 2, 16)),
    ("translator", "mp", (2, 4)),
    ("translator", "cp", (2, 8)),
    ("translator", "sp", (4,)),
    ("translator", "mixed", (8,)),
    ("translator", "sharded", (4,)),
    ("gpt2", "dp", (2, 16)),
    ("gpt2", "mp", (2, 4)),
    ("gpt2", "cp", (2, 16)),
    ("gpt2", "sp", (4,)),
    ("gpt2", "mixed", (4, 8, 16)),
    ("llama", "dp", (2, 16)),
    ("llama", "mp", (2, 4)),
    ("llama", "cp", (2, 16)),
    ("llama", "sp", (2, 4)),
    ("llama", "mixed", (4, 8, 16)),
    ("llama", "grouped", (8, 16)),
]
FLAT = [(name, strategy, ranks) for name, strategy, counts in CASES for ranks in counts]


@pytest.mark.parametrize(("name", "strategy", "ranks"), FLAT)
def test_ranks_compute_what_one_does(name: str, strategy: str, ranks: int) -> None:
    report = verify_plan(plan_of(name, strategy, ranks))
    assert report.ok, str(report.difference)
    assert report.largest < 1e-9


def test_post_norm_too() -> None:
    report = verify_plan(plan_of("translator", "mixed", 8, {"model.pre_norm": "false", "model.layers": "1"}))
    assert report.ok, str(report.difference)


def test_padding_is_seen_by_nobody() -> None:
    text = (HERE / "translator.shard").read_text()
    for part in ("Encoder", "Decoder"):
        text = text.replace(f"{part}(layers, d, heads, ffn, dropout, pre_norm)",
                            f"{part}(layers, d, heads, ffn, dropout, pre_norm, padded = true)")  # fmt: skip
    text = text.replace("    memory = src_embed(source) |> encoder\n",
                        "    keep = source > 8\n    memory = src_embed(source) |> encoder(keep)\n")  # fmt: skip
    text = text.replace("decoder(memory)", "decoder(memory, keep)")
    for strategy, ranks in (("mixed", 8), ("cp", 4), ("mp", 2)):
        plan = plan_text(text, strategy, ranks)
        assert sum("keep" in op.attrs.get("given", ()) for op in plan.graph.ops) == 4
        report = verify_plan(plan)
        assert report.ok, str(report.difference)


def logits_of(plan: Plan) -> GraphValue:
    """What the loss is taken of."""
    (loss,) = (op for op in plan.graph.ops if op.operator == "cross_entropy")
    return plan.graph.values[loss.operands[0]]


def moves(plan: Plan, kind: MoveKind | None = None) -> list[Conversion]:
    wanted = [c for c in plan.conversions if kind is None or c.move.kind is kind]
    return [c for c in wanted if plan.graph.values[c.value].type.dims]


@pytest.mark.parametrize(("name", "strategy", "axis"), [
    ("translator", "mp", "mp"), ("translator", "mixed", "tp"), ("gpt2", "mp", "mp"), ("gpt2", "sp", "tp"),
    ("gpt2", "mixed", "tp"), ("llama", "mp", "tp"), ("llama", "sp", "tp"), ("llama", "mixed", "tp"),
])  # fmt: skip
def test_logits_stay_split_by_vocabulary(name: str, strategy: str, axis: str) -> None:
    plan = plan_of(name, strategy, 8 if strategy == "mixed" else 4)
    logits = logits_of(plan)
    assert plan.produced[logits.id].dims[-1] == (axis,)
    assert not [c for c in plan.conversions if c.value == logits.id]
    # The loss reduces a maximum and sums within, of one number an item each, and the table is never whole either.
    loss = next(p for p in plan.ops if plan.graph.ops[p.op].operator == "cross_entropy")
    assert [axes for _, axes, _, _ in loss.inside] == [(axis,)]
    tables = [op.operands[1] for op in plan.graph.ops if op.operator == "embedding" and "pos" not in _table(plan, op)]
    assert all(plan.produced[table].dims[0][:1] == (axis,) for table in tables)
    assert not [c for c in plan.conversions if c.value in tables and "all_gather" in c.move.kind.value]


def _table(plan: Plan, op: object) -> str:
    return plan.graph.values[op.operands[1]].path  # type: ignore[attr-defined]


def test_sequence_parallel_norms_hold_a_part_of_the_sequence() -> None:
    plan = plan_of("llama", "sp", 4)
    norms = [op for op in plan.graph.ops if op.operator == "rms_norm"]
    assert len(norms) == 5
    assert {plan.produced[op.results[0]].dims for op in norms} == {((), ("tp",), ())}
    # Per sublayer one gather before and one reduce-scatter after, as Megatron has it; the embedding's and the head's.
    assert len(moves(plan, MoveKind.S_TO_R)) == 5
    assert len(moves(plan, MoveKind.P_TO_S)) == 5
    assert len(moves(plan)) == 10


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_context_parallel_gathers_keys_and_values_alone(name: str) -> None:
    plan = plan_of(name, "cp", 4)
    gathered = [plan.graph.values[c.value].path for c in moves(plan)]
    assert gathered == [f"blocks[{i}].attention.{what}" for i in range(2) for what in ("keys", "values")]
    (kind,) = {c.move.kind for c in moves(plan)}
    assert kind is MoveKind.S_TO_R


def test_a_tied_head_is_one_parameter_reduced_once() -> None:
    plan = plan_of("gpt2", "mixed", 8)
    (table,) = (v for v in plan.graph.params if plan.graph.values[v].path == "embed.weight")
    assert len([op for op in plan.graph.ops if table in op.operands]) == 2
    assert plan.params[table].reduce_axes == ("dp", "cp")
    assert plan.params[table].stored.dims[0] == ("tp",)


def test_places_are_stored_whole_where_bytes_tie() -> None:
    """Over dp a table of places could lie split by its width and be gathered in every step, for as many bytes as the
    sum of its gradient: that joins the bucket of the others'. Of a table longer than the sequence fewer bytes are sent
    where the gradient of the places that are used is summed before it goes to the table.
    """
    for name, path, axes in (("gpt2", "embed.positions", ("dp",)), ("translator", "src_embed.positions", ())):
        plan = plan_of(name, "dp", 4)
        value = next(v.id for v in plan.graph.values if v.path == path)
        param = plan.params[value]
        assert (param.stored.dims, param.reduce_axes) == (((), ()), axes)
        assert sent_bytes(plan)[0] == 0
