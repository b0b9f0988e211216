"""`precision = bf16`: types as torch.autocast gives them, and the same numbers as a model written by hand under it;
with `stream = bf16`, as a model whose parameters are in bf16.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Kind
from shardlang.runtime import random
from shardlang.runtime.step.model import RankModel
from tests.emit import sources

PROGRAM = """
use std.nn: LayerNorm, Linear

dim batch = 16, pixels = 64, hidden = 32, classes = 10

model Net {
  layer up = Linear(pixels, hidden)
  layer norm = LayerNorm(hidden)
  layer down = Linear(hidden, classes)

  forward(image: [batch, pixels]) -> [batch, classes] {
    h = up(image) |> gelu
    n = h + norm(h)
    return down(n)
  }
}

train {
  model = Net()
  data = digits(split = "train", batch = batch)
  scores = model(image)
  loss = cross_entropy(scores, label)
  metric accuracy = mean(argmax(scores, over = classes) == label)
  optimizer = sgd(lr = 0.1)
  precision = bf16
  steps = 2
}
"""


STREAM = PROGRAM.replace("precision = bf16", "precision = bf16(stream = bf16)")


def checked(text: str = PROGRAM, **given: str) -> object:
    return sources.checked(text, settings=given)


def test_what_is_low_and_what_is_not() -> None:
    graph = checked().graph
    dtypes = {value.path: value.type.dtype for value in graph.values}
    low = ("up.weight", "up.bias", "down.weight", "down.bias", "h")
    assert {graph.values[graph.addresses[name][0]].type.dtype for name in low} == {"bf16"}
    assert {dtypes["norm.weight"], dtypes["norm.bias"], dtypes["train.image"], dtypes["train.loss"]} == {"f32"}
    # A cast is made once for all that read it, and no statement becomes longer by it.
    casts = [op for op in graph.ops if op.operator == "cast"]
    assert len({(op.operands[0], graph.values[op.results[0]].type.dtype) for op in casts}) == len(casts)
    assert graph.values[graph.addresses["h"][0]].statement == 1


def emitted(text: str = PROGRAM) -> types.ModuleType:
    plan = driver.plan_program(checked(text), None, 1, Sink())
    module = types.ModuleType("net")
    sys.modules["net"] = module
    exec(compile(driver.emit_plan(plan, Sink())["main.py"], "main.py", "exec"), module.__dict__)
    return module


def by_hand(
    p: object, image: torch.Tensor, label: torch.Tensor, weights: dict[str, torch.Tensor],
    dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:  # fmt: skip
    with torch.autocast("cpu", dtype=dtype):
        h = F.gelu(F.linear(image, weights["up.weight"], weights["up.bias"]))
        normed = F.layer_norm(h.float(), (32,), weights["norm.weight"], weights["norm.bias"])
        return F.cross_entropy(F.linear(h + normed, weights["down.weight"], weights["down.bias"]), label)


by_hand_f16 = partial(by_hand, dtype=torch.float16)


def by_hand_low(p: object, image: torch.Tensor, label: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    low = {path: weight.bfloat16() for path, weight in weights.items()}
    h = F.gelu(F.linear(image.bfloat16(), low["up.weight"], low["up.bias"]))
    # The gradients of torch's own norm, in bf16 on the CPU, are rounded more often.
    normed = F.layer_norm(h.float(), (32,), low["norm.weight"].float(), low["norm.bias"].float()).bfloat16()
    return F.cross_entropy(F.linear(h + normed, low["down.weight"], low["down.bias"]).float(), label)


def test_a_stream_in_bf16() -> None:
    graph = checked(STREAM.replace("  optimizer", "  metric size = sqrt(mean(square(scores)))\n  optimizer")).graph
    wide = [v.path for v in graph.values if v.type.dtype == "f32" and v.type.dims]
    assert wide == ["train.image", "train.metric:size:1:f32"]
    given = checked(PROGRAM, **{"train.precision": "bf16(stream = bf16)"}).graph
    assert [v.type.dtype for v in given.values] == [v.type.dtype for v in checked(STREAM).graph.values]
    numbers = [v.path for v in graph.values if v.kind is Kind.RESULT and v.type.dtype == "f32" and not v.type.dims]
    assert numbers == ["train.loss", "train.metric:accuracy", "train.metric:size:2", "train.metric:size"]


LOOKUPS = """
dim batch = 4096, rows = 4, d = 3

model Net {
  param table: [rows, d] = normal(1.0)

  forward(ids: i64[batch]) -> [batch, d] {
    return embedding(ids, table)
  }
}

train {
  model = Net()
  data = random(ids: i64[batch] < rows, batches = 1)
  loss = mean(cast(model(ids), f32))
  optimizer = sgd(lr = 0.1, momentum = 0.9)
  precision = bf16
  steps = 1
}
"""


def test_a_row_that_is_looked_up_often_gets_all_of_its_gradients() -> None:
    """Added up in bf16, more than 256 equal ones are no more than 256. The rows are those of a copy in bf16."""
    module = emitted(LOOKUPS)
    random.start(0)
    model = RankModel(module.program)
    assert not model.copies
    ids = torch.arange(4096) % 3
    loss, _ = module.forward(model.p, ids)
    model.backward(loss)
    table = model.leaves["table"]
    assert loss.item() == pytest.approx(table.detach().bfloat16()[ids].double().mean().item(), rel=1e-6)
    each = torch.tensor(1 / (4096 * 3)).bfloat16().item()
    for row, count in enumerate((1366, 1365, 1365, 0)):
        assert table.grad[row].tolist() == pytest.approx([count * each] * 3, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "by_hand"),
    [(PROGRAM, by_hand), (STREAM, by_hand_low), (PROGRAM.replace("bf16", "f16"), by_hand_f16)],
    ids=["autocast", "stream", "f16"],
)
def test_the_numbers_are_those_of_a_model_by_hand(text: str, by_hand: Callable[..., torch.Tensor]) -> None:
    module = emitted(text)
    random.start(0)
    model = RankModel(module.program)
    assert all(leaf.dtype == torch.float32 for leaf in model.leaves.values())
    generator = torch.Generator().manual_seed(1)
    image, label = torch.rand(16, 64, generator=generator), torch.randint(0, 10, (16,), generator=generator)
    loss, _ = module.forward(model.p, image, label)
    model.backward(loss)
    weights = {path: leaf.detach().clone().requires_grad_() for path, leaf in model.leaves.items()}
    expected = by_hand(model.p, image, label, weights)
    scale = model.gradients.scale.factor if model.gradients.scale is not None else 1.0
    (expected * scale).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for path, leaf in model.leaves.items():
        assert leaf.grad.dtype == torch.float32
        largest = weights[path].grad.abs().max()
        assert (leaf.grad - weights[path].grad).abs().max() <= 1e-6 * largest, path
