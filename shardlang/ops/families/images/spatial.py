"""The spatial dims of a value: how many there are, which sizes windows leave, and arguments with a
number for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.ops.declaration import CallSite, Param
from shardlang.ops.factors import quoted, require
from shardlang.ops.site import OpSite
from shardlang.types.dim import Term, term_size, term_text

X = Param("x", "tensor")
Sizes = tuple[int, ...]
# The spatial dims of a value, by how many they are; and the kind of an argument with a number each.
SPATIAL = {1: ("length",), 2: ("height", "width")}
KINDS = {1: "int", 2: "pair"}


def image(site: CallSite, *ranks: int) -> None:
    """SH281 or SH287 where the first operand has not one of these counts of spatial dims."""
    type = site.operands[0]
    require(site, 0, "floating")
    if len(type.dims) - 2 in ranks:
        return
    wanted = " or ".join(f"[{', '.join(('batch', 'channels', *SPATIAL[n]))}]" for n in ranks)
    many = " or ".join({1: "three", 2: "four"}[n] for n in ranks)
    site.refuse("SH287", f"`{site.operator.name}` needs {wanted}, and {quoted(site.names[0])} is {type}",
                f"`rearrange({site.names[0]} -> [...])` gives it {many} dims; a literal 1 adds one of size 1",
                span=site.spans[0])  # fmt: skip


def each(site: CallSite, name: str) -> Sizes:
    """An argument with a number for each spatial dim."""
    value = site.static[name]
    return value if isinstance(value, tuple) else (value,)


def windows(site: CallSite, window: Sequence[int | None], stride: Sizes, padding: Sizes, dilation: Sizes) -> list[Term]:
    """The spatial dims that windows leave."""
    result: list[Term] = []
    names = SPATIAL[len(window)]
    for i, term in enumerate(site.operands[0].dims[2:]):
        size, wide = term_size(term), window[i]
        if size is None or wide is None:
            result.append(site.dims.fresh(names[i], None))
            continue
        room = size + 2 * padding[i] - dilation[i] * (wide - 1) - 1
        if room < 0 or stride[i] < 1:
            fact = f"a window of {wide} over `{term_text(term)}` with {padding[i]} of padding"
            fact = f"a stride of {stride[i]}" if stride[i] < 1 else fact
            help = "a window fits into the padded image, and a stride is 1 or more"
            site.refuse("SH293", f"`{site.operator.name}` has no place for {fact}", help, 0)
        result.append(site.dims.fresh(names[i], room // stride[i] + 1))
    return result


def plain(value: Any) -> Any:
    """(2, 2) is written 2."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


def options(site: OpSite, defaults: dict[str, object]) -> dict[str, object]:
    """Attributes that differ from torch's defaults, as keywords."""
    found = {name: plain(site.attrs[name]) for name in defaults}
    return {name: value for name, value in found.items() if value != defaults[name]}
