"""Pieces of a generated forward that call models and functions, made for them: nested, in arrays, several times."""

from __future__ import annotations

from collections.abc import Callable

from tests.generated import numbers, pointwise, products
from tests.generated.scope import FLOAT, LARGEST, Dims, Scope, Term, Value, text, typed

FUNCTIONS = {
    "gated": "fn gated(a: [..., h], b: [..., h], scale: float = 1.0) -> [..., h] {\n  return silu(a) * b * scale\n}",
    "weighed": "fn weighed(a: [..., h], b: [..., h], scale: float = 0.5) -> [..., h] {\n"
    "  w = softmax(a * scale, over = h)\n  return w * tanh(b)\n}",
    "levelled": "fn levelled(a: [..., g, h], b: [..., g, h], scale: float = 2.0) -> [..., g, h] {\n"
    "  u = layer_norm(a, over = (g, h))\n  v = cumsum(tanh(b), over = g)\n  return u + scale * v\n}",
    "parted": "fn parted(a: [..., h], b: [..., h], scale: float = 0.4) -> [..., h], [..., h] {\n"
    "  c = tanh(a) * scale\n  return c - b, c * sigmoid(b)\n}",
    "turned": "fn turned(a: [..., g, h], b: [..., g, h], scale: float = 0.3) -> [..., h, g] {\n"
    "  c = relu(a) - scale * abs(b)\n  return rearrange(c -> [..., h, g])\n}",
}

# Cells of a scan: `model Kind(d)`; the last has two states.
CELLS = {
    "faded": "model Faded(d: dim) {\n  param rate: [d] = normal(0.3)\n\n"
    "  forward(x: [..., d], h: [..., d]) -> [..., d], [..., d] {\n"
    "    after = sigmoid(rate) * h + x\n    return tanh(after), 0.3 * after\n  }\n}",
    "mixed": "model Mixed(d: dim) {\n  dim before = d\n  param w: [d, before] = normal(0.3)\n\n"
    "  forward(x: [..., d], h: [..., d]) -> [..., d], [..., d] {\n"
    "    after = tanh(x + einsum(relabel(h -> [..., before]), w -> [..., d]))\n    return after, after\n  }\n}",
    "paired": "model Paired(d: dim) {\n  dim before = d\n  param w: [d, before] = normal(0.3)\n\n"
    "  forward(x: [..., d], h: [..., d], c: [..., d]) -> [..., d], [..., d], [..., d] {\n"
    "    new = tanh(x + einsum(relabel(h -> [..., before]), w -> [..., d]))\n"
    "    kept = 0.5 * c + sigmoid(x) * new\n    return x * new, tanh(kept), kept\n  }\n}",
}


def function(s: Scope) -> Value | None:
    """A call of a function of the file."""
    x = s.pick(least=2)
    if x is None:
        return None
    name, y = s.rng.choice(list(FUNCTIONS)), s.alike(x)
    if name not in s.shared.makers:
        s.shared.makers[name] = name
        s.shared.items.append(FUNCTIONS[name])
    s.feature("fn")
    scale = s.rng.choice(["", ", scale = 0.7", ", 0.2"])
    dims = (*x.dims[:-2], x.dims[-1], x.dims[-2]) if name == "turned" else x.dims
    if name in ("turned", "levelled") and any(len(t) != 1 for t in x.dims[-2:]):
        return None
    form = f"{x.name} |> {name}({y.name}{scale})" if s.rng.random() < 0.4 else f"{name}({x.name}, {y.name}{scale})"
    if name == "parted":
        return _several(s, form, dims, y.size + 1, x, y)
    return s.let(form, dims, FLOAT, max(x.size * y.size, 4.0), x, y)


def _several(s: Scope, form: str, dims: Dims, size: float, *reads: Value) -> Value:
    """Both results of a call, or one of them."""
    names = [s.shared.fresh("v"), s.shared.fresh("v")]
    unused = s.rng.choice([None, None, 0, 1])
    s.feature("several results" if unused is None else "a result that nothing uses")
    s.lines.append(", ".join("_" if at == unused else name for at, name in enumerate(names)) + f" = {form}")
    for value in reads:
        value.uses += 1
    used = [name for at, name in enumerate(names) if at != unused]
    return s.let(" * ".join(used) if unused is None else f"tanh({used[0]})", dims, FLOAT, size * size)


def mlp(s: Scope) -> Value | None:
    """The library's two layers; the dim between them is made from a number."""
    x = s.pick(least=2)
    if x is None or not x.dims[-1]:
        return None
    last = text(x.dims[-1])
    wide = f"2 * {last}" if len(x.dims[-1]) == 1 else s.rng.choice(["4", "6", "8"])
    name = s.layer("mlp", f"MLP({last}, {wide})", x.dims[-1])
    s.shared.imports.add("MLP")
    s.feature("dim from a number")
    return s.let(f"{name}({x.name})", x.dims, FLOAT, 2 * x.size, x)


def nested(s: Scope) -> Value | None:
    """A layer of a model made for this value: alone, or an array that it goes through."""
    x = s.pick(least=2)
    if x is None or s.depth > 1 or s.shared.blocks > 3:
        return None
    again = [n for n, (into, _) in s.layers.items() if into == x.dims and n.startswith("block")]
    if again and s.rng.random() < 0.7:
        s.feature("layer called again")
        name = s.rng.choice(again)
        stem = name.partition("[")[0]
        return s.let(f"{stem}[0]({x.name})" if "[" in name else f"{name}({x.name})", s.layers[name][1], FLOAT, 12.0, x)
    s.shared.blocks += 1
    s.feature("nested model" if s.depth else "model within")
    body = _Body(s, x, array=s.rng.random() < 0.6)
    result = body.write()
    name, model = s.shared.fresh("block"), body.declare(result)
    call = f"{model}({', '.join(body.arguments)})"
    dims = body.returned(result)
    if dims == x.dims and not body.two and s.rng.random() < 0.7:
        return _array(s, x, name, call, result)
    s.members.append(f"layer {name} = {call}")
    if body.two:
        return _several(s, f"{name}({x.name})", dims, result.size, x)
    s.layers[name] = (x.dims, dims)
    form = s.rng.choice([f"{x.name} |> {name}", f"{name}({x.name})"])
    return s.let(form, dims, FLOAT, result.size, x)


def _array(s: Scope, x: Value, name: str, call: str, result: Value) -> Value:
    s.feature("layer array")
    count = s.rng.randint(1, 3)
    s.members.append(f"layer {name}[{count}] = {call}")
    s.layers[f"{name}[0]"] = (x.dims, x.dims)
    last = "" if count < 2 or s.rng.random() < 0.6 else f" |> {name}[{count - 1}]"
    return s.let(f"{x.name} |> {name}{last}", x.dims, FLOAT, max(result.size, x.size), x)


class _Body:
    """A model written for one value: its formals, and how the caller and it name each other's dims."""

    def __init__(self, s: Scope, x: Value, array: bool) -> None:
        self.caller, self.x, self.array = s, x, array
        self.two = not array and s.rng.random() < 0.3
        self.inner = Scope(s.shared, depth=s.depth + 1)
        self.formals: list[str] = []
        self.arguments: list[str] = []
        self.names: dict[str, Term] = {}
        # Of an array each layer takes what the one before it gives.
        self.given = Value("x", tuple(self._dim(t) for t in x.dims), FLOAT, LARGEST if array else x.size)
        self.inner.live.append(self.given)

    def _dim(self, term: Term) -> Term:
        s, inner = self.caller, self.inner
        if not term:
            return term
        if len(term) == 1 and term[0] in s.shared.sizes and s.rng.random() < 0.4:
            return term
        # What the caller's signature binds is unknown to its members, and so to the arguments of its layers.
        formal = s.rng.random() < 0.5 and not set(term) & s.bound
        name = s.shared.fresh("d" if formal else "n")
        inner.sizes[name] = s.length(term)
        inner.outer[name] = tuple(c for p in term for c in s.canonical(p))
        self.names[name] = term
        if not formal:
            inner.bound.add(name)
        else:
            self.formals.append(f"{name}: dim")
            self.arguments.append(text(term))
        return (name,)

    def write(self) -> Value:
        """The forward's lines; the value that it returns, with whatever nothing else reads folded in."""
        inner, rng = self.inner, self.caller.rng
        pieces = SAME if self.array or self.caller.shared.apart else ALL
        for _ in range(rng.randint(2, 4)):
            grow(inner, pieces)
        settle(inner)
        result = next((v for v in reversed(inner.live) if not v.uses and v.kind == FLOAT), self.given)
        if result is self.given:
            inner.live.append(inner.let("tanh(x) * 2", self.given.dims, FLOAT, 2.0, self.given))
            result = inner.live[-1]
        if result.dims == self.given.dims and rng.random() < 0.5:
            result = inner.let(f"x + {result.name}", result.dims, FLOAT, result.size + self.x.size, result)
            self.given.uses += 1
        for value in [v for v in inner.unused() if v is not result]:
            result = inner.let(f"{result.name} + {self._folded(result, value)}", result.dims, FLOAT, result.size + 1,
                               result, value)  # fmt: skip
        return result

    def _folded(self, result: Value, value: Value) -> str:
        """A value as an addend to another of any dims: its mean, or example by example."""
        inner = self.inner
        if not inner.shared.apart:
            return f"tanh(mean(square({value.name})))"
        if value.dims == result.dims:
            return f"0.1 * tanh({value.name})"
        inner.feature("folded by einsum")
        return f"0.1 * tanh(einsum({result.name}, {value.name} -> {typed(result.dims)}))"

    def declare(self, result: Value) -> str:
        """Writes the model down; its name."""
        rng, shared, inner = self.caller.rng, self.caller.shared, self.inner
        name = shared.fresh("Block")
        types = ", ".join([typed(result.dims)] * (1 + self.two))
        returns = f" -> {types}" if rng.random() < 0.5 and result.named else ""
        head = f"forward(x: {typed(self.given.dims)})"
        lines = [*inner.members, f"{head}{returns} {{", *(f"  {line}" for line in inner.lines),
                 f"  return {result.name}" + f", relu({result.name})" * self.two, "}"]  # fmt: skip
        if rng.random() < 0.2:
            shared.features.add("static if")
            self.formals.append("whole: bool = true")
            lines = ["if whole {", *(f"  {line}" for line in lines), "} else {", f"  {head} {{", "    return relu(x)",
                     "  }", "}"]  # fmt: skip
        formals = f"({', '.join(self.formals)})" if self.formals else ""
        shared.items.append("\n".join([f"model {name}{formals} {{", *(f"  {line}" for line in lines), "}"]))
        return name

    def returned(self, result: Value) -> Dims:
        """The result's dims as the caller calls them."""
        return tuple(tuple(c for p in t for c in self.names.get(p, (p,))) for t in result.dims)


def scanned(s: Scope) -> Value | None:
    """A cell that goes through a dim: what it shows of each place, beside its last state."""
    x = s.pick(least=2)
    rest = [] if x is None else [t for t in x.dims if len(t) == 1 and not s.batch(t) and s.length(t) <= 6]
    if x is None or not rest or s.shared.blocks > 3:
        return None
    over = s.rng.choice(rest)
    dims = tuple(t for t in x.dims if t != over)
    if not dims[-1] or s.batch(dims[-1]) or over in dims[-1:]:
        return None
    kind = s.rng.choice([*CELLS] if len(dims[-1]) == 1 else ["faded"])
    name = s.layer("cell", f"{kind.title()}({text(dims[-1])})", dims[-1])
    if kind not in s.shared.makers:
        s.shared.makers[kind] = kind
        s.shared.items.append(CELLS[kind])
    s.shared.blocks += 1
    s.feature(f"scan {kind}")
    first, shown, last = (s.shared.fresh("v") for _ in range(3))
    start = s.rng.choice([f"expand(0.0 -> {typed(dims)})", f"0.5 * {x.name}[{text(over)} = {s.length(over) - 1}]"])
    states = f"{first}, {x.name}[{text(over)} = 0]" if kind == "paired" else first
    ends = f"{last}, _" if kind == "paired" else last
    s.lines += [f"{first} = {start}", f"{shown}, {ends} = scan({name}, {x.name}, {states}, over = {text(over)})"]
    x.uses += 1
    wide = typed([() if t == over else t for t in x.dims])
    return s.let(f"{shown} + 0.5 * rearrange({last} -> {wide})", x.dims, FLOAT, 2 * x.size + 2)


def keep(s: Scope, value: Value | None) -> None:
    if value is not None and value not in s.live:
        s.live.append(value)


def grow(s: Scope, pieces: tuple[Callable[[Scope], Value | None], ...]) -> None:
    """One more piece, and the end of whatever dim without a name it has left."""
    keep(s, s.tried(s.rng.choice(pieces)))
    settle(s)


def settle(s: Scope) -> None:
    """Values with dims that have no names are led to ones that have, but for images."""
    for _ in range(4):
        waiting = [v for v in s.floats(named=False) if not v.named and not v.uses and not _image(v)]
        if not waiting:
            return
        keep(s, pointwise.settled(s))


def _image(v: Value) -> bool:
    return len(v.dims) == 4 and all(t[:1] and t[0].startswith("~") for t in v.dims[2:])


SAME = (
    *[p for p in (*pointwise.PIECES, *numbers.PIECES) if p.__name__ not in ("reduced", "best")],
    mlp, mlp, function, products.attention, products.linear, nested, scanned,
)  # fmt: skip
ALL = (*pointwise.PIECES, *products.PIECES, *numbers.PIECES, function, function, mlp, nested, nested, nested, scanned,
       scanned, scanned)  # fmt: skip
LAYERED = (products.linear, mlp, nested)
