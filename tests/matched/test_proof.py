"""The proof of communication finds what is wrong in one of the two sequences, and names both lines."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.emit.emit import Emission, emission, files_of
from shardlang.facts.actions import listed as actions
from shardlang.matched.lines import ActionRow, AxisGroup, Line, Local, Uneven
from shardlang.matched.proof import prove
from shardlang.matched.shapes import disagreement
from shardlang.matched.stages import prove_order, prove_types
from shardlang.matched.ties import Joint, prove_ties
from tests.emit.sources import planned
from tests.end_to_end.curves import ROOT
from tests.generated.pairs import legal

MODEL = (ROOT / "examples/transformer.shard").read_text()


def proved(made: Emission, files: Mapping[str, str]) -> list[Diagnostic]:
    sink = Sink()
    prove(made, files, sink)
    return sink.found


def transformer(strategy: str = "model_parallel") -> Emission:
    return emission(planned(MODEL, 8, strategy, "transformer.shard"))


# What becomes of a line of the text, and what the plan has there.
FAULTS = {
    "dropped": ("    x_gathered = rt.all_gather_replicated(x, 1, mesh.mp) ", "    x_gathered = x ", "the text"),
    "another axis": ("(out_pending, 1, mesh.mp)", '(out_pending, 1, mesh.dp)', "over dp"),
    "another dim": ("(out_pending, 1, mesh.mp)", "(out_pending, 2, mesh.mp)", "along 2"),
    "another kind": ("rt.reduce_scatter(out_pending, 1, mesh.mp)", "rt.all_reduce(out_pending, mesh.mp)",
                     "the text all_reduce of"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_text_is_named_with_both_lines(fault: str) -> None:
    made = transformer("three_d")
    before, after, said = FAULTS[fault]
    files = dict(files_of(made))
    assert proved(made, files) == [] and before in files["stage0.py"]
    files["stage0.py"] = files["stage0.py"].replace(before, after, 1)
    found = proved(made, files)
    assert {d.code for d in found} == {"SH460"} and said in found[0].message
    assert found[0].primary is not None and found[0].primary.span.source.name in ("std.nn", "std.transformer")
    assert "stage0.py" in [label.span.source.name for label in found[0].labels]


def test_layers_that_a_loop_leaves_out() -> None:
    made = transformer()
    files = {"main.py": files_of(made)["main.py"].replace("in p.encoder.blocks:", "in p.encoder.blocks[1:]:")}
    (found,) = proved(made, files)
    assert "the plan has 6 layers in a row, the text 5" in found.message


MP = AxisGroup(0, ("mp",))


@pytest.mark.parametrize(("line", "said"), [
    (Line("all_reduce", MP, (), Local("f32", (4, 8)), Local("f32", (4, 8))), ""),
    (Line("all_reduce", MP, (), Local("f32", (Uneven((3, 2), MP), 8)), Local("f32", (Uneven((3, 2), MP), 8))),
     "ranks of the group have parts of dim 0 of other sizes"),
    (Line("all_gather", MP, (0,), Local("f32", (Uneven((3, 2), MP),)), Local("f32", (5,)), ((3, 2),)), ""),
    (Line("all_gather", MP, (0,), Local("f32", (Uneven((3, 2), MP),)), Local("f32", (5,)), ((2, 3),)),
     "ranks have other parts of dim 0 than (2, 3)"),
    (Line("all_gather", MP, (0,), Local("f32", (Uneven((3, 2), MP),)), Local("f32", (6,)), ((3, 2, 1),)),
     "dim 0 has 3 parts, and the group 2 ranks"),
    (Line("reduce_scatter", MP, (0,), Local("f32", (5,)), Local("f32", (2,))), "dim 0 of 5 does not divide by 2"),
    (Line("reduce_scatter", MP, (1,), Local("f32", (4, 8)), Local("f32", (2, 8))),
     "it makes f32[4, 4], and f32[2, 8] is expected"),
    (Line("all_to_all", MP, (0, 1), Local("f32", (4, 8)), Local("f32", (8, 4))), ""),
])  # fmt: skip
def test_ranks_of_a_group_give_and_get_alike(line: Line, said: str) -> None:
    assert disagreement(line, 2).startswith(said) and bool(said) == bool(disagreement(line, 2))


@pytest.mark.parametrize("seed", [*range(16), 552, 5064])
def test_generated_plans_are_proved(seed: int) -> None:
    pair = legal(seed)
    if pair is not None:
        made = emission(pair)
        assert proved(made, files_of(made)) == []


# A layer gives `y` in two layouts, and what reads one of them (argmax) has no gradient.
ONE_WITHOUT_GRADIENT = """use std.nn: Linear, MLP

dim seq = 2, width = 8, hidden = 12, other = 8, batch = 6

model Net {
  layer fc = Linear(width, other)
  layer mlp = MLP(width, 2 * width)

  forward(x: [batch, seq, hidden, width]) -> [batch, seq, hidden, width] {
    y = fc(x)
    most = argmax(y, over = seq)
    one = cast(one_hot(most, seq), f32)
    picked = einsum(y, one -> [batch, hidden, other])
    z = mlp(x)
    return where(z < 0 and x < 0.3, sin(x), tanh(z))
  }
}

strategy s {
  at picked: shard ((2, 2, 2, 1), (2, 2, 1, 2))
  at most: shard ((1, 1, 2, 2)) -> ((1, 1, 2))
}

train {
  model = Net()
  data = random(x: [batch, seq, hidden, width], batches = 2)
  loss = mean(square(model(x))) + mean(square(model.picked))
  optimizer = adamw(lr = 1e-2, eps = 1e-4)
  eval = random(x: [batch, seq, hidden, width], batches = 2, seed = 3)
  precision = bf16
  steps = 3
}
"""


def test_a_layer_may_give_what_no_gradient_comes_back_to() -> None:
    """In functions of the text as in the plan."""
    made = emission(planned(ONE_WITHOUT_GRADIENT, 8, "s"))
    files = dict(files_of(made))
    assert proved(made, files) == []
    # Where what the loss reads is exchanged otherwise, it is still seen.
    before, after = "rt.all_to_all(out, 3, 2, mesh.c)", "rt.all_to_all(out, 3, 2, mesh.b)"
    assert before in files["main.py"]
    assert proved(made, {"main.py": files["main.py"].replace(before, after)})


# A layer that is computed again learns from `y` as parts of a sum, and compares their sum.
COMPARED_AGAIN = """use std.nn: Linear

dim width = 4, other = 8, batch = 6

model Gate {
  forward(y: [batch, other]) -> [batch, other] {
    scaled = y * (0.5 + cast(y > 0.1, f32))
    return scaled
  }
}

model Net {
  layer fc = Linear(width, other, bias = false)
  layer gate = Gate()

  forward(x: [batch, width]) -> [batch, other] {
    return gate(fc(x))
  }
}

strategy s {
  mesh mp = 2
  split width over mp
  at gate.scaled: [batch, other] +mp
  at gate: recompute
}

train {
  model = Net()
  data = random(x: [batch, width], batches = 2)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 1e-2)
  steps = 2
}
"""


def test_a_layer_that_is_computed_again_may_be_given_what_it_reads_no_gradient_of() -> None:
    made = emission(planned(COMPARED_AGAIN, 2, "s"))
    files = dict(files_of(made))
    assert "rt.recompute(gate, fc_out, fc_out_pending)" in files["main.py"]
    assert proved(made, files) == []


# The next stage compares `limit`, and compares alone.
SENT_WITHOUT_GRADIENT = """use std.nn: Linear

dim batch = 8, d = 4

model Net {
  layer up = Linear(d, d)
  layer down = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    h = up(x)
    limit = tanh(h)
    y = down(h)
    z = where(y > limit, h, y)
    return z
  }
}

strategy s {
  mesh pp = 2, a = 2
  stages over pp balanced
  microbatches 2
  at z: [batch@a, d]
}

train {
  model = Net()
  data = random(x: [batch, d], batches = 2)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""
# The second loss trains `fc` alone: what the layer reads is detached within it.
GIVEN_WITHOUT_GRADIENT = """use std.nn: Linear

dim seq = 5, width = 8, hidden = 8, batch = 8, vocab = 16

model Net {
  param t1: [vocab, width] = normal(0.5)
  param p2: [seq, width] = xavier_uniform(4, 6)
  layer fc4 = Linear(width, hidden)
  param t10: [seq, hidden] = normal(0.5)

  forward(ids: i64[batch, seq]) {
    v3 = embedding(ids, t1) + p2
    v5 = fc4(v3)
    v6 = rearrange(ids -> [batch, seq, 1])
    v7 = tanh(v5 * (maximum(v6, 2) / 3))
    v11 = tanh(v7 + embedding(arange(seq), t10))
    return v11
  }
}

strategy s {
  mesh b = 4, c = 2, cp = 2
  split hidden over b
  split batch over b?
  at v3: [batch, seq, width@(b)]
  at train.loss[0]: shard ((2, 1, 8), (2, 1, 8))
}

train {
  model = Net()
  data = random(ids: i64[batch, seq] < vocab, target: [batch, seq, hidden])
  eval = random(ids: i64[batch, seq] < vocab, target: [batch, seq, hidden], batches = 2, seed = 3)
  out = model(ids)
  loss = mse_loss(out, target)
  loss at t10, fc4 = 0.5 * (mse_loss(out, target))
  metric m0 = 1 / (3 + mean(square(out)))
  optimizer = sgd(lr = 0.1, momentum = 0.9)
  precision = f64
  steps = 3
}
"""


@pytest.mark.parametrize(("text", "ranks"), [(SENT_WITHOUT_GRADIENT, 4), (GIVEN_WITHOUT_GRADIENT, 16)])
def test_a_function_may_be_given_what_no_gradient_comes_back_to(text: str, ranks: int) -> None:
    """As a stage may send it."""
    made = emission(planned(text, ranks, "s"))
    assert proved(made, files_of(made)) == []


PP = AxisGroup(0, ("pp",))


def rows(*listed: str) -> list[ActionRow]:
    return [ActionRow(actions(row)) for row in listed]


VALUE = Local("f32", (4, 8))
CHAIN = [
    (Line("send `y`", PP, (), VALUE),),
    (Line("receive `y`", PP, (), VALUE, gradient=True), Line("send `z`", PP, (), VALUE)),
    (Line("receive `z`", PP, (), VALUE, gradient=True),),
]


@pytest.mark.parametrize(("schedule", "said"), [
    (["0F0 0B0", "1F0 1B0", "2F0 2B0"], ""),
    (["0F0 2F0 2B0 0B0", "1F0 1B0"], ""),
    (["2F0 0F0 2B0 0B0", "1F0 1B0"], "`2F0` waits for ever for a message which `1F0` sends, that waits itself"),
    (["0F0 0B0", "1F0 1B0", "2F0"], "`0B0` waits for ever for a message which `1B0` sends, that waits itself"),
    (["0F0", "1F0 1B0", "2F0 2B0"], "nothing receives the message that `1B0` sends"),
    (["0F0 0F1 0B0", "1F0 1B0", "2F0 2B0"], "nothing receives the message that `0F1` sends"),
])  # fmt: skip
def test_stages_come_to_their_end(schedule: list[str], said: str) -> None:
    sink = Sink()
    prove_order(CHAIN, rows(*schedule), sink)
    assert [d.message for d in sink.found][:1] == ([said] if said else [])
    assert not sink.found or {d.code for d in sink.found} == {"SH464"}


def test_values_between_stages_are_of_one_type() -> None:
    sink, wide = Sink(), Local("f32", (4, 16))
    prove_types([*CHAIN[:2], (Line("receive `z`", PP, (), wide),)], sink)
    assert [d.code for d in sink.found] == ["SH463"] and "receive `z` of f32[4, 16]" in sink.found[0].message
    prove_types(CHAIN, sink)
    assert len(sink.found) == 1


def test_coordinates_that_sum_otherwise() -> None:
    line = Line("the gradient", AxisGroup(0, ()))
    both, each = Joint((0, 1), AxisGroup(0, ()), (8, 8), line), Joint((0, 1), AxisGroup(0, ()), (8,), line)
    sink = Sink()
    prove_ties([[both], [both]], sink)
    prove_ties([[each, both], [each, both], []], sink)
    assert sink.found == []
    prove_ties([[both], [each, each]], sink)
    assert [d.code for d in sink.found] == ["SH462"]
    assert (
        "0 sums 16 elements of 2 parameters, and coordinate 1 sums 8 elements of 1 parameter" in sink.found[0].message
    )
