"""Runs the emitted text of one operator: whole, and on simulated ranks for a given split of its factors.

A layout here is: per factor the axes that split it, and axes along which operands are pending (`through`). Operands
without a split factor are replicated (R); the gradient of R is pending. These are the rules of the layout calculus.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang import runtime as rt
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.rule import DimFactors, FactorRule, Split
from shardlang.ops.site import Offset, OpSite
from shardlang.types.layout import chunk_sizes
from tests.ops.calls import Call
from tests.ops.group import MeshView, Ranks

torch.set_num_threads(1)


@dataclass(frozen=True)
class Case:
    """An operator on `inputs` (whole operands, present ones), laid out over axes of `sizes`."""

    call: Call
    inputs: tuple[Tensor, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    axes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # factor -> axes
    pending: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # axis -> operands pending over it
    rows: int | None = None
    batch: int = -1

    @property
    def rule(self) -> FactorRule:
        assert self.call.inference is not None, self.call.sink.found
        return self.call.inference.rule


@dataclass
class Local:
    """One rank of a case: coordinates along the axes."""

    case: Case
    at: Mapping[str, int]

    def cut(self, factor: int) -> tuple[int, int]:
        """First index and length of a factor's local part."""
        axes = self.case.axes.get(factor, ())
        index = count = 0
        parts = 1
        for axis in axes:
            index, parts = index * self.case.sizes[axis] + self.at[axis], parts * self.case.sizes[axis]
        lengths = chunk_sizes(self.case.rule.factors[factor].size, parts)
        count = sum(lengths[:index])
        return count, lengths[index]

    def shape(self, dims: Sequence[DimFactors]) -> tuple[int, ...]:
        return tuple(math.prod(self.cut(f)[1] for f in factors) for factors in dims)

    def part(self, whole: Tensor, dims: Sequence[DimFactors]) -> Tensor:
        """This rank's slice of a whole tensor."""
        factors = [f for factors in dims for f in factors]
        x = whole.reshape([self.case.rule.factors[f].size for f in factors])
        for dim, f in enumerate(factors):
            x = x.narrow(dim, *self.cut(f))
        return x.reshape(self.shape(dims))

    def put(self, whole: Tensor, dims: Sequence[DimFactors], part: Tensor, add: bool) -> None:
        """Write (or add) a slice into its place in the whole."""
        factors = [f for factors in dims for f in factors]
        view = whole.view([self.case.rule.factors[f].size for f in factors])
        for dim, f in enumerate(factors):
            view = view.narrow(dim, *self.cut(f))
        if add:
            view += part.reshape(view.shape)
        else:
            view.copy_(part.reshape(view.shape))

    def first(self, axes: Sequence[str]) -> bool:
        return all(self.at[a] == 0 for a in axes)


def site(case: Case, local: Local, training: bool = True) -> OpSite:
    """The site as emit/ would make it for one rank."""
    rule, inference = case.rule, case.call.inference
    assert inference is not None
    axes = tuple(case.axes.get(f, ()) for f in range(len(rule.factors)))
    return OpSite(
        operands=tuple(f"x{i}" for i in range(len(rule.operands))),
        numbers=(None,) * len(rule.operands),
        operand_shapes=tuple(local.shape(dims) if dims else () for dims in _padded(case)),
        result_shapes=tuple(local.shape(dims) for dims in rule.results),
        operand_types=tuple(t for t in case.call.types if t is not None),
        result_types=inference.results,
        attrs=inference.attrs,
        rule=rule,
        axes=axes,
        groups=tuple(_group(a) for a in axes),
        offsets=tuple(Offset(str(local.cut(f)[0])) if a and local.cut(f)[0] else None for f, a in enumerate(axes)),
        training=training,
        rows="" if case.rows is None else str(case.rows),
        batch=case.batch,
        path="net.x",
        call=0,
    )


def _padded(case: Case) -> tuple[tuple[DimFactors, ...], ...]:
    return case.rule.operands


def _group(axes: tuple[str, ...]) -> str:
    return "" if not axes else f"mesh.{axes[0]}" if len(axes) == 1 else f"mesh[{', '.join(repr(a) for a in axes)}]"


def text(case: Case, rank: int = 0, training: bool = True) -> str:
    """The emitted expression of one rank."""
    at = Ranks(case.sizes).coordinates[rank]
    return REGISTRY[case.call.operator].emit(site(case, Local(case, at), training))


def evaluate(expression: str, values: Sequence[Any], mesh: Any = None) -> Any:
    names = {f"x{i}": v for i, v in enumerate(values)}
    return eval(expression, {"torch": torch, "F": F, "rt": rt, "mesh": mesh, **names})


def whole(case: Case, training: bool = True) -> tuple[Tensor, list[Tensor | None], Tensor]:
    """Result, gradients of the operands, and the seed of the gradient, on one rank."""
    plain = Case(case.call, case.inputs)
    inputs = [_leaf(x) for x in case.inputs]
    result = evaluate(text(plain, training=training), inputs)
    seed = torch.randn(result.shape, dtype=result.dtype) if result.is_floating_point() else torch.zeros(result.shape)
    return result.detach(), gradients(result, inputs, seed), seed


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(x.is_floating_point() and x.requires_grad)


def gradients(result: Tensor, inputs: Sequence[Tensor], seed: Tensor) -> list[Tensor | None]:
    wanted = [x for x in inputs if x.requires_grad]
    if not wanted or not result.requires_grad:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(result, wanted, seed, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]


@dataclass
class Rank:
    result: Tensor
    gradients: list[Tensor | None]
    inputs: list[Tensor]


def sharded(case: Case, seed: Tensor, training: bool = True) -> list[Rank]:
    """The emitted text on every rank, forward and backward."""
    ranks = Ranks(case.sizes)
    rule = case.rule
    parts = _pending_parts(case, ranks)

    def work(rank: int) -> Rank:
        local = Local(case, ranks.coordinates[rank])
        inputs = [_leaf(local.part(parts[rank][i], dims)) for i, dims in enumerate(rule.operands)]
        for i, x in enumerate(inputs):
            x.requires_grad_(case.inputs[i].requires_grad)
        expression = REGISTRY[case.call.operator].emit(site(case, local, training))
        result = evaluate(expression, inputs, MeshView(ranks, rank))
        assert tuple(result.shape) == local.shape(rule.results[0]), (expression, result.shape)
        return Rank(result.detach(), gradients(result, inputs, local.part(seed, rule.results[0])), inputs)

    return ranks.run(work)


def _pending_parts(case: Case, ranks: Ranks) -> list[list[Tensor]]:
    """Per rank the whole of each operand, or a random part of it where it is pending."""
    found = [[x.detach() for x in case.inputs] for _ in ranks.coordinates]
    for axis, operands in case.pending.items():
        for i in operands:
            x = case.inputs[i].detach()
            noise = [torch.randn_like(x) for _ in range(case.sizes[axis] - 1)]
            pieces = [*noise, x - sum(noise)]
            for rank, at in enumerate(ranks.coordinates):
                found[rank][i] = pieces[at[axis]]
    return found


def joined(
    case: Case, dims: Sequence[DimFactors], parts: Sequence[Tensor | None], summed: Sequence[str]
) -> Tensor | None:
    """The whole of local parts: slices put together, summed over `summed`; over other axes all must agree."""
    if any(p is None for p in parts):
        assert all(p is None for p in parts)
        return None
    present = [p for p in parts if p is not None]
    total = torch.zeros([math.prod(case.rule.factors[f].size for f in t) for t in dims], dtype=present[0].dtype)
    split = {a for t in dims for f in t for a in case.axes.get(f, ())}
    same = [a for a in case.sizes if a not in split and a not in summed]
    for at, part in zip(Ranks(case.sizes).coordinates, present, strict=True):
        local = Local(case, at)
        if local.first(same):
            local.put(total, dims, part, add=bool(summed))
    for at, part in zip(Ranks(case.sizes).coordinates, present, strict=True):
        if same and not summed:
            torch.testing.assert_close(part, Local(case, at).part(total, dims))
    return total


def check(case: Case, training: bool = True) -> None:
    """The sharded run equals the whole one: result and every gradient."""
    result, wanted, seed = whole(case, training)
    ranks = sharded(case, seed, training)
    rule = case.rule
    pending = [
        a
        for f, axes in case.axes.items()
        if rule.factors[f].split is Split.FREE and not any(f in t for t in rule.results[0])
        for a in axes
    ] + list(case.pending)
    torch.testing.assert_close(joined(case, rule.results[0], [r.result for r in ranks], pending), result)
    for i, dims in enumerate(rule.operands):
        lacking = [a for f, axes in case.axes.items() if not any(f in t for t in dims) for a in axes]
        lacking += [a for a, operands in case.pending.items() if i not in operands]
        found = joined(case, dims, [r.gradients[i] for r in ranks], lacking)
        if wanted[i] is None:
            continue
        torch.testing.assert_close(found, wanted[i], msg=lambda m, i=i: f"gradient of operand {i}: {m}\n{text(case)}")


def splits(case: Case, degrees: Sequence[int] = (2, 3)) -> Iterator[Case]:
    """Each legal split: a factor over one axis (even, uneven), over two, pairs of factors, pending operands."""
    rule = case.rule
    legal = [
        f
        for f, factor in enumerate(rule.factors)
        if factor.split is not Split.WHOLE and factor.size > 1 and _major(rule, f)
    ]
    # Also over more ranks than there are pieces, so that the last have nothing.
    for f, degree in product(legal, (*degrees, 5)):
        yield _with(case, {"a": degree}, {f: ("a",)})
    for f in legal:
        if rule.factors[f].size % 4 == 0:
            yield _with(case, {"a": 2, "b": 2}, {f: ("b", "a")})
    for f, g in product(legal, legal):
        if f < g:
            yield _with(case, {"a": 2, "b": 2}, {f: ("a",), g: ("b",)})
    for major, minor in _products(rule):
        yield _with(case, {"a": rule.factors[major].size, "b": 2}, {major: ("a",), minor: ("b",)})
    for together in rule.through:
        yield _with(case, {"p": 2}, {}, {"p": together})
        for f in legal:
            yield _with(case, {"p": 2, "a": 2}, {f: ("a",)}, {"p": together})


def _major(rule: FactorRule, factor: int) -> bool:
    """Whether a factor is the first of each tensor dim it is in."""
    return all(t[0] == factor for dims in (*rule.operands, *rule.results) for t in dims if factor in t)


def _products(rule: FactorRule) -> Iterator[tuple[int, int]]:
    """Pairs of a factor and the next minor one, which may be split where the axes on the first use it up."""
    dims = {t[:2] for tensor in (*rule.operands, *rule.results) for t in tensor if len(t) > 1}
    for major, minor in sorted(dims):
        if rule.factors[major].size <= 4 and Split.WHOLE not in (rule.factors[major].split, rule.factors[minor].split):
            yield major, minor


def _with(
    case: Case,
    sizes: dict[str, int],
    axes: dict[int, tuple[str, ...]],
    pending: dict[str, tuple[int, ...]] | None = None,
) -> Case:
    return Case(case.call, case.inputs, sizes, axes, pending or {}, case.rows, case.batch)


@contextlib.contextmanager
def labelled(case: Case) -> Iterator[None]:
    """Names the split in a failure."""
    try:
        yield
    except Exception as failure:
        factors = {case.rule.factors[f].name: a for f, a in case.axes.items()}
        failure.add_note(f"{case.call.operator} {factors} pending {dict(case.pending)}: {text(case)}")
        raise
