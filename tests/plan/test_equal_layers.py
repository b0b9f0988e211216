"""Runs of equal layers that a graph tells once come out as files of the same bytes, and as the same page of `shardc
plan`, as every layer by itself does, on generated models with arrays of 1 to 20 layers; what asks for single layers of
a run gets them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pytest

from shardlang import driver
from shardlang.cli.plan_view.program import Detail, lines
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.report import report
from shardlang.paths.patterns import Cuts, SingleLayers
from shardlang.plan.layouts.equal_layers import EqualLayers
from shardlang.sources.source import Source
from shardlang.views.diff import difference

# What a line of a layer does with the value of the one before.
LINES = (
    "gelu(V)", "rms_norm(V, scale, over = d)", "V * scale", "dropout(V, 0.1)", "V + relu(V @ up) @ down", "V / 2",
    "softmax(V, d) + V", "V + beside", "V + beside * scale", "inner(V)", "V + inner(V)", "detach(V) + V",
    "V |> pair",
)  # fmt: skip
LAST = ("b", "a + b", "b + beside", "a + rms_norm(b, scale, over = d)")
PROGRAM = """
dim batch = 16, d = 8, wide = 32

model Inner {
  param own: [d] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    return x * own + x
  }
}

model Block {
  param up: [d, wide] = normal(0.1)
  param down: [wide, d] = normal(0.1)
  param scale: [d] = ones()
  param shift: [d] = zeros()
  STATES
  layer inner = Inner()
  layer pair[NESTED] = Inner()

  forward(x: [batch, d], beside: [batch, d]) -> [batch, d] {
    v0 = x * scale + shift + beside * 0.1
    w = NORM |> pair |> inner
    BODY
    return RESULT + w
  }
}

model Deep {
  param first: [d, wide] = normal(0.1)
  param last: [wide, d] = normal(0.1)
  param scale: [d] = ones()
  layer blocks[COUNT] = Block()
  layer others[OTHERS] = Block()

  forward(x: [batch, d]) -> [batch, d] {
    beside = x @ first @ last
    a = x |> blocks(beside)
    b = a |> others(BESIDE)
    return (LAST) @ first @ last * scale
  }
}

strategy s {
  RULES
}

DEVICE

train {
  model = Deep()
  data = random(x: [batch, d], label: [batch, d], batches = 2)
  eval = random(x: [batch, d], label: [batch, d], batches = 1)
  loss = mse_loss(model(x), label)
  OPTIMIZER
  precision = PRECISION
  steps = 2
}
"""
MESHES = (
    "mesh dp = 4\n  split batch over dp", "mesh dp = 2, tp = 2\n  split batch over dp\n  split wide over tp",
    "mesh dp = 2, tp = 2\n  split batch over dp\n  split d over tp",
    "mesh tp = 4\n  split wide over tp\n  split d over tp?",
    "mesh dp = 2, tp = 2\n  split batch over dp\n  at **.up: [d, wide@tp]",
    "mesh pp = 2, dp = 2\n  split batch over dp\n  stages over pp balanced",
    'mesh pp = 2, dp = 2\n  split batch over dp\n  stages over pp balanced\n  schedule "zero_bubble"',
    "mesh pp = 2, dp = auto\n  split batch over dp\n  stages over pp balanced, virtual = 2\n  microbatches 4",
    "mesh pp = 2, dp = 2\n  split batch over dp\n"
    "  stages over pp {\n    0: blocks[0..2]\n    1: blocks[2..COUNT], others\n  }",
)  # fmt: skip
SPEEDS = "compute = 90TFLOP/s\n  compute_f32 = 20TFLOP/s\n  bandwidth = 1TB/s\n  link = 100GB/s\n  latency = 5us"
DEVICES = (
    "", "device small {\n  memory = 1GB\n}", f"device large {{\n  memory = 20GB\n  reserved = 100MB\n  {SPEEDS}\n}}",
)  # fmt: skip
RULES = (
    "", "zero 1 over AXIS", "zero 2 over AXIS", "zero 3 over AXIS", "zero 3 over AXIS, keep", "microbatches 2",
    "bucket gradients 2KB", "at blocks[*]: recompute", "at blocks[*], others[*]: recompute all but products",
    "at **.inner: recompute", "at blocks[1]: recompute", "strict",
)  # fmt: skip
OPTIMIZERS = (
    "optimizer = adamw(lr = 1e-3)", "optimizer = sgd(lr = 0.1)\n  optimizer at **.scale, **.own = adamw(lr = 1e-3)",
    "optimizer = adamw(lr = 1e-3)\n  freeze at blocks[*].inner",
)  # fmt: skip


def filled(parts: Mapping[str, str], text: str = PROGRAM) -> str:
    for name, value in parts.items():
        text = text.replace(name, value)
    return text


def written(seed: int) -> str:
    rng = random.Random(seed)
    drawn = [*rng.sample(LINES, rng.randint(1, 4)), "V @ up @ down"]
    body = [f"v{at + 1} = {line.replace('V', f'v{at}')}" for at, line in enumerate(drawn)]
    mesh = rng.choice(MESHES)
    rules = {rule.partition(" ")[0]: rule for rule in rng.sample(RULES, 2)}
    rules = {name: rule for name, rule in rules.items() if name not in mesh}
    moved = rng.random() < 0.3 and "microbatches" not in rules and "stages" not in mesh
    return filled({
        "RULES": "\n  ".join([mesh, *rules.values()]).replace("AXIS", "dp" if "dp" in mesh else "tp"),
        "pair[NESTED]": "pair" if "stages" in mesh else "pair[NESTED]",
        "STATES": "state mean: [d] = zeros()\n  state var: [d] = ones()" if moved else "",
        "NORM": "batch_norm(v0, mean, var, scale, shift)" if moved else "relu(v0)",
        "BODY": "\n    ".join(body), "RESULT": f"v{len(drawn)}", "LAST": rng.choice(LAST),
        "COUNT": str(rng.choice((3, 8, 9, 12, 20))), "OTHERS": str(rng.choice((1, 7, 8, 10))),
        "NESTED": str(rng.choice((1, 2, 2, 9))), "BESIDE": rng.choice(("beside", "a")),
        "DEVICE": rng.choice(DEVICES),
        "PRECISION": rng.choice(("f32", "bf16", "bf16(stream = bf16)")), "OPTIMIZER": rng.choice(OPTIMIZERS),
    })  # fmt: skip


PLAIN = """
strategy t {
  mesh dp = auto
  split batch over dp
  zero 2 over dp
}
"""


def files(text: str, runs: Cuts | None, sink: Sink, ranks: int = 4) -> Mapping[str, str] | None:
    """The emitted files, as `driver.compile_source` makes them; of a program with runs if there are any."""
    program = driver.check_source(Source("deep.shard", text), sink, runs=runs)
    if runs is not None and program is not None and not program.graph.in_runs:
        raise SingleLayers
    plan = driver.plan_program(program, None, ranks, sink) if program is not None else None
    return driver.emit_plan(plan, sink) if plan is not None else None


def shown(text: str, runs: Cuts | None, sink: Sink, ranks: int = 4) -> tuple[object, ...]:
    """The pages of `shardc plan` and of `shardc report`, what `shardc plan --json` tells, and what `shardc diff` does
    beside data parallelism."""
    program = driver.check_source(Source("deep.shard", text + PLAIN), sink, runs=runs)
    plans = [driver.plan_program(program, name, ranks, sink, Sink()) if program is not None else None for name in "st"]
    if plans[0] is None or plans[1] is None:
        return ()
    page = "\n".join(line.text for line in lines(report(plans[0]), 100, Detail(), False))
    seen = [driver.seen_plan(plan, sink) for plan in plans if plan is not None]
    return page, driver.page_of_plans(plans[:1], sink), [dict(each.found) for each in seen], difference(*seen)


def told_in_runs(text: str, sink: Sink, ranks: int = 4) -> tuple[Mapping[str, str] | None, Cuts | None]:
    """The emitted files with runs, and where these were cut; (None, None) where only single layers do."""
    ways = list[Cuts | None]()

    def work(runs: Cuts | None, sink: Sink) -> Mapping[str, str] | None:
        ways.append(runs)
        return files(text, runs, sink, ranks) if runs is not None else None

    return driver.in_runs(work, sink), ways[-1]


def judged(text: str) -> str:
    sink, attempt = Sink(), Sink()
    each = files(text, None, sink)
    told, cuts = told_in_runs(text, attempt)
    if cuts is None:
        return "single layers"
    if sink.found or attempt.found:
        assert attempt.found, [d.message for d in sink.found]  # else a mistake would be missed
        assert all(d.code < "SH460" for d in sink.found)  # no fault of ours
        return "reported"
    assert told == each
    assert driver.in_runs(partial(shown, text), Sink()) == shown(text, None, Sink())
    return "runs"


@pytest.mark.parametrize("first", [0, 40])
def test_runs_are_the_layers_one_by_one(first: int) -> None:
    found = Counter(
        (judged(text), "stages" in text, "device" in text) for text in map(written, range(first, first + 20))
    )
    assert found.keys() >= {("runs", True, True), ("runs", False, True)}, found
    assert sum(times for (told, *_), times in found.items() if told == "runs") >= 8, found


LLAMA = """
use std.llama: Llama

dim batch = 8, seq = 16, vocab = 64

model Chosen(layers: int) {
  layer of = Llama(vocab, d = 32, heads = 4, kv_heads = 2, ffn = 64, layers = layers)

  forward(x: i64[batch, seq]) -> [batch, seq, vocab] {
    y = of(x)
    MORE
    return y
  }
}

strategy s {
  mesh dp = 2, tp = 2
  split batch over dp
  split of.heads, of.kv_heads, of.ffn, vocab over tp
  RULE
}

train {
  model = Chosen(layers = LAYERS)
  data = random(x: i64[batch, seq] < 64, label: i64[batch, seq] < 64, batches = 1)
  loss = cross_entropy(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""
# What asks for single layers, or for how many there are, and where the runs of 20 layers are cut for that; None: every
# layer is told.
NINTH, HALF = {"of.blocks": frozenset((9, 10))}, {"of.blocks": frozenset((10,))}
ASKING: Mapping[str, tuple[Mapping[str, str], Cuts | None]] = {
    "nothing": ({}, {}),
    "a rule": ({"RULE": "at of.blocks[9]: recompute"}, NINTH),
    "a range": ({"RULE": "at of.blocks[4..9]: recompute"}, {"of.blocks": frozenset((4, 9))}),
    "stages": ({"mesh dp": "mesh pp = 2, dp", "RULE": "stages over pp balanced"}, HALF),
    "stages by name": (
        {"mesh dp": "mesh pp = 2, dp",
         "RULE": "stages over pp {\n    0: of.blocks[0..10]\n    1: of.blocks[10..20], of.norm, of.head\n  }"},
        {"of.blocks": frozenset((0, 10))},
    ),
    "a freeze": ({"steps = 1": "steps = 1\n  freeze at of.blocks[9]"}, NINTH),
    "an optimizer": ({"steps = 1": "steps = 1\n  optimizer at of.blocks[9] = sgd(lr = 0.2)"}, NINTH),
    "a pin": ({"RULE": "at of.blocks[9].mlp.up.weight: [ffn, d]"}, NINTH),
    "a name map": (
        {"of.": "", "Chosen(layers = 20)": "Llama(vocab, d = 32, heads = 4, kv_heads = 2, ffn = 64, layers = 20)",
         "steps = 1": 'steps = 1\n  init = safetensors("llama.safetensors", names = "std.llama")'},
        None,
    ),
    "memory": ({"train {": "device small {\n  memory = 1GB\n}\n\ntrain {"}, {}),
    "memory of casts": (
        {"train {": "device small {\n  memory = 1GB\n}\n\ntrain {", "steps = 1": "steps = 1\n  precision = bf16",
         "mesh dp": "mesh pp = 2, dp", "RULE": "stages over pp balanced\n  split seq over tp?"},
        HALF,
    ),
    "a layer that is named": ({"MORE": "z = of.blocks[9]"}, None),  # which is reported: nothing uses it
}  # fmt: skip


@pytest.mark.parametrize("asking", ASKING)
def test_what_asks_for_single_layers_gets_them(asking: str) -> None:
    parts, where = ASKING[asking]
    text = filled({"RULE": "", "MORE": "", "LAYERS": "20", **parts}, LLAMA)
    sink, ranks = Sink(), 8 if "pp" in str(parts) else 4
    each = files(text, None, Sink(), ranks)
    assert driver.compile_source(Source("deep.shard", text), ranks, sink) == each
    assert asking == "a layer that is named" or (each and not sink.found), [d.message for d in sink.found]
    told, cuts = told_in_runs(text, Sink(), ranks)
    assert cuts == where and (cuts is None or told == each)
    page = partial(shown, text, ranks=ranks)
    assert cuts is None or driver.in_runs(page, Sink()) == page(None, Sink())


@pytest.mark.parametrize("layers", [12, 126])
def test_a_plan_has_as_many_operators_as_there_are_different_layers(layers: int) -> None:
    sink, text = Sink(), LLAMA.replace("RULE", "").replace("MORE", "").replace("LAYERS", str(layers))
    program = driver.check_source(Source("deep.shard", text), sink, runs={})
    assert program is not None
    few = driver.check_source(Source("deep.shard", text.replace(f"= {layers})", "= 5)")), sink)
    assert few is not None and len(program.graph.ops) == len(few.graph.ops)
    assert program.graph.in_runs and not few.graph.in_runs


def test_too_many_layers_are_told_as_ever() -> None:
    text = LLAMA.replace("RULE", "").replace("MORE", "").replace("LAYERS", "1000")
    sink, told = Sink(), Sink()
    assert driver.compile_source(Source("deep.shard", text), 4, sink) is None
    assert files(text, None, told) is None
    assert [(d.code, d.message) for d in sink.found] == [(d.code, d.message) for d in told.found]
    assert sink.found[0].code == "SH217"


def test_a_run_is_like_the_layers_beside_it() -> None:
    text = LLAMA.replace("RULE", "").replace("MORE", "").replace("LAYERS", "20")
    program = driver.check_source(Source("deep.shard", text), Sink(), runs={})
    assert program is not None
    layers, ops = EqualLayers(program.graph), program.graph.ops
    ((last, run),) = layers.runs.items()
    assert run.times == 16 and run.ops[-1][0] == last
    for at, before, after in run.ops:
        assert [ops[i].path.replace(f"[{n}]", "[2-18]") for i, n in ((before, 1), (after, 18))] == [ops[at].path] * 2
    alike: list[object] = ["the same"] * len(ops)
    layers.same(alike)
    layers.outside([run.ops[0][1], run.ops[0][2]])
    for other in run.ops[3]:
        with pytest.raises(SingleLayers):
            layers.same([*alike[:other], "another", *alike[other + 1 :]])
    with pytest.raises(SingleLayers):
        layers.outside([last])


def test_each_layer_reads_what_is_made_outside() -> None:
    program = driver.check_source(Source("deep.shard", written(0).replace("COUNT", "20")), Sink(), runs={})
    assert program is not None and program.graph.in_runs
    layers, graph = EqualLayers(program.graph), program.graph
    read = {graph.values[graph.ops[op].operands[at]].path.partition(":")[0] for op, at in layers.shared}
    assert read <= {"beside", "a", "0.1"} and "beside" in read


def test_another_strategy_than_the_program_was_checked_for_may_cut_stages() -> None:
    staged = "strategy t {\n  mesh pp = 2, dp = 2\n  split batch over dp\n  stages over pp balanced\n}\n\ntrain {"
    text = LLAMA.replace("RULE", "").replace("MORE", "").replace("LAYERS", "20").replace("train {", staged)
    program = driver.check_source(Source("deep.shard", text), Sink(), runs={})
    assert program is not None and driver.plan_program(program, "s", 4, Sink()) is not None
    with pytest.raises(SingleLayers) as asked:
        driver.plan_program(program, "t", 4, Sink())
    assert asked.value.cuts == HALF
    told = program.in_runs(lambda cut: driver.plan_program(cut, "t", 4, Sink()))
    assert told is not None and told.graph.in_runs and len(told.graph.ops) > len(program.graph.ops)


def test_a_program_is_the_same_however_often_it_is_checked() -> None:
    source = Source("deep.shard", filled({"RULE": "", "MORE": "", "LAYERS": "20"}, LLAMA))
    one, other = (driver.check_source(source, Sink()) for _ in range(2))
    assert one is not None and other is not None and one.told is not None
    assert replace(one, told=None) == one == replace(one, told=other.told)


def test_what_does_not_fit_is_told_without_each_layer() -> None:
    small = "device small {\n  memory = 150kB\n}\n\ntrain {"
    text = LLAMA.replace("RULE", "").replace("MORE", "").replace("LAYERS", "20").replace("train {", small)
    each, told, seen = Sink(), Sink(), list[Cuts | None]()
    assert files(text, None, each) is None and [d.code for d in each.found] == ["SH450"]

    def work(runs: Cuts | None, sink: Sink) -> None:
        seen.append(runs)
        files(text, runs, sink)

    driver.in_runs(work, told)
    assert seen == [{}]
    assert [(d.message, d.notes, d.help) for d in told.found] == [(d.message, d.notes, d.help) for d in each.found]
