"""Dims with identity, products of dims, and tensor types: pure values.

A dim is a name and a size; two dims are the same only if they are one object. A tensor dim is a
*term*: a tuple of dims, major first (`heads * head_dim`); a literal `1` is the empty term."""

from __future__ import annotations

import math
from functools import cached_property

from shardlang.facts.dtypes import DTYPES
from shardlang.frozen.records import dataclass
from shardlang.sources.source import Span

BYTES = {name: facts.bytes for name, facts in DTYPES.items()}
FLOATS = tuple(name for name, facts in DTYPES.items() if facts.floating)
LOW = tuple(sorted(name for name in FLOATS if BYTES[name] < BYTES["f32"]))


def low(dtype: str) -> bool:
    """Whether a floating type is narrower than f32."""
    return dtype in LOW


def wide(dtype: str) -> str:
    """The type in which sums over values of a type are taken."""
    return "f32" if low(dtype) else dtype


@dataclass(frozen=True, eq=False, slots=True)
class Dim:
    """One named size. `literal` dims were made from a number and may unify once with another dim of
    their size.

    `size` is None only while a model is checked generically without values for its formals. `home`:
    the path of the layer that declares it, "" for the root; None where no model does."""

    name: str
    size: int | None
    span: Span | None = None
    literal: bool = False
    home: str | None = None

    def __repr__(self) -> str:
        return f"{self.name}={self.size}"


Term = tuple[Dim, ...]
ONE: Term = ()


def term_size(term: Term) -> int | None:
    """Product of the sizes of a term's dims; None where one is unknown."""
    sizes = [d.size for d in term]
    return None if None in sizes else math.prod(s for s in sizes if s is not None)


def term_text(term: Term) -> str:
    """`heads * head_dim`; `1` for the empty term; a literal dim without a name shows its size."""
    return " * ".join(d.name if d.size is None or _named(d) else str(d.size) for d in term) or "1"


def _named(dim: Dim) -> bool:
    """Whether a dim has a name: one made from a number has if a formal gave it (`fc1.out`)."""
    return not dim.literal or (dim.span is not None and not dim.name.rpartition(".")[2].isdigit())


def told_apart(one: Term, other: Term) -> tuple[str, str]:
    """The addition of a message to the names of two different terms: nothing, or where their dims
    are from, if they have the same names and sizes."""
    if (term_text(one), term_size(one)) != (term_text(other), term_size(other)):
        return "", ""
    for a, b in zip(one, other, strict=True):
        for origin in (_home, _file, _line) if a is not b else ():
            left, right = origin(a), origin(b)
            if left != right:
                return f" of {left}", f" of {right}"
    return "", ""


def _home(dim: Dim) -> str:
    if dim.home is None:
        return "the file"
    return f"layer `{dim.home}`" if dim.home else "the model"


def _file(dim: Dim) -> str:
    return f"`{dim.span.source.name}`" if dim.span is not None else "a number"


def _line(dim: Dim) -> str:
    return f"line {dim.span.line}" if dim.span is not None else "a number"


@dataclass(frozen=True)
class TensorType:
    """Element type and terms. Equality is identity of dims."""

    dtype: str
    dims: tuple[Term, ...]

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the whole tensor; an unknown size raises ValueError."""
        sizes = [term_size(t) for t in self.dims]
        if None in sizes:
            raise ValueError(f"type {self} has a dim of unknown size")
        return tuple(s for s in sizes if s is not None)

    @cached_property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * BYTES[self.dtype]

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(term_text(t) for t in self.dims)}]"
