"""Calls of operators written shortly (`call("matmul", "batch=4 in=6", "in out=8")`) -> what `infer` gets and gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import shardlang.ops.all_families  # noqa: F401
from shardlang.check.graph.unify import Unifier
from shardlang.diagnostics.diagnostic import Sink
from shardlang.ops.declaration import REGISTRY, CallSite, Inference
from shardlang.sources.source import Source, Span
from shardlang.types.dim import DTYPES, Dim, TensorType, Term

_SOURCE = Source("test.shard", "call")
_SPAN = Span(_SOURCE, 0, 4)


@dataclass
class Call:
    """One call. Types: dims between blanks, `name=size` at first mention, products `h=2*e=4`, `1`; a dtype first."""

    operator: str
    types: tuple[TensorType | None, ...]
    static: dict[str, Any]
    sink: Sink
    inference: Inference | None
    dims: dict[str, Dim] = field(default_factory=dict)

    @property
    def codes(self) -> list[str]:
        return [d.code for d in self.sink.found]


def term(text: str, dims: dict[str, Dim]) -> Term:
    """`h=2*e=4` -> dims; `#28` is a literal of size 28."""
    found: list[Dim] = []
    for part in text.split("*"):
        if part == "1":
            continue
        if part.startswith("#"):
            found.append(Dim(part[1:], int(part[1:]), None, True))
            continue
        name, _, size = part.partition("=")
        if name not in dims:
            dims[name] = Dim(name, int(size))
        found.append(dims[name])
    return tuple(found)


def tensor_type(text: str, dims: dict[str, Dim]) -> TensorType:
    words = text.split()
    dtype = words.pop(0) if words and words[0] in DTYPES else "f64"
    return TensorType(dtype, tuple(term(w, dims) for w in words))


def _static(value: Any, kind: str, dims: dict[str, Dim]) -> Any:
    match kind:
        case "dim" | "newdim":
            return term(value, dims)
        case "dims":
            return None if value is None else tuple(term(v, dims) for v in value.split())
        case "pair":
            return (value, value) if isinstance(value, int) else value
        case "places":
            return tuple((term(name, dims), index) for name, index in value.items())
        case "slices":
            return tuple((term(name, dims), *bounds, *[1][len(bounds) - 2 :]) for name, bounds in value.items())
        case "pads":
            return tuple((term(name, dims), *both) for name, both in value.items())
    return value


def call(operator: str, *operands: str | None, arrow: str | None = None, **static: Any) -> Call:
    """Infer one call; `static` by parameter name, dims by name."""
    declared = REGISTRY[operator]
    dims: dict[str, Dim] = {}
    types = tuple(None if o is None else tensor_type(o, dims) for o in operands)
    params = [p for p in declared.params if p.kind not in ("tensor", "tensors")]
    names = [p.name for p in declared.params if p.kind == "tensor"] or [f"x{i}" for i in range(len(types))]
    values = {p.name: _static(static[p.name], p.kind, dims) if p.name in static else p.default for p in params}
    sink = Sink()
    terms = None if arrow is None else tuple(term(w, dims) for w in arrow.split())
    types += (None,) * (sum(p.kind == "tensor" for p in declared.params) - len(types))
    site = CallSite(
        declared,
        types,  # type: ignore[arg-type]
        values,
        terms,
        Unifier(),
        sink,
        _SPAN,
        (_SPAN,) * len(types),
        tuple(names),
    )
    return Call(operator, types, values, sink, declared.inferred(site), dims)
