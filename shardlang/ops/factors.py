"""Typed operands -> factor rules: numbers the dims of a call as factors; lines up the dims of
several operands.

Each family says what its dims mean; texts to emit are in texts.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NoReturn

from shardlang.facts.dtypes import INTEGERS
from shardlang.ops.declaration import CallRefused, CallSite, Inference, written
from shardlang.ops.rule import DimFactors, Factor, FactorRule, InsideExchange, Split, Statistics, factor_rule
from shardlang.types.dim import BYTES, FLOATS, Dim, TensorType, Term, term_size, term_text, told_apart

Mark = tuple[Split, Statistics]
WHOLE: Mark = (Split.WHOLE, ((), ()))
_FREE: Mark = (Split.FREE, ((), ()))


class Factors:
    """Dims -> factor indices, in order of first appearance. `marks`: dims that are not FREE."""

    __slots__ = ("_factors", "_index", "_marks")

    def __init__(self, marks: Mapping[Dim, Mark] | None = None) -> None:
        self._index: dict[Dim, int] = {}
        self._factors: list[Factor] = []
        self._marks = marks or {}

    def term(self, term: Term) -> DimFactors:
        """The factors of one tensor dim, major first."""
        index = self._index
        if len(term) == 1 and term[0] in index:
            return (index[term[0]],)
        return tuple([index[dim] if dim in index else self._number(dim) for dim in term])

    def dims(self, terms: Sequence[Term]) -> tuple[DimFactors, ...]:
        """The factors of each dim of a tensor."""
        return tuple([self.term(term) for term in terms])

    def by_place(self, tensors: Sequence[Sequence[Term]]) -> list[tuple[DimFactors, ...]]:
        """The factors of tensors aligned from the right: a dim at two positions is two factors."""
        found: list[list[DimFactors]] = [[] for _ in tensors]
        for back in range(max(map(len, tensors)), 0, -1):
            for mine, terms in zip(found, tensors, strict=True):
                if back <= len(terms):
                    mine.append(self.term(terms[-back]))
            self._index.clear()
        return [tuple(mine) for mine in found]

    def alone(self, term: Term, split: Split = Split.WHOLE) -> DimFactors:
        """A factor of only this tensor dim, whatever its dims are elsewhere; () for a literal 1."""
        if not term:
            return ()
        self._factors.append(Factor(term_text(term), term_size(term) or 1, split))
        return (len(self._factors) - 1,)

    def group(self, term: Term, size: int) -> DimFactors:
        """A free factor of `size`, a minor part of `term`, whose dim is not taken apart by name."""
        self._factors.append(Factor(term_text(term), size))
        return (len(self._factors) - 1,)

    def exchanged(self, factor: int, how: InsideExchange) -> None:
        """A factor of which ranks exchange something where it is split."""
        self._factors[factor] = replace(self._factors[factor], exchanged=how)

    def rule(
        self,
        operands: Sequence[tuple[DimFactors, ...]],
        results: Sequence[tuple[DimFactors, ...]],
        through: tuple[tuple[int, ...], ...] = (),
    ) -> FactorRule:
        return factor_rule(tuple(self._factors), tuple(operands), tuple(results), through)

    def _number(self, dim: Dim) -> int:
        split, statistics = self._marks.get(dim, _FREE)
        at = self._index[dim] = len(self._factors)
        self._factors.append(Factor(dim.name, dim.size or 1, split, statistics))
        return at


def marked(terms: Sequence[Term], split: Split, statistics: Statistics = ((), ())) -> dict[Dim, Mark]:
    """One mark for all dims of `terms`."""
    return {dim: (split, statistics) for term in terms for dim in term}


def unary_rule(type: TensorType, through: bool) -> FactorRule:
    """Each dim a free factor; pending passes through where the operator is linear."""
    factors = Factors()
    (dims,) = factors.by_place([type.dims])
    return factors.rule((dims,), (dims,), ((0,),) if through else ())


def each_element(kind: str, through: bool = False) -> Callable[[CallSite], Inference]:
    """`infer` of an operator on each element of a value of this kind, see `require`."""

    def infer(site: CallSite) -> Inference:
        require(site, 0, kind)
        return Inference((site.operands[0],), unary_rule(site.operands[0], through))

    return infer


def same_dims(site: CallSite, dims: Sequence[Term], wanted: Sequence[Term]) -> bool:
    """Whether two lists of dims are one, literal dims unified."""
    return len(dims) == len(wanted) and all(a == b or site.dims.same(a, b) for a, b in zip(dims, wanted, strict=True))


def require_dims(site: CallSite, at: int, wanted: Sequence[Term]) -> None:
    """SH288 where operand `at` has other dims than these."""
    if not same_dims(site, site.operands[at].dims, wanted):
        refuse_shape(site, at, wanted)


def refuse_shape(site: CallSite, at: int, wanted: Sequence[Term]) -> NoReturn:
    """SH288: an operand such as `weight` has other dims than the first operand asks for."""
    dims = ", ".join(term_text(t) for t in wanted)
    fact = f"`{site.operator.name}` needs {quoted(site.names[at])} to be [{dims}], and it is {site.operands[at]}"
    site.refuse("SH288", fact, f"declare it as `[{dims}]`", 0, span=site.spans[at])


def sized(term: Term) -> str:
    """`hidden` (16) as a message shows a dim."""
    size = term_size(term)
    return f"`{term_text(term)}`" if size is None or not term or term[0].literal else f"`{term_text(term)}` ({size})"


def broadcast(site: CallSite, types: Sequence[TensorType]) -> tuple[tuple[Term, ...], list[tuple[Term, ...]]]:
    """The result's dims, and each operand's dims after unification; SH280 where they do not line
    up."""
    first = types[0].dims
    if all(t.dims == first or not t.dims for t in types[1:]):
        return first, [t.dims for t in types]
    result = [_line_up(site, types, back) for back in range(max(len(t.dims) for t in types), 0, -1)]
    resolve = site.dims.resolve
    return tuple(map(resolve, result)), [tuple(map(resolve, t.dims)) for t in types]


def elementwise(site: CallSite, dtype: str, through: tuple[tuple[int, ...], ...] = ()) -> Inference:
    """The rule of element-wise operators, dims aligned from the right."""
    dims, operands = broadcast(site, site.operands)
    factors = Factors()
    result, *mine = factors.by_place([dims, *operands])
    return Inference((TensorType(dtype, dims),), factors.rule(mine, (result,), through))


def _line_up(site: CallSite, types: Sequence[TensorType], back: int) -> Term:
    """The term of the dim `back` places from the right."""
    term: Term = ()
    owner = -1
    for at, type in enumerate(types):
        mine: Term = type.dims[-back] if back <= len(type.dims) else ()
        if not mine:
            continue
        if owner < 0:
            term, owner = mine, at
        elif mine != term and not site.dims.same(term, mine):
            _refuse_mismatch(site, types, (owner, term), (at, mine), back)
    return term


def _refuse_mismatch(
    site: CallSite, types: Sequence[TensorType], left: tuple[int, Term], right: tuple[int, Term], back: int
) -> NoReturn:
    (i, a), (j, b) = left, right
    name = site.names
    place = "last dim" if back == 1 else f"dim {back} from the right"
    left_of, right_of = told_apart(a, b)
    site.sink.report(
        "SH280",
        f"`{written(site.operator.name)}` cannot line up {quoted(name[i])} and {quoted(name[j])}: "
        f"{sized(a)}{left_of} meets {sized(b)}{right_of}",
        site.span,
        labels=[(site.spans[i], f"{types[i]}"), (site.spans[j], f"{types[j]}: its {place} is {sized(b)}")],
        help=_mismatch_help(types, (i, a), (j, b), name),
    )
    raise CallRefused


def namesakes(types: Sequence[TensorType]) -> str | None:
    """Help for two different dims of one name and size among some operands'; None if all differ."""
    dims = list(dict.fromkeys(d for type in types for term in type.dims for d in term))
    for one, other in combinations(dims, 2):
        mine, theirs = told_apart((one,), (other,))
        if mine != theirs:
            name = quoted(one.name)
            return (
                f"{name}{mine} and {name}{theirs} are two dims: `relabel` gives both values one that is declared here"
            )
    return None


def _mismatch_help(
    types: Sequence[TensorType], left: tuple[int, Term], right: tuple[int, Term], names: Sequence[str]
) -> str:
    (i, a), (j, b) = left, right
    if any(told_apart(a, b)) and (help := namesakes([types[i], types[j]])):
        return help
    for one, other, small in ((i, j, right), (j, i, left)):
        if set(types[other].dims) - {()} <= set(types[one].dims):
            dims = [t if t in types[other].dims else () for t in types[one].dims]
            text = ", ".join(term_text(t) for t in _without_leading_ones(dims))
            return f"`rearrange({names[small[0]]} -> [{text}])` puts its dims in the places of {quoted(names[one])}"
    if term_size(a) == term_size(b):
        dims_text = ", ".join(term_text(a if t == b else t) for t in types[j].dims)
        return f"equal sizes are not the same dim; if they are meant to be one: `relabel({names[j]} -> [{dims_text}])`"
    return "dims line up from the right: each pair is one dim, or one of the two is a literal 1 or absent"


def _without_leading_ones(dims: Sequence[Term]) -> Sequence[Term]:
    start = next((i for i, t in enumerate(dims) if t), len(dims))
    return dims[start:]


def quoted(name: str) -> str:
    """`x`, but: the left side."""
    return name if " " in name else f"`{name}`"


def arrow_of(site: CallSite) -> tuple[Term, ...]:
    """The dims of a result as they are written; SH284 where they are not."""
    if site.arrow is None:
        name, dims = site.operator.name, ", ".join(map(term_text, site.operands[0].dims))
        site.refuse("SH284", f"`{name}` needs the dims of its result", f"`{name}({site.names[0]} -> [{dims}])`, say")
    return site.arrow


def refuse_twice(site: CallSite, terms: Sequence[Term]) -> None:
    """SH253 where a dim occurs twice in the result."""
    names = [d for term in terms for d in term]
    found = next((d for i, d in enumerate(names) if d in names[:i]), None)
    if found is not None:
        site.refuse("SH253", f"dim `{found.name}` occurs twice in one type",
                    f"declare `dim other = {found.name}` and give one of them that name", 0)  # fmt: skip


def _kind(dtype: str) -> int:
    return 2 if dtype in FLOATS else int(dtype in INTEGERS)


def _join(a: str, b: str) -> str:
    if a == b:
        return a
    first, second = ((_kind(dtype), BYTES[dtype]) for dtype in (a, b))
    return "f32" if first == second else a if first > second else b


def promote(types: Sequence[TensorType]) -> str:
    """torch's promotion: values without dims count only if their kind (bool, int) is higher."""
    first = types[0].dtype
    if all(t.dtype == first for t in types):
        return first
    tensors: str | None = None
    scalars: str | None = None
    for type in types:
        if type.dims:
            tensors = _join(tensors, type.dtype) if tensors else type.dtype
        else:
            scalars = _join(scalars, type.dtype) if scalars else type.dtype
    if tensors is None or scalars is None:
        return tensors or scalars or "f32"
    return scalars if _kind(scalars) > _kind(tensors) else tensors


def require(site: CallSite, at: int, what: str) -> None:
    """SH281 where operand `at` is not "floating", "integer", "bool" or "number" (not bool)."""
    type = site.operands[at]
    kind = ("bool", "integer", "floating")[_kind(type.dtype)]
    if kind == what or (what == "number" and kind != "bool"):
        return
    advice = {
        "number": f"`cast({site.spans[at].text}, f32)` makes it 0 and 1",
        "floating": f"`cast({site.names[at]}, f32)` makes it floating",
        "integer": "indices are of type i64 or i32, as a data field `i64[batch]` or `argmax` gives them",
        "bool": f"a comparison gives bool: `{site.names[at]} != 0`",
    }
    wanted = {"integer": "an integer tensor", "number": "a tensor of numbers"}.get(what, f"a {what} tensor")
    fact = f"`{written(site.operator.name)}` needs {quoted(site.names[at])} to be {wanted}, and it is {type}"
    site.refuse("SH281", fact, advice[what], span=site.spans[at])
