"""Pieces of a generated forward that multiply, look up, and give dims other places and names."""

from __future__ import annotations

import random

from tests.generated.pointwise import Piece
from tests.generated.scope import FLOAT, RUN, WHOLE, Dims, Scope, Term, Value, beside, text, typed

# A feature of programs: the table that is looked up first is the last weight.
TIED = "tied head"


def _grown(s: Scope, x: Value, contracted: Term, weight: float = 1.0) -> float:
    return x.size * weight * max(1.0, s.length(contracted) ** 0.5)


def _out(s: Scope, x: Value) -> str | None:
    names = s.others(x.parts())
    return s.rng.choice(names) if names else None


def linear(s: Scope) -> Value | None:
    """The library's layer, perhaps called again: its parameters are then tied."""
    x = s.pick(least=2)
    if x is None:
        return None
    known = [n for n, (into, _) in s.layers.items() if into == (x.dims[-1],) and n.startswith("fc")]
    if known and s.rng.random() < 0.4:
        s.feature("layer called again")
        name = s.rng.choice(known)
        ((out,),) = s.layers[name][1]
        if out not in x.parts()[: -len(x.dims[-1])]:
            return s.let(f"{name}({x.name})", (*x.dims[:-1], (out,)), FLOAT, _grown(s, x, x.dims[-1]), x)
        return None
    to = _out(s, x)
    if len(x.dims[-1]) == 1 and s.rng.random() < 0.15:
        to = x.dims[-1][0]  # a dim twice in one weight
        s.feature("square layer")
    if to is None or not x.dims[-1]:
        return None
    bias = s.rng.choice(["", "", ", bias = false"])
    name = s.layer("fc", f"Linear({text(x.dims[-1])}, {to}{bias})", x.dims[-1])
    s.shared.imports.add("Linear")
    s.layers[name] = ((x.dims[-1],), ((to,),))
    return s.let(f"{name}({x.name})", (*x.dims[:-1], (to,)), FLOAT, _grown(s, x, x.dims[-1]), x)


def matrix(s: Scope) -> Value | None:
    """`@` and `einsum` with a parameter."""
    x = s.pick(least=2)
    to = None if x is None else _out(s, x)
    if x is None or to is None or not x.dims[-1]:
        return None
    last, size = x.dims[-1], _grown(s, x, x.dims[-1], 0.7)
    dims = (*x.dims[:-1], (to,))
    rng = beside(s.rng)
    more = [n for n in s.others((*x.parts(), to))]
    if more and rng.random() < (0.5 if s.shared.apart else 0.2):
        return _as_made(s, x, (*dims, (rng.choice(more),)), rng)
    if s.rng.random() < 0.5:
        return s.let(f"{x.name} @ {s.param((last, (to,)))}", dims, FLOAT, size, x)
    w = s.param(((to,), last))
    bias = f" + {s.param(((to,),))}" if s.rng.random() < 0.5 else ""
    return s.let(f"einsum({x.name}, {w} -> {typed(dims)}){bias}", dims, FLOAT, size + 1, x)


def _as_made(s: Scope, x: Value, wide: Dims, rng: random.Random, start: str | None = None) -> Value:
    """Autograd makes the gradient of one weight in another order of memory, and one tensor for the gradients of two."""
    s.feature("gradients as autograd makes them")
    size = 1.4 * _grown(s, x, x.dims[-1])
    both = [s.param((*wide[-2:], x.dims[-1]), start, again=0.0) for _ in range(rng.randint(1, 2))]
    w = f"({both[0]} + {both[1]})" if len(both) == 2 else both[0]
    made = s.let(f"einsum({x.name}, {w} -> {typed(wide)})", wide, FLOAT, size, x)
    return s.let(f"mean({made.name}, over = {text(wide[-1])})", wide[:-1], FLOAT, size, made)


def last_as_made(s: Scope) -> Value | None:
    """Of the latest value that is not too large for it: over stages, in the last."""
    rng = beside(s.rng)
    for x in reversed(s.floats(least=2)):
        names = s.others(x.parts())
        wide = (*x.dims[:-1], *((n,) for n in rng.sample(names, 2))) if len(names) > 1 else ()
        if wide and x.dims[-1] and s.length(tuple(p for t in wide for p in t)) < 10_000:
            return _as_made(s, x, wide, rng, "normal(0.3)")
    return None


def contracted(s: Scope) -> Value | None:
    """An einsum of two or three values of the forward, in any order of dims."""
    x = s.pick(least=2)
    if x is None or any(len(t) > 1 for t in x.dims):
        return None
    found = [v for v in s.floats(least=2) if all(len(t) == 1 for t in v.dims) and set(v.dims) & set(x.dims)]
    y = s.rng.choice(found or [x])
    operands, every = [x, y], list(dict.fromkeys([t for t in (*x.dims, *y.dims) if t]))
    batch = [t for t in every if s.canonical(t[0]) == ("batch",)]
    rest = [t for t in every if t not in batch]
    kept = s.rng.sample(rest, s.rng.randint(0, min(3, len(rest))))
    if not kept or s.length(tuple(p for t in kept + batch for p in t)) > 6000:
        return None
    if s.rng.random() < 0.2:
        operands.append(Value(s.param((s.rng.choice(every),)), (), uses=1))
    dims = tuple(batch + kept)
    gone = tuple(p for t in every if t not in dims for p in t)
    size = x.size * y.size * max(1.0, s.length(gone) ** 0.5)
    names = ", ".join(v.name for v in operands)
    return s.let(f"einsum({names} -> {typed(dims)})", dims, FLOAT, size, x, y)


def batched(s: Scope) -> Value | None:
    """`@` of two values with leading dims in common: scores of each with each."""
    x = s.pick(least=3)
    if x is None or any(len(t) != 1 for t in x.dims):
        return None
    *lead, a, b = x.dims
    turned = s.let(f"rearrange({x.name} -> {typed([*lead, b, a])})", (*lead, b, a), FLOAT, x.size, x)
    key = [n for n in s.others(x.parts()) if s.size(n) == s.length(a)]
    if not key:
        return turned
    named = s.let(f"relabel({turned.name} -> {typed([*lead, b, (key[0],)])})", (*lead, b, (key[0],)), FLOAT, x.size,
                  turned)  # fmt: skip
    return s.let(f"{x.name} @ {named.name}", (*lead, a, (key[0],)), FLOAT, _grown(s, x, b, x.size), x, named)


def attention(s: Scope) -> Value | None:
    """Scores between two dims, their shares, and the weighted sum."""
    x = s.pick(least=3)
    if x is None or any(len(t) != 1 for t in x.dims):
        return None
    *lead, a, b = x.dims
    keys = [n for n in s.others(x.parts()) if s.size(n) == s.length(a)]
    if not keys:
        return None
    key, shape = (keys[0],), (*lead, (keys[0],), b)
    s.feature("attention")
    k = s.let(f"relabel({x.name} -> {typed(shape)})", shape, FLOAT, x.size, x)
    scores = s.let(f"einsum({x.name}, {k.name} -> {typed([*lead, a, key])})", (*lead, a, key), FLOAT, 1.0, x, k)
    return s.let(f"einsum(softmax({scores.name}, over = {text(key)}), {k.name} -> {typed(x.dims)})", x.dims, FLOAT,
                 x.size, scores, k)  # fmt: skip


def fused(s: Scope) -> Value | None:
    """The operator `attention`: keys and values of the queries' own place, or of heads that several share."""
    x = s.pick(least=3)
    if x is None or any(len(t) != 1 for t in x.dims):
        return None
    queries = x.dims[-2]
    if len(x.dims) == 3 and x.dims[-1] and beside(s.rng).random() < 0.4 and len(s.others(x.parts())) > 1:
        return _by_heads(s, x)
    keys = [n for n in s.others(x.parts()) if s.size(n) == s.length(queries)]
    s.feature("fused attention")
    scores, k, v = _scores(s, x, keys), x, x
    if keys and s.rng.random() < 0.5:
        dims = (*x.dims[:-2], (keys[0],), x.dims[-1])
        k = v = s.let(f"relabel({x.name} -> {typed(dims)})", dims, FLOAT, x.size, x)
    elif s.rng.random() < 0.5:
        v = s.alike(x)
    scale = s.rng.choice(["", ", scale = 0.3", f", scale = {0.5 / max(1.0, x.size):.2g}"])
    causal = ", causal = true" if k is x and s.rng.random() < 0.5 else ""
    call = f"attention({x.name}, {k.name}, {v.name}{causal}{scale}{scores})"
    return s.let(call, x.dims, FLOAT, 2 * v.size, x, k, v)


def _by_heads(s: Scope, x: Value) -> Value:
    """Attention between projections by heads: torch's own kernel."""
    s.feature("attention by heads")
    first, queries, last = x.dims
    heads, width = beside(s.rng).sample(s.others(x.parts()), 2)
    divided, size = (first, (heads,), queries, (width,)), _grown(s, x, last)
    weights = [s.param((last, (heads, width)), again=0.0) for _ in range(3)]
    parts = [s.let(f"rearrange({x.name} @ {w} -> {typed(divided)})", divided, FLOAT, size, x) for w in weights]
    mixed = s.let(f"attention({', '.join(part.name for part in parts)})", divided, FLOAT, size, *parts)
    joined, back = typed((first, queries, (heads, width))), s.param(((heads, width), last), again=0.0)
    grown = size * (s.size(heads) * s.size(width)) ** 0.5
    return s.let(f"rearrange({mixed.name} -> {joined}) @ {back}", x.dims, FLOAT, grown, mixed)


def _scores(s: Scope, x: Value, keys: list[str]) -> str:
    """What else may make the scores of an attention, or their weights."""
    heads, queries, _ = x.dims[-3:]
    more = {"window": f"{s.rng.randint(1, s.length(queries))}", "softcap": "1.5", "p": s.rng.choice(["0.2", "0.5"])}
    more = {name: text for name, text in more.items() if s.rng.random() < 0.25}
    if keys and not s.batch(queries) and s.rng.random() < 0.5:
        hiding = _hiding(s, s.rng, queries, (keys[0],)) if s.rng.random() < 0.6 else ""
        if not hiding or s.rng.random() < 0.5:
            s.feature("bias of attention")
            bias = s.param((*([heads] if not s.batch(heads) and s.rng.random() < 0.5 else []), queries, (keys[0],)))
            hiding = f"{bias} + {hiding}" if hiding else bias
        more["bias"] = hiding
    if not s.batch(heads) and s.rng.random() < 0.7:
        s.feature("sinks of attention")
        more["sinks"] = s.param((heads,))
    return "".join(f", {name} = {text}" for name, text in more.items())


def hidden(s: Scope) -> Value | None:
    """Attention of the latest value that can have it, under a mask alone; at times with itself, as a ring has it."""
    rng = beside(s.rng)
    for x in reversed(s.floats(least=3)):
        keys = [n for n in s.others(x.parts()) if s.size(n) == s.length(x.dims[-2])]
        if keys and all(len(t) == 1 for t in x.dims) and not s.batch(x.dims[-2]):
            dims, k = (*x.dims[:-2], (rng.choice(keys),), x.dims[-1]), x
            causal = rng.choice(("", ", causal = true"))
            if rng.random() < 0.2:
                k, causal = s.let(f"relabel({x.name} -> {typed(dims)})", dims, FLOAT, x.size, x), ""
            more = f"{causal}, bias = {_hiding(s, rng, x.dims[-2], dims[-2])}"
            return s.let(f"attention({x.name}, {k.name}, {k.name}{more})", x.dims, FLOAT, x.size, x, k)
    return None


def _hiding(s: Scope, rng: random.Random, queries: Term, keys: Term) -> str:
    """What is minus infinity for many pairs, for some queries at all keys; also by way of the number that imported
    masks have, which is minus infinity in 16 bits."""
    s.feature("mask of minus infinity")
    at, of = f"rearrange(arange({text(queries)}) -> [{text(queries)}, 1])", f"arange({text(keys)})"
    seen = f"({at} * {rng.choice('13')} + {of} * {rng.choice('12')}) % {rng.choice('34')} < {rng.choice('12')}"
    if rng.random() < 0.75:  # those of one document, or of the one before it: none of them are in most parts
        seen = f"{at} // {(size := rng.choice('1234'))} == {of} // {size}{rng.choice(('', ' + 1', ' + 1'))}"
    return rng.choice([f"log(cast({seen}, {RUN}))", f"cast(where({seen}, 0.0, -3.4028234663852886e+38), f16)"])


def turned(s: Scope) -> Value | None:
    """`rotary` over an even last dim."""
    x = s.pick(least=2)
    if x is None or any(len(t) != 1 for t in x.dims[-2:]) or s.length(x.dims[-1]) % 2 or len(x.dims) < 3:
        return None
    base = s.rng.choice(["", ", base = 100.0", ', pairs = "neighbours"', ", part = 2", ", part = 2, scales = (0.5,)"])
    call = f"rotary({x.name}, over = {text(x.dims[-1])}, along = {text(x.dims[-2])}{base})"
    return s.let(call, x.dims, FLOAT, 2 * x.size, x)


def moved(s: Scope) -> Value | None:
    """rearrange: other places, products of dims, a literal 1."""
    x = s.pick(least=3)
    if x is None:
        return None
    batch = [t for t in x.dims if t and s.canonical(t[0]) == ("batch",)]
    rest = [t for t in x.dims if t not in batch]
    s.rng.shuffle(rest)
    if len(rest) > 1 and s.rng.random() < 0.5:
        s.feature("product dim")
        rest = [*rest[:-2], (*rest[-2], *rest[-1])]
    elif s.rng.random() < 0.2:
        rest.insert(s.rng.randint(0, len(rest)), ())
    order = [*batch, *rest]
    if s.rng.random() < 0.15 and not s.shared.apart:
        s.rng.shuffle(order)
    return s.let(f"rearrange({x.name} -> {typed(order)})", tuple(order), FLOAT, x.size, x)


def flat(s: Scope) -> Value | None:
    x = s.pick(least=3)
    if x is None or len(x.dims[0]) != 1:
        return None
    s.feature("product dim")
    keep = s.rng.randint(1, len(x.dims) - 2)
    if any(len(t) != 1 for t in x.dims[:keep]):
        return None
    kept = text(x.dims[0]) if keep == 1 else f"({', '.join(text(t) for t in x.dims[:keep])})"
    dims = (*x.dims[:keep], tuple(p for t in x.dims[keep:] for p in t))
    return s.let(f"flatten({x.name}, keep = {kept})", dims, FLOAT, x.size, x)


def apart(s: Scope) -> Value | None:
    """A product dim split into its factors again."""
    found = [v for v in s.floats() if any(len(t) > 1 for t in v.dims)]
    if not found:
        return None
    x = s.rng.choice([v for v in found if not v.uses] or found)
    parts: list[Term] = [(p,) for p in x.parts()]
    if s.rng.random() < 0.5:
        first, *rest = parts
        s.rng.shuffle(rest)
        parts = [first, *rest]
    return s.let(f"rearrange({x.name} -> {typed(parts)})", tuple(parts), FLOAT, x.size, x)


def renamed(s: Scope) -> Value | None:
    x = s.pick(least=2)
    if x is None:
        return None
    at = s.rng.randrange(1, len(x.dims))
    names = [n for n in s.others(x.parts()) if s.size(n) == s.length(x.dims[at])]
    if not names or not x.dims[at]:
        return None
    dims = (*x.dims[:at], (s.rng.choice(names),), *x.dims[at + 1 :])
    return s.let(f"relabel({x.name} -> {typed(dims)})", dims, FLOAT, x.size, x)


def broadcast(s: Scope) -> Value | None:
    """A value of fewer dims beside one of more, aligned from the right or through a literal 1."""
    x = s.pick(least=3)
    if x is None:
        return None
    smaller = [v for v in s.floats(least=2) if len(v.dims) == len(x.dims) - 1 and v.dims[0] == x.dims[0]]
    for y in smaller:
        if y.dims[1:] == x.dims[2:]:
            s.feature("literal 1")
            wide = (y.dims[0], (), *y.dims[1:])
            return s.let(f"{x.name} * rearrange({y.name} -> {typed(wide)})", x.dims, FLOAT, x.size * y.size, x, y)
    return None


def repeated(s: Scope) -> Value | None:
    """`expand` of a parameter along the dims of a value, or of the value along one that it lacks and no longer."""
    x = s.pick(least=2)
    if x is None:
        return None
    if s.rng.random() < 0.5:
        own = x.dims[s.rng.randint(0, len(x.dims) - 1) :]
        p = s.param(tuple(() if s.batch(t) or s.rng.random() < 0.3 else t for t in own))
        return s.let(f"{x.name} + expand({p} -> {typed(x.dims)})", x.dims, FLOAT, x.size + 1, x)
    new = s.others(x.parts())
    if not new:
        return None
    at = s.rng.randint(1, len(x.dims))
    dims = (*x.dims[:at], (new[0],), *x.dims[at:])
    p = s.param(((new[0],), *x.dims[at:]))
    wide = s.let(f"expand({x.name} -> {typed(dims)})", dims, FLOAT, x.size, x)
    return s.let(f"mean({wide.name} * {p}, over = {new[0]})", x.dims, FLOAT, x.size, wide)


def looked_up(s: Scope) -> Value | None:
    """Rows of a table by ids of the data, or by what another operator found best."""
    ids = [v for v in s.live if v.kind == WHOLE and v.named and v.bound]
    if not ids:
        return None
    x = s.rng.choice([v for v in ids if not v.uses] or ids)
    rows = "vocab" if x.bound and x.bound <= s.size("vocab") else None
    names = s.others([*x.parts(), "vocab"])
    if rows is None or not names:
        return None
    dims = ((rows,), (names[0],))
    table = s.table(dims) if s.rng.random() < 0.3 else s.param(dims, again=0.7)
    index = s.index(x, s.size(rows))
    # With what depends on the place: rows of one id twice would be ties all the way, and rounding would decide them.
    place = s.param((x.dims[-1], (names[0],)))
    padding = s.rng.choice(["", ", padding = 0", ", padding = 3"])
    return s.let(f"embedding({index}, {table}{padding}) + {place}", (*x.dims, (names[0],)), FLOAT, 3.0, x)


def head(s: Scope) -> Value | None:
    """Against a table that an embedding reads too: tied weights of an output head."""
    x = s.pick(least=2)
    return None if x is None else _against(s, x)


def last_head(s: Scope) -> Value | None:
    """The same of the latest value that there is a table for: over stages, that is in the first and in the last."""
    found = (_against(s, x) for x in reversed(s.floats(least=2)))
    made = next((value for value in found if value is not None), None)
    if made is not None:
        s.feature(TIED)
    return made


def _against(s: Scope, x: Value) -> Value | None:
    tables = {n: d for n, d in s.params.items() if len(d) == 2 and d[0] == ("vocab",)}
    fitting = [n for n, d in tables.items() if d[1] == x.dims[-1] and ("vocab",) not in x.dims]
    if not fitting:
        return None
    s.feature("tied parameter")
    dims: Dims = (*x.dims[:-1], ("vocab",))
    return s.let(f"einsum({x.name}, {fitting[0]} -> {typed(dims)})", dims, FLOAT, _grown(s, x, x.dims[-1]), x)


def taken(s: Scope) -> Value | None:
    """`gather` by ids of the data: each one's own element of a table's rows."""
    ids = [v for v in s.live if v.kind == WHOLE and v.named and v.bound and v.bound <= s.size("vocab")]
    if not ids:
        return None
    x = s.rng.choice(ids)
    scores = [v for v in s.floats() if v.dims == (*x.dims, ("vocab",))]
    if not scores:
        return None
    index = s.index(x, s.size("vocab"))
    return s.let(f"gather({scores[-1].name}, {index}, over = vocab)", x.dims, FLOAT, scores[-1].size, x, scores[-1])


PIECES: tuple[Piece, ...] = (
    linear, linear, linear, matrix, matrix, contracted, contracted, batched, attention, fused, fused, turned, turned,
    moved, moved, flat, apart, renamed, broadcast, repeated, looked_up, head, taken,
)  # fmt: skip
