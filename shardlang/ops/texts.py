"""A site -> pieces of Python text that several families write: dims, groups, offsets, local sizes of factors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from shardlang.ops.rule import DimFactors
from shardlang.ops.site import OpSite
from shardlang.python_text import tuple_text

_NUMBER = re.compile(r"-?[0-9][0-9_]*(\.[0-9]*)?([eE][-+]?[0-9]+)?|-?inf|nan")

TORCH_DTYPES = {
    "f64": "torch.float64", "f32": "torch.float32", "f16": "torch.float16", "bf16": "torch.bfloat16",
    "i64": "torch.int64", "i32": "torch.int32", "bool": "torch.bool",
}  # fmt: skip


def is_number(text: str) -> bool:
    """Whether an operand's text is a literal (a static number); one below 0 stands in brackets."""
    return _NUMBER.fullmatch(text.strip("()")) is not None


def atom(text: str) -> str:
    """`text` so that an operator or a method may follow or precede it."""
    return f"({text})" if text.startswith("-") or not (is_number(text) or _is_primary(text)) else text


def _is_primary(text: str) -> bool:
    """Whether `text` is a name and what is called, indexed or read of it."""
    depth = 0
    for char in text:
        depth -= char in ")]"
        if depth == 0 and not (char.isalnum() or char in "_.()[]"):
            return False
        depth += char in "(["
    return not text.startswith("(")


def receiver(text: str) -> str:
    """`text` so that a method may follow it: `x`, `(a + b)`."""
    return atom(text)


def dims_text(dims: Sequence[int]) -> str:
    """`1`, or `(1, 2)`: the dims argument of a reduction."""
    return str(dims[0]) if len(dims) == 1 else tuple_text(dims)


def factors_of(dims: Iterable[DimFactors]) -> tuple[int, ...]:
    """All factors of some tensor dims, each once, in order."""
    return tuple(dict.fromkeys(f for factors in dims for f in factors))


def group_text(site: OpSite, factors: Iterable[int]) -> str:
    """The group over all axes of `factors`: `mesh.mp`; a tuple where several factors are split; "" where none is."""
    groups = list(dict.fromkeys(site.groups[f] for f in factors if site.groups[f]))
    return "" if not groups else groups[0] if len(groups) == 1 else tuple_text(groups)


def cut(site: OpSite, at: int, dims: Iterable[int] | None = None) -> bool:
    """Whether operand `at` has less than the whole of some of `dims` (default: all) on a rank or in a microbatch."""
    chosen = range(len(site.operand_shapes[at])) if dims is None else dims
    shape = site.operand_types[at].shape
    return any(site.operand_shapes[at][d] != str(shape[d]) for d in chosen)


def offset_text(site: OpSite, factors: DimFactors) -> str:
    """The global index of the first local element of a tensor dim, made of `factors`, major first."""
    parts: list[str] = []
    inner = 1
    for f in reversed(factors):
        if site.offsets[f] != "0":
            parts.insert(0, _times(site.offsets[f], inner))
        inner *= site.rule.factors[f].size
    return " + ".join(parts) or "0"


def _times(text: str, factor: int) -> str:
    if factor == 1:
        return text
    match = re.fullmatch(r"(.*) \* (\d+)", text)
    if match:
        return f"{match[1]} * {int(match[2]) * factor}"
    return f"{atom(text)} * {factor}"


def local_factor(site: OpSite, factor: int) -> str:
    """The local size of one factor, as text."""
    if not site.groups[factor] and site.offsets[factor] == "0" and not _seen_cut(site, factor):
        return str(site.rule.factors[factor].size)
    found = list(_tensors(site))
    for dims, shape in found:
        if (factor,) in dims:
            return shape[dims.index((factor,))]
    for dims, shape in found:
        for factors, size in zip(dims, shape, strict=True):
            if factor in factors:
                return _divided(size, [local_factor(site, f) for f in factors if f != factor])
    return str(site.rule.factors[factor].size)


def _seen_cut(site: OpSite, factor: int) -> bool:
    """Whether a tensor dim of this factor alone is locally smaller (cut in time, without a group)."""
    whole = str(site.rule.factors[factor].size)
    return any((factor,) in dims and shape[dims.index((factor,))] != whole for dims, shape in _tensors(site))


def _tensors(site: OpSite) -> Iterable[tuple[tuple[DimFactors, ...], tuple[str, ...]]]:
    yield from zip(site.rule.operands, site.operand_shapes, strict=True)
    yield from zip(site.rule.results, site.result_shapes, strict=True)


def _divided(size: str, parts: Sequence[str]) -> str:
    if size.isdigit() and all(p.isdigit() for p in parts):
        number = int(size)
        for part in parts:
            number //= int(part)
        return str(number)
    return " // ".join([size, *map(atom, parts)])
