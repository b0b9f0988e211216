"""Values and gradients of operators far out, where parts of a formula overflow: torch's, where they are numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from shardlang.interpret.meaning.call import computed
from shardlang.interpret.meaning.operators import OPERATORS
from shardlang.interpret.ranks.split_operators import SplitOperator, on_ranks
from shardlang.interpret.trials.splits import Case, evaluate, text
from shardlang.ops.declaration import REGISTRY
from shardlang.types.mesh import Axis, Mesh
from tests.interpret.test_operators import call_of
from tests.ops.calls import call

FAR = [
    s * x
    for x in (0.0, 1e-300, 1e-30, 1.0, 20.0, 88.0, 100.0, 709.0, 710.0, 800.0, 1e4, 1e12, math.inf)
    for s in (1, -1)
]
UNARY = [
    n for n, o in REGISTRY.items() if [p.kind for p in o.params] in (["tensor"], ["tensor", "str"]) and not o.internal
]
PAIRS = ["add", "sub", "mul", "div", "pow", "maximum", "minimum"]
ROWS = ["softmax", "log_softmax", "amax", "amin"]
PENDING = ["mse_loss", "bce_with_logits"]


def held(case: Case, least: float = 1e-30) -> None:
    """The interpreter, whole and on two ranks, gives what the emitted text does, where that is a number."""
    expected = outcome(lambda xs: [evaluate(text(case), xs)], case)
    ways = [lambda xs: [computed(OPERATORS, call_of(case), tuple(xs))]]
    if len(case.rule.operands[0]) == 2:
        ways.append(lambda xs: on_two_ranks(case, xs))
    for way in ways:
        for mine, theirs in zip(outcome(way, case), expected, strict=True):
            size = 1e-5 if theirs.dtype == torch.float32 else 1e-11
            off = ~torch.isnan(theirs) & ~torch.isclose(mine, theirs, rtol=size, atol=size * least)
            assert not off.any(), (case.call.operator, [x[off][:3] for x in (mine, theirs)], case.inputs)


def on_two_ranks(case: Case, inputs: list[Tensor]) -> list[Tensor]:
    """The results of two ranks that have the halves of the last dim of what is floating, and all of the labels."""
    last = case.rule.operands[0][1][0]
    axes = tuple(("a",) if f == last else () for f in range(len(case.rule.factors)))
    cut = [list(x.chunk(2, 1)) if x.is_floating_point() else [x, x] for x in inputs]
    return on_ranks(SplitOperator(call_of(case), axes, Mesh((Axis("a", 2),))), cut)


def outcome(way: Callable[[list[Tensor]], list[Tensor]], case: Case) -> list[Tensor]:
    """The result and the gradients of what is floating; every rank seeds 1."""
    inputs = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in case.inputs]
    made = way(inputs)
    wanted = [x for x in inputs if x.requires_grad]
    gradients = torch.autograd.grad(made, wanted, [seed(x) for x in made]) if made[0].requires_grad else ()
    pending = made[0].dim() == 0 and case.call.operator in PENDING
    whole = torch.cat(made, 1) if made[0].dim() == 2 else sum(made) if pending else made[0]
    return [torch.as_tensor(whole).detach(), *gradients]


def seed(x: Tensor) -> Tensor:
    """Unlike numbers along the rows, alike on ranks; what is cut begins anew."""
    return (
        torch.linspace(1.0, 2.0, max(1, x.numel() // max(1, x.shape[-1] if x.dim() == 2 else 1)), dtype=x.dtype)
        .reshape((-1, 1) if x.dim() == 2 else x.shape)
        .expand(x.shape)
    )


def points(dtype: str) -> Tensor:
    return torch.tensor(FAR, dtype=getattr(torch, {"f32": "float32", "f64": "float64"}[dtype]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name: str, dtype: str) -> None:
    x = points(dtype)
    made = call(name, f"{dtype} n={len(x)}")
    if made.inference is None or not made.inference.results[0].floating:
        return
    for approximate in ("none", "tanh") if name == "gelu" else ("",):
        made = call(name, f"{dtype} n={len(x)}", **({"approximate": approximate} if approximate else {}))
        held(Case(made, (x,)))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", [*PAIRS, "mse_loss", "bce_with_logits"])
def test_two_operands(name: str, dtype: str) -> None:
    x = points(dtype)
    for y in x[[0, 6, 9, 20, 24]]:
        if name in PAIRS:
            held(Case(call(name, f"{dtype} n={len(x)}", f"{dtype} n"), (x, torch.full_like(x, y.item()))))
            continue
        for one in x:
            made = call(name, f"{dtype} b=1 n=2", f"{dtype} b n")
            held(Case(made, (one.expand(1, 2).clone(), y.clamp(0, 1).expand(1, 2).clone())), 1.0)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, dtype: str) -> None:
    x = points(dtype)
    rows = torch.cartesian_prod(x, x, x, x[:6])[::211]
    held(Case(call(name, f"{dtype} b={len(rows)} n=4", over="n"), (rows,)), 1.0)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("least", [-math.inf, torch.finfo(torch.float64).min, -1e300])
def test_scores_that_are_masked_out(least: float, smoothing: float) -> None:
    """A class that cannot be: its score is -inf, or the least number of all."""
    x = torch.tensor([[1.0, 2.0, least, least], [least, 0.5, 0.25, least]], dtype=torch.float64)
    made = call("cross_entropy", "b=2 n=4", "i64 b", label_smoothing=smoothing)
    held(Case(made, (x, torch.tensor([1, 2]))), 1.0)


@pytest.mark.parametrize(
    ("name", "operands"),
    [("take", ("v=8 h=4", "i64 k=3")), ("gather", ("v=8 h=4", "i64 k=3 h")), ("embedding", ("i64 k=3", "v=8 h=4"))],
)
def test_what_is_no_number_stays_in_its_row(name: str, operands: tuple[str, str]) -> None:
    """One that no index names is in no result, and a gradient that is none is that of the row it belongs to."""
    made, ids = call(name, *operands, **({} if name == "embedding" else {"over": "v"})), torch.tensor([0, 5, 7])
    ids = ids[:, None].expand(3, 4).clone() if name == "gather" else ids
    rows = torch.arange(32.0, dtype=torch.float64).view(8, 4)
    rows[2] = math.nan
    case = Case(made, (ids, rows) if name == "embedding" else (rows, ids))
    scale = torch.tensor([[1.0], [math.nan], [2.0]], dtype=torch.float64)
    expected, mine = (
        outcome(lambda xs, way=way: [way(xs) * scale], case)
        for way in (lambda xs: evaluate(text(case), xs), lambda xs: computed(OPERATORS, call_of(case), tuple(xs)))
    )
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)
