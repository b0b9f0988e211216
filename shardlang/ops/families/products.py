"""Sums of products: `@` and `einsum`. A contracted dim that is split leaves a pending sum."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shardlang.ops.code import RT, TORCH, Code, F, infix, method
from shardlang.ops.declaration import Arrow, CallSite, Inference, Param, Precision, between, declare
from shardlang.ops.factors import Factors, namesakes, promote, quoted, sized
from shardlang.ops.python_text import literal
from shardlang.ops.rule import DimFactors, FactorRule
from shardlang.ops.saved_activations import LocalOp, Residuals, elements, others, size
from shardlang.ops.site import OpSite
from shardlang.ops.working_memory import products
from shardlang.types.dim import Dim, TensorType, Term, term_size, term_text, told_apart


def _flops(rule: FactorRule, attrs: Mapping[str, Any]) -> int:
    return 2 * math.prod(f.size for f in rule.factors)


def matrices(rule: FactorRule) -> tuple[int, int, int, int]:
    """The sum of products of the first operand and the others, as a product of matrices."""
    (left, right), result = ({f for dim in dims for f in dim} for dims in rule.operands[:2]), rule.results[0]
    kept, found = {f for dim in result for f in dim}, [1, 1, 1, 1]
    for f, factor in enumerate(rule.factors):
        at = 3 if f not in kept else 0 if f in left and f in right else 1 if f in left else 2
        found[at] *= factor.size
    return found[0], found[1], found[2], found[3]


# --- matmul ------------------------------------------------------------------


def _infer_matmul(site: CallSite) -> Inference | None:
    left, right = site.operands
    if not left.dims or not right.dims:
        _no_dims(site)
        return None
    inner, outer = left.dims[-1], right.dims[-2] if len(right.dims) > 1 else right.dims[-1]
    if inner != outer and not site.dims.same(inner, outer):
        _report_contraction(site, inner, outer)
        return None
    lead = _leading(site, left.dims[:-2], right.dims[:-2])
    if lead is None:
        return None
    resolve = site.dims.resolve
    rows, columns = left.dims[-2:-1], right.dims[-1:] if len(right.dims) > 1 else ()
    dims = tuple(map(resolve, (*lead, *rows, *columns)))
    factors = Factors()
    operands = [factors.dims([resolve(t) for t in type.dims]) for type in site.operands]
    rule = factors.rule(operands, (factors.dims(dims),), ((0,), (1,)))
    return Inference((TensorType(promote(site.operands), dims),), rule) if _one_dtype(site, "@") else None


def _one_dtype(site: CallSite, name: str) -> bool:
    """Whether all operands have one element type: a product, unlike `*`, converts none."""
    first = site.operands[0]
    other = next((i for i, t in enumerate(site.operands) if t.dtype != first.dtype), None)
    if other is None:
        return True
    narrow, wide = (0, site.operands[other].dtype) if not first.floating else (other, first.dtype)
    site.sink.report(
        "SH281",
        f"`{name}` multiplies values of one element type: {quoted(site.names[0])} is {first.dtype}, "
        f"and {quoted(site.names[other])} {site.operands[other].dtype}",
        site.span,
        labels=[(site.spans[0], str(first)), (site.spans[other], str(site.operands[other]))],
        help=f"convert one: `cast({site.names[narrow] or 'x'}, {wide})`",
    )
    return False


def _no_dims(site: CallSite) -> None:
    at = 0 if not site.operands[0].dims else 1
    site.sink.report(
        "SH282", f"`@` needs two tensors, and {quoted(site.names[at])} has no dims", site.spans[at],
        help="`*` multiplies by a number",
    )  # fmt: skip


def _leading(site: CallSite, left: Sequence[Term], right: Sequence[Term]) -> list[Term] | None:
    """Leading dims line up from the right; None after reporting."""
    result: list[Term] = []
    for back in range(max(len(left), len(right)), 0, -1):
        a: Term = left[-back] if back <= len(left) else ()
        b: Term = right[-back] if back <= len(right) else ()
        if a and b and a != b and not site.dims.same(a, b):
            one, other = told_apart(a, b)
            site.sink.report(
                "SH282",
                f"the leading dims of `@` do not line up: {sized(a)}{one} meets {sized(b)}{other}",
                site.span,
                labels=[(site.spans[0], str(site.operands[0])), (site.spans[1], str(site.operands[1]))],
                help="all dims but the last two are lined up from the right; `einsum` names the result's dims instead",
            )
            return None
        result.append(a or b)
    return result


def _report_contraction(site: CallSite, inner: Term, outer: Term) -> None:
    names, types = site.names, site.operands
    one, other = told_apart(inner, outer)
    site.sink.report(
        "SH282",
        f"`@` contracts {sized(inner)}{one} of {quoted(names[0])} with {sized(outer)}{other} of {quoted(names[1])}: "
        "they are not one dim",
        site.span,
        labels=[(site.spans[0], str(types[0])), (site.spans[1], str(types[1]))],
        help=_contraction_help(types, inner, outer, names),
    )


def _contraction_help(types: Sequence[TensorType], inner: Term, outer: Term, names: Sequence[str]) -> str:
    left, right = types
    if any(told_apart(inner, outer)) and (help := namesakes(types)):
        return help
    if inner in right.dims:
        result = ", ".join(term_text(t) for t in (*left.dims[:-1], *(t for t in right.dims if t not in left.dims)))
        return f"`{names[1]}` has `{term_text(inner)}` elsewhere: `einsum({names[0]}, {names[1]} -> [{result}])`"
    if term_size(inner) == term_size(outer):
        dims = ", ".join(term_text(outer if t is inner else t) for t in left.dims)
        return f"equal sizes are not the same dim; if they are meant to be one: `relabel({names[0]} -> [{dims}])`"
    return f"the second-last dim of {quoted(names[1])} must be `{term_text(inner)}`"


def _saved_matmul(local: LocalOp) -> Residuals:
    """As for any product; if leading dims are repeated for the other side, the copy is kept."""
    found, lead = others(local), local.results[0][:-2]
    sides = [(i, local.operands[i]) for i in found.operands]
    if any(len(shape) <= 2 for shape in local.operands):
        return found
    more = [elements(lead) * elements(shape[-2:]) for _, shape in sides if shape[:-2] != lead]
    kept = tuple(i for i, shape in sides if shape[:-2] == lead)
    return Residuals(kept, more=size((sum(more),), local.operand_types[0].dtype))


declare(
    "matmul", (Param("left", "tensor"), Param("right", "tensor")), _infer_matmul, between("@"),
    "The matrix product of the last two dims: the last of left is the second-last of right. Leading dims line up.",
    _flops, example="(left: [..., m, k], right: [k, n]) -> [..., m, n] { left @ right }", saved=_saved_matmul,
    work=products, symbol="@", precision=Precision.LOW, product=matrices,
)  # fmt: skip


# --- einsum ------------------------------------------------------------------


def _infer_einsum(site: CallSite) -> Inference | None:
    if site.arrow is None:
        site.sink.report(
            "SH283", "`einsum` needs the dims of its result", site.span, help="`einsum(x, w -> [..., out])` names them"
        )
        return None
    resolve = site.dims.resolve
    operands = [tuple(map(resolve, type.dims)) for type in site.operands]
    arrow = _known_terms(site, operands)
    if arrow is None or not _separate(site, operands):
        return None
    factors = Factors()
    rule = factors.rule(
        [factors.dims(t) for t in operands], (factors.dims(arrow),), tuple((i,) for i in range(len(operands)))
    )
    return Inference((TensorType(promote(site.operands), arrow),), rule) if _one_dtype(site, "einsum") else None


def _known_terms(site: CallSite, operands: Sequence[tuple[Term, ...]]) -> tuple[Term, ...] | None:
    """The result's terms, each an operand's (or a literal 1); None after reporting SH283."""
    known = dict.fromkeys(term for dims in operands for term in dims if term)
    ones = any(not term for dims in operands for term in dims)
    result: list[Term] = []
    for term in site.arrow or ():
        if not term and ones:
            result.append(term)
            continue
        found = term if term in known else next((t for t in known if site.dims.same(t, term)), None)
        if not term or found is None:
            _report_unknown(site, term, known)
            return None
        if found in result:
            site.sink.report(
                "SH283", f"the result of `einsum` names `{term_text(term)}` twice", site.span,
                help="a diagonal is no sum of products; each dim of the result is named once",
            )  # fmt: skip
            return None
        result.append(found)
    return tuple(map(site.dims.resolve, result))


def _report_unknown(site: CallSite, term: Term, known: Collection[Term]) -> None:
    whole = next((t for t in known if set(term) & set(t)), None)
    site.sink.report(
        "SH283",
        f"the result of `einsum` names `{term_text(term)}`, which is no dim of its operands",
        site.span,
        labels=[(span, str(type)) for span, type in zip(site.spans, site.operands, strict=True)],
        help=(
            f"`{term_text(whole)}` is one dim here: `rearrange` takes it apart or together, before or after"
            if whole
            else "an operand's dims are: " + ", ".join(sorted(f"`{term_text(t)}`" for t in known))
            if term
            else "`rearrange` adds dims of size 1"
        ),
    )


def _separate(site: CallSite, operands: Sequence[tuple[Term, ...]]) -> bool:
    """Whether no dim is in two different products (`rearrange` must come first); else SH283."""
    home: dict[Dim, Term] = {}
    for dims in operands:
        for term in dims:
            for dim in term:
                other = home.setdefault(dim, term)
                if other != term:
                    _report_crossing(site, dim, other, term)
                    return False
    return True


def _report_crossing(site: CallSite, dim: Dim, one: Term, other: Term) -> None:
    site.sink.report(
        "SH283",
        f"`einsum` meets `{dim.name}` both in `{term_text(one)}` and in `{term_text(other)}`",
        site.span,
        labels=[(span, str(type)) for span, type in zip(site.spans, site.operands, strict=True)],
        help="`rearrange` splits or merges one of them so that both are written alike",
    )


def _emit_einsum(site: OpSite) -> Code:
    rule = site.rule
    if len(rule.operands) == 2:
        plain = _as_product(site, rule.operands[0], rule.operands[1], rule.results[0])
        if plain:
            return plain
    letters = _Letters(rule)
    inputs = ",".join(letters.text(dims) for dims in rule.operands)
    named = tuple(factors for factors in rule.results[0] if factors)
    text = TORCH("einsum", literal(f"{inputs}->{letters.text(named)}"), *site.operands)
    return text if named == rule.results[0] else method(text, "reshape", *site.result_shapes[0])


Dims = tuple[DimFactors, ...]


def _saved_einsum(local: LocalOp) -> Residuals:
    """All operands; for more than two, multiplied in turn, the intermediate products too."""
    rule = local.rule
    sizes: dict[DimFactors, int] = {}
    for dims, shape in zip(rule.operands, local.operands, strict=True):
        sizes.update(zip(dims, shape, strict=True))
    more, open_ = 0, list(rule.operands[0])
    for at in range(1, len(rule.operands) - 1):
        wanted = {*rule.results[0], *(dim for dims in rule.operands[at + 1 :] for dim in dims)}
        open_ = [dim for dim in dict.fromkeys((*open_, *rule.operands[at])) if dim in wanted]
        more += elements(tuple(sizes[dim] for dim in open_))
    return Residuals(others(local).operands, more=size((more,), local.operand_types[0].dtype) if more else 0)


def linear(site: OpSite, *given: str) -> Code:
    """`F.linear(x, w)`, or what computes the gradient of w while that of x is sent."""
    return RT("overlapped_linear", *given) if site.beside else F("linear", *given)


def _as_product(site: OpSite, left: Dims, right: Dims, result: Dims) -> Code | None:
    """`x @ w` or `F.linear(x, w)` where the einsum is exactly that; None otherwise."""
    x, w = site.operands
    if () in left[-1:] or () in right or len(left) < 2 or len(right) < 2:
        return None
    if len(right) == 2 and result[:-1] == left[:-1] and len(result) == len(left):
        if right == (left[-1], result[-1]):
            return infix("@", x, w)
        if right == (result[-1], left[-1]):
            return linear(site, x, w)
    lead = left[:-2]
    if right[:-2] != lead or () in left:
        return None
    if result == (*lead, left[-2], right[-1]) and left[-1] == right[-2]:
        return infix("@", x, w)
    if result == (*lead, left[-2], right[-2]) and left[-1] == right[-1]:
        return infix("@", x, method(w, "transpose", -2, -1))
    return None


class _Letters:
    """A letter for each tensor dim: the first letter of its name that is free."""

    def __init__(self, rule: FactorRule) -> None:
        self._rule = rule
        self._taken: dict[object, str] = {}

    def text(self, dims: Dims) -> str:
        return "".join(self._letter(factors or ("one", object())) for factors in dims)

    def _letter(self, key: tuple[object, ...]) -> str:
        if key not in self._taken:
            name = self._rule.factors[key[0]].name if isinstance(key[0], int) else ""
            wanted = [c for c in name.lower() if c.isascii() and c.isalpha()]
            used = set(self._taken.values())
            rest = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
            self._taken[key] = next(c for c in (*wanted, *rest) if c not in used)
        return self._taken[key]


declare(
    "einsum", (Param("operands", "tensors"),), _infer_einsum, _emit_einsum,
    "The sum of products: every dim that the result does not name is contracted.", _flops,
    example="(x: [..., in], weight: [out, in]) -> [..., out] { einsum(x, weight -> [..., out]) }",
    arrow=Arrow.DIMS, saved=_saved_einsum, work=products, precision=Precision.LOW, product=matrices,
)  # fmt: skip
