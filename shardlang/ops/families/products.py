"""Sums of products: `@` and `einsum`. A contracted dim that is split leaves a pending sum."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NoReturn

from shardlang.ops.code import RT, TORCH, Code, F, infix, method
from shardlang.ops.declaration import Arrow, CallSite, Inference, Param, Precision, between, declare
from shardlang.ops.factors import Factors, namesakes, promote, quoted, sized
from shardlang.ops.python_text import literal
from shardlang.ops.rule import DimFactors, FactorRule
from shardlang.ops.saved_activations import LocalOp, Residuals, elements, others, size
from shardlang.ops.site import OpSite
from shardlang.ops.working_memory import products
from shardlang.types.dim import Dim, TensorType, Term, term_size, term_text, told_apart


def matrices(rule: FactorRule) -> tuple[int, int, int, int]:
    """The sum of products of the first operand and the others, as a product of matrices."""
    sides = (*rule.operands[:2], *rule.results)
    left, *right, kept = ({f for dim in dims for f in dim} for dims in sides)
    found = [1, 1, 1, 1]
    for f, factor in enumerate(rule.factors):
        at = 3 if f not in kept else 2 if f not in left else 0 if any(f in side for side in right) else 1
        found[at] *= factor.size
    return found[0], found[1], found[2], found[3]


# --- matmul ------------------------------------------------------------------


def _infer_matmul(site: CallSite) -> Inference:
    left, right = site.operands
    if not left.dims or not right.dims:
        at = 0 if not left.dims else 1
        fact = f"`@` needs two tensors, and {quoted(site.names[at])} has no dims"
        site.refuse("SH282", fact, "`*` multiplies by a number", span=site.spans[at])
    inner, outer = left.dims[-1], right.dims[-2] if len(right.dims) > 1 else right.dims[-1]
    if inner != outer and not site.dims.same(inner, outer):
        _refuse_contraction(site, inner, outer)
    lead = _leading(site, left.dims[:-2], right.dims[:-2])
    _require_one_dtype(site, "@")
    resolve = site.dims.resolve
    rows, columns = left.dims[-2:-1], right.dims[-1:] if len(right.dims) > 1 else ()
    dims = tuple(map(resolve, (*lead, *rows, *columns)))
    factors = Factors()
    operands = [factors.dims([resolve(t) for t in type.dims]) for type in site.operands]
    rule = factors.rule(operands, (factors.dims(dims),), ((0,), (1,)))
    return Inference((TensorType(promote(site.operands), dims),), rule)


def _require_one_dtype(site: CallSite, name: str) -> None:
    """SH281 where operands have several element types: a product, unlike `*`, converts none."""
    first = site.operands[0]
    other = next((i for i, t in enumerate(site.operands) if t.dtype != first.dtype), None)
    if other is None:
        return
    narrow, wide = (0, site.operands[other].dtype) if not first.floating else (other, first.dtype)
    site.refuse("SH281", f"`{name}` multiplies values of one element type: {quoted(site.names[0])} is {first.dtype}, "
                f"and {quoted(site.names[other])} {site.operands[other].dtype}",
                f"convert one: `cast({site.names[narrow] or 'x'}, {wide})`", 0, other)  # fmt: skip


def _leading(site: CallSite, left: Sequence[Term], right: Sequence[Term]) -> list[Term]:
    """Leading dims line up from the right."""
    result: list[Term] = []
    for back in range(max(len(left), len(right)), 0, -1):
        a: Term = left[-back] if back <= len(left) else ()
        b: Term = right[-back] if back <= len(right) else ()
        if a and b and a != b and not site.dims.same(a, b):
            one, other = told_apart(a, b)
            fact = f"the leading dims of `@` do not line up: {sized(a)}{one} meets {sized(b)}{other}"
            help = "all dims but the last two are lined up from the right; `einsum` names the result's dims instead"
            site.refuse("SH282", fact, help, 0, 1)
        result.append(a or b)
    return result


def _refuse_contraction(site: CallSite, inner: Term, outer: Term) -> NoReturn:
    (one, other), names = told_apart(inner, outer), site.names
    left, right = f"{sized(inner)}{one} of {quoted(names[0])}", f"{sized(outer)}{other} of {quoted(names[1])}"
    help = _contraction_help(site.operands, inner, outer, names)
    site.refuse("SH282", f"`@` contracts {left} with {right}: they are not one dim", help, 0, 1)


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
    example="(left: [..., m, k], right: [k, n]) -> [..., m, n] { left @ right }", saved=_saved_matmul,
    work=products, symbol="@", precision=Precision.LOW, product=matrices,
)  # fmt: skip


# --- einsum ------------------------------------------------------------------


def _infer_einsum(site: CallSite) -> Inference:
    if site.arrow is None:
        site.refuse("SH283", "`einsum` needs the dims of its result", "`einsum(x, w -> [..., out])` names them")
    resolve = site.dims.resolve
    operands = [tuple(map(resolve, type.dims)) for type in site.operands]
    arrow = _known_terms(site, operands)
    _require_separate(site, operands)
    _require_one_dtype(site, "einsum")
    factors = Factors()
    rule = factors.rule(
        [factors.dims(t) for t in operands], (factors.dims(arrow),), tuple((i,) for i in range(len(operands)))
    )
    return Inference((TensorType(promote(site.operands), arrow),), rule)


def _known_terms(site: CallSite, operands: Sequence[tuple[Term, ...]]) -> tuple[Term, ...]:
    """The result's terms, each an operand's (or a literal 1); else SH283."""
    known = dict.fromkeys(term for dims in operands for term in dims if term)
    ones = any(not term for dims in operands for term in dims)
    result: list[Term] = []
    for term in site.arrow or ():
        if not term and ones:
            result.append(term)
            continue
        found = term if term in known else next((t for t in known if site.dims.same(t, term)), None)
        if not term or found is None:
            _refuse_unknown(site, term, known)
        if found in result:
            site.refuse("SH283", f"the result of `einsum` names `{term_text(term)}` twice",
                        "a diagonal is no sum of products; each dim of the result is named once")  # fmt: skip
        result.append(found)
    return tuple(map(site.dims.resolve, result))


def _refuse_unknown(site: CallSite, term: Term, known: Collection[Term]) -> NoReturn:
    whole = next((t for t in known if set(term) & set(t)), None)
    help = "`rearrange` adds dims of size 1"
    if whole:
        help = f"`{term_text(whole)}` is one dim here: `rearrange` takes it apart or together, before or after"
    elif term:
        help = "an operand's dims are: " + ", ".join(sorted(f"`{term_text(t)}`" for t in known))
    fact = f"the result of `einsum` names `{term_text(term)}`, which is no dim of its operands"
    site.refuse("SH283", fact, help, *range(len(site.operands)))


def _require_separate(site: CallSite, operands: Sequence[tuple[Term, ...]]) -> None:
    """SH283 where a dim is in two different products (`rearrange` must come first)."""
    home: dict[Dim, Term] = {}
    for dims in operands:
        for term in dims:
            for dim in term:
                other = home.setdefault(dim, term)
                if other != term:
                    fact = f"`einsum` meets `{dim.name}` both in `{term_text(other)}` and in `{term_text(term)}`"
                    help = "`rearrange` splits or merges one of them so that both are written alike"
                    site.refuse("SH283", fact, help, *range(len(site.operands)))


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
    "The sum of products: every dim that the result does not name is contracted.",
    example="(x: [..., in], weight: [out, in]) -> [..., out] { einsum(x, weight -> [..., out]) }",
    arrow=Arrow.DIMS, saved=_saved_einsum, work=products, precision=Precision.LOW, product=matrices,
)  # fmt: skip
