"""Runs the emitted text of one operator: whole, and on simulated ranks for a given split of its
factors.

A layout here is: per factor the axes that split it, and axes along which operands are pending
(`through`). Operands without a split factor are replicated (R); the gradient of R is pending. These
are the rules of the layout calculus. Operators of the language and those that a file declares are
held to them alike."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang import runtime as rt
from shardlang.diagnostics.diagnostic import InternalError
from shardlang.interpret.trials.fake_ranks import MeshView, Ranks
from shardlang.ops.declaration import REGISTRY, Inference
from shardlang.ops.declared import DECLARED
from shardlang.ops.rule import DimFactors, FactorRule, Split
from shardlang.ops.site import Offset, OpSite
from shardlang.runtime.functions.statistics import listed
from shardlang.types.dim import TensorType
from shardlang.types.layout import chunk_sizes

# Of the numbers themselves, and of 1 where they are smaller.
TOLERANCE = 1e-9
# How much larger the parts of a pending sum are than the sum, for an operator that a file declares:
# one that is linear near 0 alone shows it.
_FAR = 1e3


class TypedCall(Protocol):
    """A call whose types are inferred. operator: its name in the registry; types: of all operands,
    None for an absent one."""

    @property
    def operator(self) -> str: ...

    @property
    def types(self) -> tuple[TensorType | None, ...]: ...

    @property
    def inference(self) -> Inference | None: ...


@dataclass(frozen=True)
class Case:
    """An operator on `inputs` (whole operands, present ones), laid out over axes of `sizes`. axes:
    factor -> the axes that split it; pending: axis -> the operands that are pending over it."""

    call: TypedCall
    inputs: tuple[Tensor, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    axes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    pending: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rows: int | None = None
    batch: int = -1

    @property
    def inference(self) -> Inference:
        if self.call.inference is None:
            raise InternalError(f"a call of {self.call.operator} was not inferred")
        return self.call.inference

    @property
    def rule(self) -> FactorRule:
        return self.inference.rule

    @property
    def result(self) -> tuple[DimFactors, ...]:
        """The factors of its one result."""
        return self.rule.results[0]

    @property
    def summed(self) -> list[str]:
        """The axes over which the result is pending."""
        kept = {f for dim in self.result for f in dim}
        free = [f for f in self.axes if self.rule.factors[f].split is Split.FREE]
        return [axis for f in free if f not in kept for axis in self.axes[f]] + list(self.pending)


@dataclass
class LocalCase:
    """One rank of a case: coordinates along the axes."""

    case: Case
    at: Mapping[str, int]

    def cut(self, factor: int) -> tuple[int, int]:
        """First index and length of a factor's local part."""
        index, parts = 0, 1
        for axis in self.case.axes.get(factor, ()):
            index, parts = index * self.case.sizes[axis] + self.at[axis], parts * self.case.sizes[axis]
        lengths = chunk_sizes(self.case.rule.factors[factor].size, parts)
        return sum(lengths[:index]), lengths[index]

    def shape(self, dims: Sequence[DimFactors]) -> tuple[int, ...]:
        return tuple(math.prod(self.cut(f)[1] for f in factors) for factors in dims)

    def part(self, whole: Tensor, dims: Sequence[DimFactors]) -> Tensor:
        """This rank's slice of a whole tensor."""
        return self._place(whole, dims).reshape(self.shape(dims))

    def _place(self, whole: Tensor, dims: Sequence[DimFactors]) -> Tensor:
        """The same, a view with a dim for each factor."""
        factors = [f for factors in dims for f in factors]
        x = whole.reshape([self.case.rule.factors[f].size for f in factors])
        for dim, f in enumerate(factors):
            x = x.narrow(dim, *self.cut(f))
        return x

    def put(self, whole: Tensor, dims: Sequence[DimFactors], part: Tensor, add: bool) -> None:
        """Write (or add) a slice into its place in the whole."""
        view = self._place(whole, dims)
        if add:
            view += part.reshape(view.shape)
        else:
            view.copy_(part.reshape(view.shape))

    def first(self, axes: Sequence[str]) -> bool:
        return all(self.at[a] == 0 for a in axes)


def site(case: Case, local: LocalCase, training: bool = True) -> OpSite:
    """The site as emit/ would make it for one rank."""
    rule, inference = case.rule, case.inference
    axes = tuple(case.axes.get(f, ()) for f in range(len(rule.factors)))
    return OpSite(
        operands=tuple(f"x{i}" for i in range(len(rule.operands))),
        numbers=(None,) * len(rule.operands),
        operand_shapes=tuple(local.shape(dims) if dims else () for dims in rule.operands),
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


def _group(axes: tuple[str, ...]) -> str:
    return "" if not axes else f"mesh.{axes[0]}" if len(axes) == 1 else f"mesh[{', '.join(repr(a) for a in axes)}]"


def text(case: Case, rank: int = 0, training: bool = True) -> str:
    """The emitted expression of one rank."""
    at = Ranks(case.sizes).coordinates[rank]
    return REGISTRY[case.call.operator].text(site(case, LocalCase(case, at), training))


def evaluate(
    expression: str, values: Sequence[Any], mesh: Any = None, case: Case | None = None, runtime: Any = rt
) -> Any:
    """The value of an emitted expression, whose operands are x0, x1, ..."""
    names = {f"x{i}": v for i, v in enumerate(values)}
    declared = case.inference.attrs.get(DECLARED) if case is not None else None
    own = rt.Declared({declared.file: declared.source}) if declared is not None else None
    return eval(expression, {"torch": torch, "F": F, "rt": runtime, "mesh": mesh, "own": own, **names})


class _Counted:
    """The runtime as emitted text calls it, which counts what a function of the user's reduces."""

    def __init__(self) -> None:
        self.forward = self.backward = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(rt, name)

    def Members(self, *given: Any, **named: Any) -> rt.Members:  # as the emitted text calls it
        return _CountedMembers(self, *given, **named)


class _CountedMembers(rt.Members):
    """A group that counts the numbers of each reduction over one of its groups."""

    def __init__(self, counted: _Counted, sizes: Mapping[str, int], group: Any = None, result: Any = None) -> None:
        super().__init__(sizes, group, result)
        self.counted, self.groups = counted, len(listed(group))

    def _forward(self, x: Tensor) -> Tensor:
        self.counted.forward += x.numel() * self.groups
        return x

    def _backward(self, gradient: Tensor) -> None:
        self.counted.backward += gradient.numel() * self.groups

    def sum(self, x: Tensor, dims: int | tuple[int, ...]) -> Tensor:
        total = self._forward(super().sum(x, dims))
        if total.requires_grad:
            total.register_hook(self._backward)
        return total

    def max(self, x: Tensor, dims: int | tuple[int, ...]) -> Tensor:
        return self._forward(super().max(x, dims))

    def min(self, x: Tensor, dims: int | tuple[int, ...]) -> Tensor:
        return self._forward(super().min(x, dims))


def whole(case: Case, training: bool = True) -> tuple[Tensor, list[Tensor | None], Tensor]:
    """Result, gradients of the operands, and the seed of the gradient, on one rank."""
    plain = Case(case.call, case.inputs)
    inputs = [leaf(x) for x in case.inputs]
    result = evaluate(text(plain, training=training), inputs, case=case)
    seed = torch.randn(result.shape, dtype=result.dtype) if result.is_floating_point() else torch.zeros(result.shape)
    return result.detach(), gradients(result, inputs, seed), seed


def leaf(x: Tensor) -> Tensor:
    """A value of its own, which has a gradient where the other has."""
    return x.detach().clone().requires_grad_(x.is_floating_point() and x.requires_grad)


def gradients(result: Tensor, inputs: Sequence[Tensor], seed: Tensor) -> list[Tensor | None]:
    wanted = [x for x in inputs if x.requires_grad]
    if not wanted or not result.requires_grad:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(result, wanted, seed, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in inputs]


@dataclass
class Rank:
    """reduced: how many numbers the function itself reduced over its group, forward and
    backward."""

    result: Tensor
    gradients: list[Tensor | None]
    inputs: list[Tensor]
    reduced: tuple[int, int]


def sharded(case: Case, seed: Tensor, training: bool = True) -> list[Rank]:
    """The emitted text on every rank, forward and backward."""
    ranks = Ranks(case.sizes)
    rule = case.rule
    parts = _pending_parts(case, ranks)

    def work(rank: int) -> Rank:
        local = LocalCase(case, ranks.coordinates[rank])
        inputs = [leaf(local.part(parts[rank][i], dims)) for i, dims in enumerate(rule.operands)]
        for i, x in enumerate(inputs):
            x.requires_grad_(case.inputs[i].requires_grad)
        expression = REGISTRY[case.call.operator].text(site(case, local, training))
        counted = _Counted()
        result = evaluate(expression, inputs, MeshView(ranks, rank), case, counted)
        if tuple(result.shape) != local.shape(rule.results[0]):
            raise AssertionError(f"a part has shape {tuple(result.shape)}, not {local.shape(rule.results[0])}")
        found = gradients(result, inputs, local.part(seed, rule.results[0]))
        return Rank(result.detach(), found, inputs, (counted.forward, counted.backward))

    return ranks.run(work)


def _pending_parts(case: Case, ranks: Ranks) -> list[list[Tensor]]:
    """Per rank the whole of each operand, or a random part of it where it is pending."""
    found = [[x.detach() for x in case.inputs] for _ in ranks.coordinates]
    for axis, operands in case.pending.items():
        for i in operands:
            x = case.inputs[i].detach()
            far = _FAR if x.dtype == torch.float64 and case.call.operator == DECLARED else 1.0
            noise = [far * torch.randn_like(x) for _ in range(case.sizes[axis] - 1)]
            pieces = [*noise, x - sum(noise)]
            for rank, at in enumerate(ranks.coordinates):
                found[rank][i] = pieces[at[axis]]
    return found


def joined(
    case: Case, dims: Sequence[DimFactors], parts: Sequence[Tensor | None], summed: Sequence[str]
) -> Tensor | None:
    """The whole of local parts: slices put together, summed over `summed`; over other axes all must
    agree."""
    present = [p for p in parts if p is not None]
    if len(present) < len(parts):
        if present:
            raise AssertionError("some ranks have a gradient, and others have none")
        return None
    total = torch.zeros([math.prod(case.rule.factors[f].size for f in t) for t in dims], dtype=present[0].dtype)
    split = {a for t in dims for f in t for a in case.axes.get(f, ())}
    same = [a for a in case.sizes if a not in split and a not in summed]
    for at, part in zip(Ranks(case.sizes).coordinates, present, strict=True):
        local = LocalCase(case, at)
        if local.first(same):
            local.put(total, dims, part, add=bool(summed))
    for at, part in zip(Ranks(case.sizes).coordinates, present, strict=True):
        if same and not summed:
            close(case, part, LocalCase(case, at).part(total, dims), "the ranks that share a part")
    return total


def close(case: Case, found: Tensor, wanted: Tensor, what: str) -> None:
    """AssertionError, with the largest difference, where two tensors are not equal: to TOLERANCE,
    or as torch's test has it where an operand is no float64."""
    exact = all(x.dtype == torch.float64 for x in (*case.inputs, wanted) if x.is_floating_point())
    least = TOLERANCE if exact else None
    torch.testing.assert_close(
        found, wanted, rtol=least, atol=least, equal_nan=True, msg=lambda text: f"{what} differ: {text}"
    )


def check(case: Case, training: bool = True) -> list[Rank]:
    """The sharded run equals the whole one: result and every gradient. It gives the ranks."""
    result, wanted, seed = whole(case, training)
    ranks = sharded(case, seed, training)
    rule = case.rule
    found = joined(case, case.result, [r.result for r in ranks], case.summed)
    if found is None:
        raise InternalError("a result is there on every rank")
    close(case, found, result, "results")
    for i, dims in enumerate(rule.operands):
        lacking = [a for f, axes in case.axes.items() if not any(f in t for t in dims) for a in axes]
        lacking += [a for a, operands in case.pending.items() if i not in operands]
        gradient, expected = joined(case, dims, [r.gradients[i] for r in ranks], lacking), wanted[i]
        if expected is not None:
            gradient = torch.zeros_like(expected) if gradient is None else gradient
            close(case, gradient, expected, f"gradients of operand {i}")
    return ranks


def splits(case: Case, degrees: Sequence[int] = (2, 3)) -> Iterator[Case]:
    """Each legal split: a factor over one axis (even, uneven), over two, pairs of factors, a minor
    factor behind a major one that is used up, pending operands."""
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
        for degree in degrees:
            yield _with(case, {"a": rule.factors[major].size, "b": degree}, {major: ("a",), minor: ("b",)})
    for together in rule.through:
        yield _with(case, {"p": 2}, {}, {"p": together})
        for f in legal:
            yield _with(case, {"p": 2, "a": 2}, {f: ("a",)}, {"p": together})


def _major(rule: FactorRule, factor: int) -> bool:
    """Whether a factor is the first of each tensor dim it is in."""
    return all(t[0] == factor for dims in (*rule.operands, *rule.results) for t in dims if factor in t)


def _products(rule: FactorRule) -> Iterator[tuple[int, int]]:
    """Pairs of a factor and the next minor one, which may be split where the axes on the first use
    it up."""
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
    return replace(case, sizes=sizes, axes=axes, pending=pending or {})


@contextlib.contextmanager
def labelled(case: Case) -> Iterator[None]:
    """Names the split in a failure."""
    try:
        yield
    except Exception as failure:
        factors = {case.rule.factors[f].name: a for f, a in case.axes.items()}
        failure.add_note(f"{case.call.operator} {factors} pending {dict(case.pending)}: {text(case)}")
        raise
