"""Pieces of a generated forward in which numbers, integers and other element types meet floating values.

Totals that numbers are added to and divided by, integers of the data in floating expressions, casts to every element
type, and operators driven to where their result no longer changes.
"""

from __future__ import annotations

from tests.generated.pointwise import Piece
from tests.generated.scope import FLOAT, RUN, WHOLE, Dims, Scope, Value, text, typed

# What a number may do to `{t}`, which is not negative and may be pending; each is away from 0.
ON_TOTALS = (
    "{t} + {c}", "{c} + {t}", "{t} - {c}", "{c} - {t}", "{t} * {c}", "{c} * {t}", "{t} / {c}", "1 / ({c} + {t})",
    "{c} / (2 + {t})", "1 / (2 * {t} + 1)", "-{t} / 3", "({t} + {c}) / {c}", "2 - ({c} - {t} / 4)", "({t} + 1) ** 0.5",
)  # fmt: skip
NUMBERS = ("1", "2", "3", "0.5", "13", "1.5")


def on_total(s: Scope, total: str) -> str:
    """A number on one side of a total, or on both."""
    s.feature("number on a total")
    return s.rng.choice(ON_TOTALS).format(t=total, c=s.rng.choice(NUMBERS))


def totalled(s: Scope) -> Value | None:
    """A sum or mean, numbers beside it, then beside the value that it was taken of."""
    x = s.pick(least=2)
    if x is None:
        return None
    rng = s.rng
    rest = [t for t in x.dims if t and not s.batch(t)]
    over = "" if not s.shared.apart and rng.random() < 0.6 else text(rng.choice(rest)) if rest else None
    if over is None:
        return None
    what = rng.choice([f"cast({x.name} > 0.1, {RUN})", f"square(tanh({x.name}))", f"sigmoid({x.name})"])
    gone = next((t for t in x.dims if text(t) == over), None)
    dims: Dims = tuple(t for t in x.dims if over and t != gone)
    kind = "mean" if rng.random() < 0.3 else "sum"
    total = s.let(f"{kind}({what}{f', over = {over}' if over else ''})", dims, FLOAT, 1.0, x)
    bounded = f"sin({on_total(s, total.name)})" if rng.random() < 0.5 else f"0.1 * ({on_total(s, total.name)})"
    total.uses += 1
    if gone is not None:
        total = s.let(bounded, dims, FLOAT, 1.0, total)
        wide = typed([() if t == gone else t for t in x.dims])
        bounded = f"rearrange({total.name} -> {wide})"
        total.uses += 1
    form = rng.choice(["{x} * ({t})", "{x} + {t}", "({t}) * {x}", "{x} - {t}"])
    return s.let(form.format(x=x.name, t=bounded), x.dims, FLOAT, 2 * x.size + 1, x)


ALONE = (
    "0.1 * {n}", "{n} / 13", "(1 + {n}) / 13", "1 / (1 + {n})", "{n} / (1 + {m})", "({n} - 2) * 0.25",
    "(3 - {n}) * 0.5", "2.5 - {n}", "({n} * {m} + 1) / 7", "{n} ** 2 * 0.1", "maximum({n}, 2) / 3", "-{n} * 0.5",
    "2 / (3 + {n} * 2)", "where({n} > 1, 0.5, 0.1 * {n})",
)  # fmt: skip
BESIDE = ("{x} * ({e})", "({e}) * {x}", "{x} + {n}", "{x} - {n}", "{n} - {x}", "{n} * {x}", "{x} / (1 + {n})",
          "{x} * (1 / (1 + {n}))", "{x} * ((1 + {n}) / 13)", "{x} + {e}")  # fmt: skip


def integers(s: Scope) -> Value | None:
    """Integers of the data in floating expressions, and divided by integers; their sums too."""
    found = [v for v in s.live if v.kind == WHOLE and v.named]
    if not found:
        return None
    n = s.rng.choice(found)
    s.feature("integers in floats")
    beside = [v for v in s.floats(least=len(n.dims)) if v.dims[: len(n.dims)] == n.dims]
    if len(n.dims) > 1 and not s.batch(n.dims[-1]) and s.rng.random() < 0.3:
        kind = s.rng.choice(["sum", "sum", "cumsum"])
        over, dims = n.dims[-1], n.dims[:-1] if kind == "sum" else n.dims
        n = s.let(f"{kind}({n.name}, over = {text(over)})", dims, WHOLE, 1.0, n)
        beside = [v for v in beside if v.dims[: len(n.dims)] == n.dims]
    if not beside:
        return None
    x = s.rng.choice([v for v in beside if not v.uses] or beside)
    m = s.alike(n)
    n.uses += 1
    given = Value(n.name, n.dims, WHOLE)
    if len(x.dims) > len(n.dims):
        wide = (*n.dims, *(() for _ in x.dims[len(n.dims) :]))
        given = m = s.let(f"rearrange({n.name} -> {typed(wide)})", wide, WHOLE, 1.0, n)
    alone = s.rng.choice(ALONE).format(n=given.name, m=m.name)
    form = s.rng.choice(BESIDE).format(x=x.name, n=given.name, e=alone)
    return s.let(form, x.dims, FLOAT, 4 * x.size + 4, x, m)


def typecast(s: Scope) -> Value | None:
    """Casts of what is the same to the last bit under every layout: fields of the data, and comparisons."""
    x = s.pick()
    if x is None:
        return None
    forms = [f"{x.name} * (0.5 + cast(cast({x.name} > 0.1, {kind}), {RUN}))" for kind in ("i64", "i32")]
    fields = [v for v in s.live if v.name == "x" and v.kind == FLOAT and v.dims == x.dims and not s.depth]
    whole = [v for v in s.live if v.kind == WHOLE and v.dims == x.dims]
    if fields:
        s.feature("cast of data")
        forms = [f"{x.name} * cast(x * 0.3, f32)", f"{x.name} + cast(cast(x * 0.7, f32) * 0.3, {RUN})",
                 f"{x.name} + 0.1 * cast(x * 5, i64)", f"{x.name} * cast(cast(x - 0.5, bool), {RUN})",
                 f"{x.name} + cast(x > 0.5, i64) * 0.2", f"{x.name} - cast(x * 3, i32) / 4",
                 f"{x.name} * (1 + cast(x > 0.5, bool))", f"where(cast(x, bool), {x.name}, 0.5)"]  # fmt: skip
    if whole and (not fields or s.rng.random() < 0.6):
        n = whole[-1].name
        s.feature("cast of integers")
        forms = [f"{x.name} * cast({n}, {RUN})", f"{x.name} + cast(cast({n}, bool), {RUN})",
                 f"{x.name} + cast({n} > 1, i64) / 3", f"{x.name} * (cast({n}, f32) * 0.5)",
                 f"{x.name} - cast({n}, i32) * 0.5", f"where(cast({n}, bool), {x.name}, 0.5)"]  # fmt: skip
    s.feature("cast")
    return s.let(s.rng.choice(forms), x.dims, FLOAT, 2 * x.size + 1, x)


def saturated(s: Scope) -> Value | None:
    """Operators far out, where exponentials overflow or vanish: what they give, and gradients of 0 or 1."""
    x = s.pick()
    if x is None:
        return None
    n, over = x.name, s.rng.choice(x.dims)
    far = s.rng.choice(["800", "1000", "40", "110"])
    forms = [f"{n} + silu({n} - {far})", f"0.5 * {n} + 0.001 * silu({n} + {far})", f"{n} * sigmoid({n} + {far})",
             f"{n} + sigmoid({n} - {far})", f"{n} + tanh({n} + {far})", f"{n} - tanh(40 * {n} - 300)",
             f"{n} + gelu({n} - {far})", f"{n} + 0.001 * gelu({n} + {far})", f"{n} + exp({n} - {far})",
             f'{n} + gelu({n} - {far}, approximate = "tanh")', f'0.001 * gelu({n} + {far}, approximate = "tanh") + {n}',
             f"{n} * (1 / (1 + exp(-{n} - {far})))", f"{n} + 1 / (1 + exp(40 - {n}))"]  # fmt: skip
    steep = s.rng.choice(["40", "110"])
    if over and not (s.shared.apart and s.batch(over)) and s.rng.random() < 0.4:
        forms = [f"{n} + softmax({steep} * {n}, over = {text(over)})",
                 f"{n} + 0.001 * log_softmax({steep} * {n}, over = {text(over)})"]  # fmt: skip
    s.feature("saturated")
    return s.let(s.rng.choice(forms), x.dims, FLOAT, x.size + 3, x)


def placed(s: Scope) -> Value | None:
    """A learned row for each place: a table that is looked up by a constant."""
    x = s.pick(least=2)
    if x is None or any(len(t) != 1 for t in x.dims[-2:]) or s.batch(x.dims[-2]) or x.dims[-1] == x.dims[-2]:
        return None
    at, width = x.dims[-2:]
    wide = [n for n in s.others(x.parts()) if s.size(n) >= s.length(at)]
    rows = (s.rng.choice(wide),) if wide and s.rng.random() < 0.5 else at
    s.feature("rows of a constant")
    index = f"arange({text(at)})"
    if s.rng.random() < 0.2:
        index = f"{s.length(at) - 1} - {index}"
    table = s.table((rows, width))
    form = s.rng.choice(["{x} + embedding({i}, {t})", "embedding({i}, {t}) * {x}", "{x} - 0.5 * embedding({i}, {t})"])
    return s.let(form.format(x=x.name, i=index, t=table), x.dims, FLOAT, 2 * x.size + 1, x)


def renormed(s: Scope) -> Value | None:
    """batch_norm twice with one state, of values that may lie differently."""
    x = s.pick(least=2)
    if x is None or s.shared.apart:
        return None
    at = s.rng.choice(range(1, len(x.dims)))
    if len(x.dims[at]) != 1:
        return None
    dims = (x.dims[at],)
    s.feature("shared state")
    mean, variance = s.state(dims, "zeros()"), s.state(dims, "ones()")
    # Twice over what hardly varies would make rounding errors as large as values.
    one = s.let(f"batch_norm({x.name}, {mean}, {variance}, eps = 0.1)", x.dims, FLOAT, 4.0, x)
    s.live.append(one)
    other = s.rng.choice([f"relu({one.name})", f"0.5 * {one.name} + tanh({one.name})", x.name, f"{one.name} * 2"])
    if s.rng.random() < 0.3:
        other = s.let(other, x.dims, FLOAT, 4.0, one, x).name
    return s.let(f"batch_norm({other}, {mean}, {variance}, eps = 0.1)", x.dims, FLOAT, 4.0, one, x)


PIECES: tuple[Piece, ...] = (totalled, totalled, integers, integers, integers, typecast, typecast, saturated, saturated,
                             placed, placed, renormed, renormed)  # fmt: skip
