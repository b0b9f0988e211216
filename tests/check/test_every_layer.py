"""`blocks[*]`: the values of every layer of an array are one value, with a dim of the array's name before theirs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.format.format import format_file
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse
from tests.check.checked import Checked, checked

TEXT = """
use std.nn: Linear

dim batch = 8, d = 16

model Inner {
  layer up = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    y = up(x)
    extra = mean(square(y))
    return y
  }
}

model Block {
  layer parts[2] = Inner()

  forward(x: [batch, d]) -> [batch, d] {
    h = x |> parts
    low = amin(parts[*].extra)
    return h * WEIGHED
  }
}

model Net {
  layer blocks[COUNT] = Block()
  layer last = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    return x |> blocks |> last
  }
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 4)
  out = model(x)
  loss = mse_loss(out, label)
  LINES
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def of(lines: str, count: int = 3, weighed: str = "low") -> Checked:
    words: Mapping[str, str] = {"LINES": lines, "COUNT": str(count), "WEIGHED": weighed}
    text = TEXT
    for word, put in words.items():
        text = text.replace(word, put)
    return checked(text)


@pytest.mark.parametrize(("value", "over", "shown"), [
    ("model.blocks[*].low", "blocks", "f32[]"),
    ("model.blocks[*].h", "blocks", "f32[batch, d]"),
    ("model.blocks[*].parts[1].extra", "blocks", "f32[]"),
    ("model.blocks[0].parts[*].extra", "parts", "f32[]"),
    ("model.blocks[*].parts[*].extra", "parts", "f32[3]"),
    ("model.blocks[*].parts[*].extra", "blocks", "f32[2]"),
    ("model.blocks[*].parts[0].up.weight", "blocks", None),
])  # fmt: skip
def test_its_dim_has_the_name_of_the_array(value: str, over: str, shown: str | None) -> None:
    found = of(f"metric m = sum(sum({value}, over = {over}))")
    if shown is None:  # the dims of weights are those of their layer
        assert found.messages == []
    else:
        assert str(found.value("train.metric:m").type) == "f32[]"
        (total,) = found.op("train.metric:m").operands
        assert str(found.graph.values[total].type) == shown


@pytest.mark.parametrize("count", [1, 2, 5])
def test_it_is_what_stack_makes_of_each(count: int) -> None:
    listed = ", ".join(f"model.blocks[{at}].low" for at in range(count))
    ours = of("metric m = sum(model.blocks[*].low)", count).graph.ops
    theirs = of(f"metric m = sum(stack({listed}, over = {count}))", count).graph.ops
    assert [(op.operator, op.operands) for op in ours] == [(op.operator, op.operands) for op in theirs]


@pytest.mark.parametrize(("line", "message", "help"), [
    ("metric m = sum(model.blocks[*])",
     "SH216: an operand must be a tensor or a number, and this is every layer of an array", ""),
    ("metric m = sum(model.blocks[*].lov)", "SH200: `blocks[0]` has no `lov`", "did you mean `low`?"),
    ("metric m = model.blocks[*].low", "SH232: metric `m` must be one number, and this is f32[3]",
     "add up what the layers have: `sum(model.blocks[*].low)`"),
    ("metric m = sum(model.last[*].weight)", "SH214: `model.last` is a layer and has no index", ""),
    ("metric m = sum(model.blocks[*].parts[2].extra)",
     "SH215: `blocks[0].parts` has 2 layers, and this asks for 2", ""),
    ("out2 = out |> model.blocks[*]", "SH214: `model.blocks[*]` is every layer of an array and cannot be called",
     "write `x |> model.blocks`, which calls one layer after the other"),
])  # fmt: skip
def test_mistakes_are_told_once(line: str, message: str, help: str) -> None:
    found = of(line)
    assert found.messages == [message]
    assert found.found[0].help == ((help,) if help else ())


def test_dims_of_the_layers_own_are_said_to_be_so() -> None:
    own = "dim wide = 4\n  layer up = Linear(d, wide)\n  layer down = Linear(wide, d)"
    text = TEXT.replace("layer up = Linear(d, d)", own).replace("y = up(x)", "inner = up(x)\n    y = down(inner)")
    text = text.replace("WEIGHED", "low").replace("COUNT", "2")
    found = checked(text.replace("LINES", "metric m = sum(model.blocks[0].parts[*].inner)"))
    first, second = "`model.blocks[0].parts[0].inner`", "`model.blocks[0].parts[1].inner`"
    told = f"SH292: `stack` needs all dims alike: {first} is f32[batch, wide], {second} is f32[batch, wide]"
    assert found.messages == [told]
    assert "declare it in the file" in found.found[0].help[0]


@pytest.mark.parametrize("line", ["loss = sum(model.blocks [ * ].extra)+1", "loss = sum(model.blocks[*].extra) + 1"])
def test_a_line_with_it_has_one_form(line: str) -> None:
    file = parse(Source("p.shard", f"train {{\n  {line}\n}}\n"), Sink())
    assert format_file(file) == "train {\n  loss = sum(model.blocks[*].extra) + 1\n}\n"
