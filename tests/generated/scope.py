"""What a generated forward may read while it is written: dims by name, values with their dims, members, functions.

A `Scope` is the inside of one model or function. Its dims may be formals; `outer` says what the caller calls them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field

Term = tuple[str, ...]
Dims = tuple[Term, ...]

FLOAT, WHOLE, TRUTH = "f", "i", "b"

# The run's element type in casts: f32, or f64 where a run in float64 is to be exact.
RUN = "run_type"

# A feature of programs: some of their ids may be no place of the dim that they index.
BEYOND = "an index beyond its bounds"

# Above this magnitude a value is squashed before anything else reads it: what is compared is rounding, not growth.
LARGEST = 12.0


@dataclass(eq=False)
class Value:
    """A value of the forward: its name, dims, kind of element, a rough bound of its magnitude, how often it is read."""

    name: str
    dims: Dims
    kind: str = FLOAT
    size: float = 1.0
    uses: int = 0
    bound: int | None = None
    addressed: bool = True

    @property
    def named(self) -> bool:
        """Whether every dim has a name that can be written in a type."""
        return all(not p.startswith("~") for t in self.dims for p in t)

    def parts(self) -> list[str]:
        return [p for t in self.dims for p in t]


def text(term: Term) -> str:
    return " * ".join(bare(p) for p in term) or "1"


def bare(name: str) -> str:
    """`~width.3`, a dim that an operator made of `width`, is still found as `width` in arguments."""
    return name.removeprefix("~").partition(".")[0]


def typed(dims: Sequence[Term]) -> str:
    return "[" + ", ".join(text(t) for t in dims) + "]"


class Unfit(Exception):
    """A piece does not fit what is there; what it has written is taken back (`Scope.tried`)."""


@dataclass
class Shared:
    """Of the whole program: the file's dims, its models and functions, imports, counters and features."""

    rng: random.Random
    sizes: dict[str, int] = field(default_factory=dict)
    items: list[str] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)
    blocks: int = 0
    apart: bool = False  # no operator sees several examples at once, as microbatches need it
    deep: bool = False  # layers for two or more stages on each rank
    count: int = 0
    makers: dict[str, object] = field(default_factory=dict)

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"


# What a piece writes to in a scope.
WRITTEN = ("members", "lines", "live", "params", "tables", "layers")


@dataclass
class Scope:
    """One body. sizes: its own dims besides the file's; outer: own dim -> the file's dims that it stands for.

    params: name -> dims. tables: those of them that nothing but `embedding` reads. layers: name -> dims in and out.
    bound: dims that the signature binds, unknown to members.
    """

    shared: Shared
    sizes: dict[str, int] = field(default_factory=dict)
    outer: dict[str, Term] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    live: list[Value] = field(default_factory=list)
    params: dict[str, Dims] = field(default_factory=dict)
    tables: dict[str, Dims] = field(default_factory=dict)
    layers: dict[str, tuple[Dims, Dims]] = field(default_factory=dict)
    depth: int = 0
    bound: set[str] = field(default_factory=set)

    @property
    def rng(self) -> random.Random:
        return self.shared.rng

    def feature(self, name: str) -> None:
        self.shared.features.add(name)

    def size(self, name: str) -> int:
        return self.sizes[name] if name in self.sizes else self.shared.sizes[name]

    def length(self, term: Term) -> int:
        total = 1
        for part in term:
            total *= self.size(part)
        return total

    def made(self, of: str, size: int) -> str:
        """A dim that an operator makes: without a name of its own in types."""
        name = f"~{bare(of)}.{self.shared.fresh('')}"
        self.sizes[name] = size
        return name

    def batch(self, term: Term) -> bool:
        return any(self.canonical(p) == ("batch",) for p in term)

    def canonical(self, name: str) -> Term:
        return self.outer.get(name, (name,))

    # --- writing ---

    def tried(self, piece: Callable[[Scope], Value | None]) -> Value | None:
        """What a piece makes; None where it does not fit, and then nothing of it stays."""
        before = {name: copy(getattr(self, name)) for name in WRITTEN}
        uses = [(value, value.uses) for value in self.live]
        try:
            return piece(self)
        except Unfit:
            vars(self).update(before)
            for value, count in uses:
                value.uses = count
            return None

    def let(
        self, expression: str, dims: Dims, kind: str = FLOAT, size: float = 1.0, *reads: Value, bound: int | None = None
    ) -> Value:
        """A further statement. Large values are squashed at once."""
        for value in reads:
            value.uses += bool(re.search(rf"\b{value.name}\b", expression))
        name = self.shared.fresh("v")
        if kind == FLOAT and size > LARGEST and self.rng.random() < 0.5:
            expression, size = f"tanh({expression})", 1.0
        self.lines.append(f"{name} = {expression}")
        value = Value(name, dims, kind, size, bound=bound)
        if kind == FLOAT and size > LARGEST:
            value.uses += 1
            return self.let(f"0.1 * tanh({name})", dims)
        return value

    def param(self, dims: Dims, start: str | None = None, again: float = 0.45) -> str:
        """A parameter of these dims, at times one that is there already: then it is tied."""
        self.declarable(dims)
        known = [n for n, d in self.params.items() if d == dims]
        if known and self.rng.random() < again:
            self.feature("tied parameter")
            return self.rng.choice(known)
        name = self.shared.fresh("p")
        # Only vectors begin alike in all elements: the spread of a constant table is nothing but rounding.
        flat = ("ones()", "constant(0.7)") if len(dims) == 1 else ()
        start = start or self.rng.choice(("normal(0.5)", "normal(0.5)", "uniform(-1.0, 1.0)", "normal(0.3)", *flat,
                                          f"kaiming_uniform({max(1, self.length(dims[-1]))})",
                                          "xavier_uniform(4, 6)"))  # fmt: skip
        self.members.append(f"param {name}: {typed(dims)} = {start}")
        self.params[name] = dims
        return name

    def table(self, dims: Dims) -> str:
        """A parameter for `embedding` alone, at times one that is looked up already."""
        self.declarable(dims)
        known = [n for n, d in self.tables.items() if d == dims]
        if known and self.rng.random() < 0.3:
            self.feature("tied table")
            return self.rng.choice(known)
        name = self.shared.fresh("t")
        self.members.append(f"param {name}: {typed(dims)} = normal(0.5)")
        self.tables[name] = dims
        return name

    def state(self, dims: Dims, start: str) -> str:
        self.declarable(dims)
        name = self.shared.fresh("s")
        self.members.append(f"state {name}: {typed(dims)} = {start}")
        return name

    def layer(self, letter: str, call: str, *terms: Term) -> str:
        """A layer made by `call`, whose arguments are made of these dims; its name."""
        self.declarable(terms)
        name = self.shared.fresh(letter)
        self.members.append(f"layer {name} = {call}")
        return name

    def declarable(self, dims: Sequence[Term]) -> None:
        """Raises Unfit where a member cannot be declared with these dims."""
        if any(p in self.bound for t in dims for p in t):
            raise Unfit

    def index(self, x: Value, size: int) -> str:
        """Ids below a size as they are, or computed from them: up to the last place of a dim of that size, and at one
        place of a program beyond it or before the first.

        Drawn from a copy of the numbers, so that what is drawn after it is as it was.
        """
        draw = random.Random()
        draw.setstate(self.rng.getstate())
        kind = draw.random()
        if kind < 0.55 or x.bound is None:
            return x.name
        self.feature("computed indices")
        if kind < 0.85 or BEYOND in self.shared.features:
            return draw.choice([f"{size - 1} - {x.name}", f"{x.name} + {size - x.bound}", f"({x.name} * 3) % {size}"])
        self.feature(BEYOND)
        return draw.choice([f"{x.name} - 1", f"{size} - {x.name}", f"{x.name} * {size}"])

    # --- choosing ---

    def floats(self, named: bool = True, least: int = 1) -> list[Value]:
        return [v for v in self.live if v.kind == FLOAT and (v.named or not named) and len(v.dims) >= least]

    def pick(self, named: bool = True, least: int = 1) -> Value | None:
        """A floating value, the latest and those that nothing reads yet before others."""
        found = self.floats(named, least)
        if not found:
            return None
        unread = [v for v in found if not v.uses]
        return self.rng.choice(unread if unread and self.rng.random() < 0.6 else found[-4:])

    def alike(self, value: Value) -> Value:
        """A value of the same dims, perhaps the same."""
        return self.rng.choice([v for v in self.live if v.dims == value.dims and v.kind == value.kind] or [value])

    def others(self, taken: Sequence[str]) -> list[str]:
        """Names of the file that are none of these dims, also not by another name."""
        used = {p for t in taken for p in self.canonical(t)}
        return [n for n in POOL if n not in used]

    def unused(self) -> Iterator[Value]:
        return (v for v in self.live if not v.uses)


def beside(rng: random.Random) -> random.Random:
    """Numbers of their own, drawn from nothing: what else a seed writes stays as it was."""
    return random.Random(str(rng.getstate()[1]))


POOL = ("seq", "width", "hidden", "other", "more", "key")
