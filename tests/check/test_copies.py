"""Layers of an array are copied of the first one: the graph is the one that checking each by itself gives."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.check.model import copies
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.report import report
from shardlang.graph.graph import Graph
from shardlang.sources.source import Source, Span
from shardlang.types.dim import Dim
from tests.end_to_end.curves import ROOT
from tests.generated import program

# Each of these is something that a copy may get wrong: what is outside or inside, what is made once or by each layer.
# Members; a first statement; what a product with a shared weight reads, and what is returned.
MEMBERS = {
    "a dim of its own": ("dim half = d / 2\n  param w: [d, half] = normal(0.1)", "h = x @ w", "x", "x + mean(h)"),
    "dims from numbers": ("layer up = Linear(d, 6)\n  layer down = Linear(6, d)", "h = up(x)", "x", "down(h)"),
    "a product with a number": ("layer a = Linear(d, 2 * d)\n  layer b = Linear(2 * d, d)", "h = a(x)", "x", "b(h)"),
    "numbers, shared casts": ("param w: [d, e] = ones()", "h = mean(x @ shared)", "x", "0.5 * x + h * sum(x @ w)"),
    "a cast of what goes in": ("param w: [d] = ones()", "h = exp(x) * w", "x", "h"),
    "a cast of what goes out": ("param w: [d] = ones()", "h = exp(x) * w", "h", "h"),
    "layers within, in arrays": ("layer a[2] = Inner()\n  layer b = Inner()", "h = x |> a", "h", "b(h) + a[1](h)"),
    "called twice within": ("layer a = Inner()", "h = a(x)", "shift", "h + a(shift)"),
    "a state": ("state seen: [d] = zeros()", "h = x + seen", "x", "h"),
    "a function": ("param w: [d] = ones()", "h = scaled(x, w)", "x", "scaled(h, w)"),
    "any leading dims": ("layer norm = LayerNorm(d)", "h = norm(x)", "shift", "h + norm(shift)"),
    "nothing": ("state w: [d] = ones()", "h = x * w", "h", "x"),
    "what is outside": ("state w: [d] = ones()", "h = x * w", "h", "shift"),
    "a static `if`": ("if e > 4 {\n    param w: [d] = ones()\n  } else {\n    param v: [d] = ones()\n  }",
                      "h = x * w", "x", "h"),
    "a mistake": ("param w: [e] = ones()", "h = x * w", "x", "h"),
}  # fmt: skip
ALONE = ("a mistake", "what is outside")  # each layer by itself
CALLS = {
    "piped": "x |> blocks(shared, shift)",
    "twice": "x |> blocks(shared, shift) |> blocks(shared, shift)",
    "one before": "blocks[0](x, shared, shift) |> blocks(shared, shift)",
    "each before": "blocks[0](x, shared, shift) |> blocks[1](shared, shift) |> blocks(shared, shift)",
    "from a parameter": "blocks(table, shared, x)",
    "from one and the same": "blocks(x, shared, x)",
    "by name": "blocks(x, shared, shift = x * 2)",
    "with one inside": "(x |> blocks(shared, shift)) + blocks[0].g |> blocks(shared, blocks[1].g)",
    "cast before": "blocks(x, shared, shift) + mean(x @ shared)",
}
TEXT = """
use std.nn: LayerNorm, Linear

dim batch = 4, d = 8, e = 8

fn scaled(a: [..., k], b: [k]) -> [..., k] {{
  return a * b + 1
}}

model Inner {{
  param w: [d, e] = normal(0.1)
  param v: [e, d] = normal(0.1)
  forward(x: [..., d]) -> [..., d] {{
    return relu(x @ w) @ v
  }}
}}

model Block {{
  {members}
  forward(x: [batch, d], shared: [d, e], shift: [batch, d]) -> [batch, d] {{
    {first}
    g = shift + mean({read} @ shared)
    return {returned}
  }}
}}

model Net(count: int = 4) {{
  param shared: [d, e] = normal(0.1)
  param table: [batch, d] = zeros()
  layer blocks[count] = Block()
  layer last = Linear(d, d)
  forward(x: [batch, d]) -> [batch, d] {{
    shift = x + table
    y = {call}
    return last(y) + shift
  }}
}}

train {{
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 1, seed = 1)
  loss = mse_loss(model(x), label) + mean(model.blocks[1].g)
  optimizer = sgd(lr = 0.1)
  precision = {precision}
  steps = 1
}}
"""


def told(graph: Graph) -> Iterator[object]:
    """All of a graph, dims by the order of their appearance with what they are called."""
    numbers: dict[Dim, int] = {}

    def shown(value: object) -> object:
        if isinstance(value, Span):
            return value.source.name, value.start, value.end, [(shown(at), text) for at, text in value.callers]
        if isinstance(value, Dim):
            return numbers.setdefault(value, len(numbers)), value.name, value.size, value.home, value.literal
        return tuple(map(shown, value)) if isinstance(value, tuple) else value

    for value in graph.values:
        yield {name: shown(getattr(value, name)) for name in value.__dataclass_fields__ if name != "type"}
        yield value.type.dtype, shown(value.type.dims)
    for op in graph.ops:
        yield {name: shown(getattr(op, name)) for name in op.__dataclass_fields__ if name != "attrs"}
        yield {name: (v if _has_no_dim(v) else repr(v)) for name, v in op.attrs.items()}
    yield {name: shown(dims) for name, dims in graph.dims.items()}
    yield graph.data, graph.params, graph.states, graph.loss, dict(graph.metrics), graph.producers
    yield list(graph.addresses.items()), graph.declared, shown(graph.batch)
    for call in graph.calls:
        yield {name: shown(getattr(call, name)) for name in call.__dataclass_fields__}


def _has_no_dim(value: object) -> bool:
    """Dims in attributes are those of the model; a copy has those of the first layer."""
    return all(map(_has_no_dim, value)) if isinstance(value, tuple) else not isinstance(value, Dim)


def both(text: str, monkeypatch: pytest.MonkeyPatch, **given: str) -> tuple[bool, int]:
    """Whether the program is sound, and how many calls were copied, after both ways gave the same."""
    found, made = [], [0]
    copied = copies.FirstLayerCall.copied

    def counted(*arguments: object) -> object:
        result = copied(*arguments)  # type: ignore[arg-type]
        made[0] += result is not None
        return result

    monkeypatch.setattr(copies.FirstLayerCall, "copied", counted)
    for way in (True, False):
        monkeypatch.setattr(copies, "COPIED", way)
        sink = Sink()
        checked = driver.check_source(Source("copies.shard", text), sink, given)
        graph = list(told(checked.graph)) if checked is not None else []
        found.append(([(d.code, d.message, str(d.primary and d.primary.span)) for d in sink.found], graph))
    monkeypatch.undo()
    assert found[0] == found[1]
    return bool(found[0][1]), made[0]


@pytest.mark.parametrize("members", MEMBERS)
def test_what_a_copy_may_get_wrong(members: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    inside, first, read, returned = MEMBERS[members]
    for number, call in enumerate(CALLS.values()):
        for precision in ("f32", "bf16") if call == CALLS["twice"] else ("bf16",):
            text = TEXT.format(
                members=inside, first=first, read=read, returned=returned, call=call, precision=precision
            )
            sound, copied = both(text, monkeypatch, **{"model.count": str(2 + number % 4)})
            made += copied
            assert sound == (members != "a mistake"), (call, precision)
    assert bool(made) == (members not in ALONE), made


def test_generated_arrays_of_one_to_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = made = 0
    for seed in range(40):
        rng = random.Random(seed)
        text = program.write(rng).text("", rng.choice(["f32", "bf16"]))
        for array in sorted(re.findall(r"layer \w+\[\d+\]", text)):
            name = array.partition("[")[0]
            asked = re.findall(rf"\b{name.split()[1]}\[(\d+)\]", text.replace(array, ""))
            text = text.replace(array, f"{name}[{rng.randint(1 + max(map(int, asked), default=0), 8)}]")
        here = both(text, monkeypatch)
        sound, made = sound + here[0], made + here[1]
    assert sound == 40 and made > 5, (sound, made)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.shard")), ids=lambda path: path.stem)
def test_examples(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    made = both(text, monkeypatch)[1]
    assert bool(made) == ("blocks[" in text or "Llama" in text or "Transformer(" in text)


@pytest.mark.parametrize(("name", "strategy"), [("transformer", "three_d"), ("llama", "large")])
def test_plans_and_emitted_files(name: str, strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for way in (True, False):
        monkeypatch.setattr(copies, "COPIED", way)
        sink, source = Sink(), Source("copies.shard", (ROOT / "examples" / f"{name}.shard").read_text())
        checked = driver.check_source(source, sink, {"model.layers": "5"} if name == "transformer" else {})
        assert checked is not None
        plan = driver.plan_program(checked, strategy, 8 if name == "transformer" else 512, sink)
        assert plan is not None, [d.message for d in sink.found]
        found.append((json.dumps(report(plan)), driver.emit_plan(plan, sink)))
    assert found[0] == found[1] and found[0][1]


@pytest.mark.parametrize("members", ["dims from numbers", "a product with a number", "a dim of its own"])
def test_a_thousand_layers_with_dims_of_numbers_are_told_once(members: str) -> None:
    inside, first, read, returned = MEMBERS[members]
    text = TEXT.format(members=inside, first=first, read=read, returned=returned, call=CALLS["piped"], precision="bf16")
    programs = [
        driver.check_source(Source("copies.shard", text), Sink(), {"model.count": count}, runs={})
        for count in ("10", "1000")
    ]
    few, many = (len(checked.graph.ops) for checked in programs if checked is not None)
    assert few == many
