"""Layers and parameters further down than one layer: their dims are those of who names them, at any distance."""

from __future__ import annotations

import pytest

from shardlang.types.dim import term_text
from tests.check.checked import checked

SIZES = "dim batch = 4, seq = 6, d = 8, vocab = 101\n"
DECLARED = """
model Table(rows: dim, width: dim) {
  param weight: [rows, width] = normal(0.02)
  param gain: [4] = ones()

  forward(ids: i64[...]) -> [..., width] {
    found = embedding(ids, weight)
    return found * sum(gain)
  }
}

model Inner(width: dim, rows: dim) {
  layer tables[2] = Table(rows, width)
  layer other = Table(rows, width)

  forward(ids: i64[b, s]) -> [b, s, width] {
    return tables[0](ids) + tables[1](ids) + other(ids)
  }
}
"""
NET = """
model Middle(width: dim, rows: dim) {
  layer inner = Inner(width, rows)

  forward(ids: i64[batch, seq]) -> [batch, seq, width] {
    return inner(ids)
  }
}

model Net(d: dim, vocab: dim) {
  layer middle = Middle(d, vocab)

  forward(ids: i64[batch, seq]) -> [batch, seq, vocab] {
    h = middle(ids)
    ONE
    return einsum(TWO, middle.inner.tables[1].weight -> [batch, seq, vocab])
  }
}

train {
  model = Net(d, vocab)
  data = random(ids: i64[batch, seq] < vocab, label: i64[batch, seq] < vocab, batches = 4)
  scores = model(ids)
  loss = cross_entropy(scores, label) + THREE
  optimizer = adamw(lr = 1e-3)
  steps = 2
}
"""


def net(one: str = "", two: str = "h", three: str = "0.0") -> str:
    return NET.replace("ONE", one).replace("TWO", two).replace("THREE", three)


@pytest.mark.parametrize(
    ("one", "two", "three"),
    [
        ("", "h", "0.0"),  # a parameter three layers down, in an array
        ("g = middle.inner.other(ids)", "h + g", "0.0"),  # a layer that is called from two layers up
        ("g = middle.inner.tables[0](ids) + middle.inner.other.found", "h + g", "0.0"),  # what its last call bound
        ("", "h * sum(middle.inner.other.gain * middle.inner.other.gain)", "0.0"),  # a dim that is a number
        ("", "h", "mean(model.middle.inner.other.weight - model.middle.inner.tables[0].weight)"),  # from `train`
        ("", "h", "mean(abs(model.middle.inner.other.found - model.h))"),
        ("", "h", "mean(model.middle.inner.other(ids) - model.h)"),
    ],
)
@pytest.mark.parametrize("imported", [False, True])
def test_dims_of_a_layer_further_down(one: str, two: str, three: str, imported: bool) -> None:
    use = 'use "./inner.shard": Inner\n'
    text = (use + SIZES if imported else SIZES + DECLARED) + net(one, two, three)
    found = checked(text, files={"inner.shard": DECLARED} if imported else {})
    assert found.messages == []
    assert [term_text(t) for t in found.value("return").type.dims] == ["batch", "seq", "vocab"]
    assert found.value("middle.inner.tables[1].weight").type.dims[0] == found.graph.dims["vocab"]


NAMESAKES = """
dim batch = 4, width = 8

model Part(d: dim) {
  dim width = 8
  param w: [d, width] = normal(0.1)

  forward(x: [batch, d]) -> [batch, width] {
    return x @ w
  }
}

model Net(d: dim) {
  layer parts[2] = Part(d)
  MEMBERS

  forward(x: [batch, d]) -> [batch, width] {
    a = parts[0](x)
    b = parts[1](x)
    b2 = rearrange(b -> [width, batch])
    return RETURNED
  }
}

train {
  model = Net(8)
  data = random(x: [batch, 8], y: [batch, 8], batches = 4)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""
ONE, TWO = "`width` (8) of layer `parts[0]`", "`width` (8) of layer `parts[1]`"
BOTH = "`width` of layer `parts[0]` and `width` of layer `parts[1]` are two dims: `relabel` gives both"


@pytest.mark.parametrize(
    ("returned", "members", "message", "help"),
    [
        ("a + b", "", f"SH280: `+` cannot line up `a` and `b`: {ONE} meets {TWO}", BOTH),
        ("a", "", f"SH256: the result needs `width` (8) of the file, and this has {ONE}", "`relabel(x"),
        ("a", "dim width = 8", f"SH256: the result needs `width` (8) of the model, and this has {ONE}", "`relabel(x"),
        ("a @ b2", "", f"SH282: `@` contracts {ONE} of `a` with {TWO} of `b2`: they are not one dim", BOTH),
        ("concat(a, b, over = batch)", "", "SH292: `concat` over `batch` needs all other dims alike: `a` is "
         "f32[batch, width], `b` is f32[batch, width]", BOTH),
        ("x * mse_loss(a, b)", "", "SH290: `mse_loss` compares values of the same dims: `a` is f32[batch, width], "
         "`b` is f32[batch, width]", BOTH),
    ],
)  # fmt: skip
def test_two_dims_of_one_name_and_size_are_told_apart(returned: str, members: str, message: str, help: str) -> None:
    found = checked(NAMESAKES.replace("RETURNED", returned).replace("MEMBERS", members))
    assert found.messages[:1] == [message]
    assert help in " ".join(found.found[0].help)


def test_dims_of_two_files_are_told_apart() -> None:
    part = "dim batch = 4\nmodel Part(d: dim) {\n  forward(x: [batch, d]) -> [batch, d] {\n    return relu(x)\n  }\n}\n"
    text = """
    use "./part.shard": Part
    dim batch = 4, d = 8
    model Net {
      layer part = Part(d)
      forward(x: [batch, d]) -> [batch, d] {
        return part(x)
      }
    }
    """
    found = checked(text, files={"part.shard": part})
    assert found.messages == [
        "SH256: `x` of `part` needs `batch` (4) of `part.shard`, and this has `batch` (4) of `program.shard`"
    ]


def test_the_help_for_two_dims_of_one_name_is_what_to_type() -> None:
    """Each `width` in `relabel` is the one that is known here, though the value has one of its own by that name."""
    both = "relabel(a -> [batch, width]) + relabel(b -> [batch, width])"
    found = checked(NAMESAKES.replace("RETURNED", both).replace("MEMBERS", ""))
    assert not [m for m in found.messages if "SH280" in m or "SH256" in m]
