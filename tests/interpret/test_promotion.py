"""What operators make of operands of all element types: torch's own type and value, on one device and on ranks.

Every pair of a tensor, a single number made by an operator and a number written out, on either side.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph
from shardlang.interpret.meaning import initial, whole
from shardlang.interpret.meaning.call import computed
from shardlang.interpret.meaning.operators import OPERATORS
from shardlang.interpret.trials.splits import Case
from tests.emit import sources
from tests.interpret.test_operators import call_of
from tests.interpret.verify_plan import verify_plan
from tests.ops.calls import call

Cell = tuple[str, str, str]
TYPES = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "bool": torch.bool,
}  # fmt: skip
SYMBOLS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "**": operator.pow,
    "<": operator.lt, "==": operator.eq,
}  # fmt: skip
BOUNDS = {"maximum": ("min", torch.maximum), "minimum": ("max", torch.minimum)}
TENSORS = {"x": "x", "h": "cast(x, bf16)", "w": "cast(x, f64)", "n": "n", "k": "cast(n, i32)", "c": "n > 2"}
SINGLE = {"sx": "sum(x)", "sh": "sum(h)", "sn": "sum(n)", "sc": "sn > 2"}
NUMBERS: dict[str, int | float] = {"2": 2, "0.5": 0.5}
TEXT = """
dim batch = 4, d = 3

model Net {
  param p: [d] = ones()
  forward(x: [batch, d]) -> [batch, d] { return x * p }
}

strategy s {
  mesh dp = 2
  split batch over dp
}

train {
  model = Net()
  data = random(x: [batch, d], n: i64[batch, d] < 5, batches = 2)
  VALUES
  loss = mean(model(x)) + 0 * (sum(w) + sum(k) + sum(sc) + sum(sx) + sum(sh) + sum(c))
  optimizer = sgd(lr = 0.1)
  precision = PRECISION
  steps = 1
}
"""


@contextmanager
def numbers_of(precision: str) -> Iterator[None]:
    """torch as it is in a run of this precision."""
    torch.set_default_dtype(TYPES[precision])
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def given(precision: str) -> dict[str, Tensor]:
    """The operands, as torch makes them."""
    torch.manual_seed(5)
    x, n = torch.rand(4, 3, dtype=TYPES[precision]) + 0.25, torch.randint(0, 5, (4, 3))
    h, sn = x.to(torch.bfloat16), n.sum()
    return {
        "x": x, "h": h, "w": x.double(), "n": n, "k": n.int(), "c": n > 2, "sx": x.sum(), "sh": h.sum(), "sn": sn,
        "sc": sn > 2,
    }  # fmt: skip


def meant(cell: Cell, values: dict[str, Tensor]) -> Tensor:
    """What torch makes of a cell; RuntimeError where it refuses."""
    symbol, *names = cell
    left, right = (values.get(name, NUMBERS.get(name)) for name in names)
    if symbol == "where":
        return torch.where(values["c"], left, right)
    if symbol in BOUNDS:
        bound, function = BOUNDS[symbol]
        tensors = [x for x in (left, right) if isinstance(x, Tensor)]
        return function(left, right) if len(tensors) == 2 else torch.clamp(tensors[0], **{bound: other(left, right)})
    return SYMBOLS[symbol](left, right)


def other(left: object, right: object) -> object:
    return right if isinstance(left, Tensor) else left


def cells(values: dict[str, Tensor], chosen: Callable[[Cell], bool] = bool) -> dict[Cell, Tensor]:
    """All that torch does not refuse (a difference of truth values), with what it makes of them."""
    names = [*TENSORS, *SINGLE, *NUMBERS]
    found: dict[Cell, Tensor] = {}
    for cell in ((s, a, b) for s in (*SYMBOLS, *BOUNDS, "where") for a in names for b in names):
        if {cell[1], cell[2]} <= set(NUMBERS) or not chosen(cell):
            continue
        try:
            found[cell] = meant(cell, values)
        except RuntimeError:
            assert {"c", "sc"}.intersection(cell), cell
    return found


def program(found: list[Cell], precision: str) -> CheckedProgram:
    lines = [f"{name} = {text}" for name, text in {**TENSORS, **SINGLE}.items() if name != text]
    for at, (symbol, a, b) in enumerate(found):
        call = f"{a} {symbol} {b}" if symbol in SYMBOLS else f"{symbol}({'c, ' * (symbol == 'where')}{a}, {b})"
        lines.append(f"metric m{at} = mean(cast({call}, f64))")
    text = TEXT.replace("VALUES", "\n  ".join(lines)).replace("PRECISION", precision)
    return sources.checked(text)


def cell_value(graph: Graph, at: int) -> int:
    """What a metric is the mean of, before its cast to f64 (which of an f64 is none)."""
    cast = graph.ops[graph.producers[graph.ops[graph.producers[graph.metrics[f"m{at}"]]].operands[0]]]
    assert cast.operator == "cast"
    return cast.operands[0]


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_one_device_has_torchs_types_and_values(precision: str) -> None:
    values = given(precision)
    with numbers_of(precision):
        found = cells(values)
    graph = program(list(found), precision).graph
    named = {graph.values[v].name: v for v in graph.data}
    mine = whole.run(graph, {named["x"]: values["x"], named["n"]: values["n"]}, initial.initial(graph, 0))
    for at, (cell, wanted) in enumerate(found.items()):
        value = mine.values[cell_value(graph, at)]
        close = {torch.float32: 1e-6, torch.bfloat16: 1e-2}.get(wanted.dtype, 1e-14)
        assert value.dtype == wanted.dtype, (cell, value.dtype, wanted.dtype)
        torch.testing.assert_close(value, wanted, rtol=close, atol=close, equal_nan=True, msg=str(cell))


@pytest.mark.parametrize("dtype", ["f64", "f32"])
def test_ranks_have_what_one_device_has(dtype: str) -> None:
    """With a number on one side, of what is cut, pending and whole."""
    with numbers_of("f32"):
        found = cells(given("f32"), lambda cell: bool(set(NUMBERS).intersection(cell)))
    made, sink = program(list(found), "f32"), Sink()
    plan = driver.plan_program(made, "s", 2, sink)
    assert plan is not None, [d.message for d in sink.found]
    report = verify_plan(plan, dtype=dtype, tolerance={"f64": 1e-9, "f32": 1e-3}[dtype])
    assert report.ok, str(report.difference)


@pytest.mark.parametrize("name", ["mse_loss", "bce_with_logits"])
@pytest.mark.parametrize("dtype", ["i64", "bool", "f64"])
def test_targets_of_any_type(name: str, dtype: str) -> None:
    x, target = torch.randn(4, 3, dtype=torch.float64), (torch.rand(4, 3) > 0.5).to(TYPES[dtype])
    case = Case(call(name, "b=4 d=3", f"{dtype} b d"), (x, target))
    wanted = {"mse_loss": functional.mse_loss, "bce_with_logits": functional.binary_cross_entropy_with_logits}[name]
    torch.testing.assert_close(computed(OPERATORS, call_of(case), (x, target)), wanted(x, target.double()))


CASTS = ["f64", "f32", "f16", "bf16", "i64", "i32", "bool"]


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_casts_have_torchs_values_and_gradients(precision: str) -> None:
    """Each element type to each, and back to that of the run."""
    pairs = [(a, b) for a in CASTS for b in CASTS]
    lines = "\n  ".join(f"a{i} = cast(cast(cast(3 * y, {a}), {b}), {precision})" for i, (a, b) in enumerate(pairs))
    total = " + ".join(f"{1 + i / 8} * sum(a{i})" for i in range(len(pairs)))
    text = TEXT.replace("VALUES", f"y = model(x)\n  m = sum(n)\n  {lines}").replace("PRECISION", precision)
    head, _, tail = text.partition("loss = ")
    text = f"{head}loss = 0 * m + {total}\n{tail.partition(chr(10))[2]}"
    made = sources.checked(text)
    graph, values = made.graph, given(precision)
    named = {graph.values[v].name: v for v in graph.data}
    mine = whole.run(graph, {named["x"]: values["x"], named["n"]: values["n"]}, initial.initial(graph, 0))
    p = torch.ones(3, dtype=TYPES[precision], requires_grad=True)
    y = 3 * (values["x"] * p)
    wanted = [y.to(TYPES[a]).to(TYPES[b]).to(TYPES[precision]) for a, b in pairs]
    for i, x in enumerate(wanted):
        assert torch.equal(mine.values[graph.addresses[f"train.a{i}"][0]], x.detach()), pairs[i]
    loss = sum((1 + i / 8) * x.sum() for i, x in enumerate(wanted))
    (gradient,) = torch.autograd.grad(loss, p)
    torch.testing.assert_close(mine.gradients[graph.params[0]], gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["f32", "f64"])
def test_the_emitted_program_has_torchs_values(precision: str) -> None:
    """On one rank: the mean of each cell in float64 tells in which type it was computed."""
    values = given(precision)
    with numbers_of(precision):
        found = cells(values, lambda cell: {cell[1], cell[2]} <= {*NUMBERS, "n", "k", "sn", "c", "sh", "x"})
    made, sink = replace(program(list(found), precision), strategies=()), Sink()
    plan = driver.plan_program(made, None, 1, sink)
    files = driver.emit_plan(plan, sink) if plan is not None else None
    assert files is not None, [d.message for d in sink.found]
    emitted: dict[str, Any] = {"__name__": "emitted"}
    exec(files["main.py"], emitted)
    with numbers_of(precision):
        _, metrics = emitted["forward"](SimpleNamespace(p=torch.ones(3)), values["x"], values["n"])
    for at, (cell, wanted) in enumerate(found.items()):
        close = {torch.float32: 1e-6, torch.bfloat16: 1e-2}.get(wanted.dtype, 1e-14)
        mean = wanted.double().mean()
        torch.testing.assert_close(metrics[f"m{at}"], mean, rtol=close, atol=close, equal_nan=True, msg=str(cell))
