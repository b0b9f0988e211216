"""Pieces of a generated forward that work element by element, or reduce, normalise and share out over dims."""

from __future__ import annotations

from collections.abc import Callable

from tests.generated.scope import FLOAT, RUN, TRUTH, WHOLE, Scope, Value, bare, text, typed

Piece = Callable[[Scope], Value | None]

SAFE = {
    "relu": 1.0, "gelu": 1.0, "silu": 1.0, "tanh": 0.0, "sigmoid": 0.0, "sin": 0.0, "cos": 0.0, "abs": 1.0,
    "erf": 0.0, "softplus": 1.0, "elu": 1.0,
}  # fmt: skip


def smooth(s: Scope) -> Value | None:
    x = s.pick(named=False)
    if x is None:
        return None
    name = s.rng.choice(list(SAFE))
    call = f"{x.name} |> {name}" if s.rng.random() < 0.3 else f"{name}({x.name})"
    if name == "gelu" and s.rng.random() < 0.5:
        call = f'gelu({x.name}, approximate = "tanh")'
    return s.let(call, x.dims, FLOAT, max(1.0, x.size * SAFE[name]), x)


def guarded(s: Scope) -> Value | None:
    """Operators with an edge, kept away from it."""
    x = s.pick()
    if x is None:
        return None
    n, squared = x.name, x.size**2
    given = {  # expression -> its magnitude
        f"exp(tanh({n}))": 2.7, f"exp(-square({n}))": 1.0, f"log(square({n}) + 0.5)": 1 + x.size,
        f"square({n})": squared, f"sqrt(square({n}) + 0.1)": 1 + x.size, f"rsqrt(abs({n}) + 0.5)": 1.5,
        f"-{n}": x.size, f"{n} ** 2": squared, f"(square({n}) + 0.5) ** -0.5": 1.5, f"1.5 ** tanh({n})": 1.5,
        f"(tanh({n}) + 2.0) % 10.0": 3.0,
        f"{n} / (square({n}) + 1.0)": 0.5, f"log(exp(tanh({n})) + 1.0)": 1.5, f"sqrt(exp(-abs({n})) + 0.2)": 1.2,
    }  # fmt: skip
    expression = s.rng.choice(list(given))
    return s.let(expression, x.dims, FLOAT, given[expression], x)


def scaled(s: Scope) -> Value | None:
    x = s.pick(named=False)
    if x is None:
        return None
    number = s.rng.choice(["0.5", "2", "-1.5", "3.0", "1"])
    form = s.rng.choice(["{x} * {n}", "{n} * {x}", "{x} + {n}", "{n} - {x}", "{x} / 4", "maximum({x}, {n})",
                         "minimum({x}, {n})", "{x} - {n}"])  # fmt: skip
    return s.let(form.format(x=x.name, n=number), x.dims, FLOAT, 2 * x.size + 1, x)


def pair(s: Scope) -> Value | None:
    x = s.pick()
    if x is None:
        return None
    y = s.alike(x)
    forms = {
        "{x} + {y}": x.size + y.size, "{x} - 0.5 * {y}": x.size + y.size, "{x} * {y}": x.size * y.size,
        "maximum({x}, {y})": max(x.size, y.size), "minimum({x}, tanh({y}))": 1 + x.size,
        "{x} / (1.0 + {y} * {y})": x.size, "(abs({x}) + 0.5) ** sigmoid({y})": 1 + x.size,
    }  # fmt: skip
    form = s.rng.choice(list(forms))
    return s.let(form.format(x=x.name, y=y.name), x.dims, FLOAT, forms[form], x, y)


def affine(s: Scope) -> Value | None:
    """With a parameter of the last dims, or one that has literal 1s."""
    x = s.pick()
    if x is None:
        return None
    dims = x.dims[-s.rng.randint(1, len(x.dims)) :]
    if s.rng.random() < 0.3:
        s.feature("literal 1")
        dims = tuple(() if s.rng.random() < 0.5 else t for t in dims)
    if s.rng.random() < 0.8:
        dims = tuple(() if s.batch(t) else t for t in dims)
    p = s.param(dims)
    form = s.rng.choice(["{x} * {p}", "{x} + {p}", "{p} - {x}", "{p} * {x} + {p}", "{x} / (1.0 + square({p}))"])
    return s.let(form.format(x=x.name, p=p), x.dims, FLOAT, 2 * x.size + 1, x)


def shares(s: Scope) -> Value | None:
    x = s.pick()
    if x is None:
        return None
    over, name = s.rng.choice(x.dims), s.rng.choice(["softmax", "log_softmax"])
    if not over or (s.shared.apart and s.batch(over)):
        return None
    size = 1.0 if name == "softmax" else 3 + 2 * x.size
    return s.let(f"{name}({x.name}, over = {text(over)})", x.dims, FLOAT, size, x)


def norm(s: Scope) -> Value | None:
    """layer_norm and rms_norm, as operators or as layers of the library."""
    x = s.pick()
    if x is None or any(len(t) != 1 for t in x.dims):
        return None
    if s.rng.random() < 0.4:
        model = s.rng.choice(["LayerNorm", "RMSNorm"])
        name = s.layer("norm", f"{model}({text(x.dims[-1])})", x.dims[-1])
        s.shared.imports.add(model)
        return s.let(f"{name}({x.name})", x.dims, FLOAT, 3.0, x)
    dims = x.dims[-s.rng.choice([1, 1, 2]) :] if s.rng.random() < 0.8 else (s.rng.choice(x.dims),)
    kind, given = s.rng.choice(["layer_norm", "rms_norm"]), [x.name]
    if s.shared.apart and any(s.batch(t) for t in dims):
        return None
    if s.rng.random() < 0.7:
        given.append(s.param(dims))
        if kind == "layer_norm" and s.rng.random() < 0.7:
            given.append(s.param(dims))
    over = text(dims[0]) if len(dims) == 1 else f"({', '.join(text(t) for t in dims)})"
    eps = s.rng.choice(["", ", eps = 0.1"])
    return s.let(f"{kind}({', '.join(given)}, over = {over}{eps})", x.dims, FLOAT, 4.0, x)


def batch_norm(s: Scope) -> Value | None:
    """Of the whole batch; its states move."""
    x = s.pick(least=2)
    if x is None or s.shared.apart:
        return None
    at = s.rng.choice(range(1, len(x.dims)))
    if len(x.dims[at]) != 1:
        return None
    dims = (x.dims[at],)
    given = [x.name, s.state(dims, "zeros()"), s.state(dims, "ones()")]
    if s.rng.random() < 0.7:
        given += [s.param(dims) for _ in range(s.rng.randint(1, 2))]
    return s.let(f"batch_norm({', '.join(given)}{s.rng.choice(['', ', momentum = 0.3'])})", x.dims, FLOAT, 4.0, x)


def reduced(s: Scope) -> Value | None:
    x = s.pick(least=2)
    if x is None:
        return None
    rest = [t for t in x.dims if t and s.canonical(t[0]) != ("batch",)]
    if not rest or len(x.dims) < 3:
        return None
    gone = s.rng.sample(rest, 2 if len(rest) > 1 and len(x.dims) > 3 and s.rng.random() < 0.3 else 1)
    kind = s.rng.choice(["sum", "mean", "amax", "amin"])
    over = text(gone[0]) if len(gone) == 1 else f"({', '.join(text(t) for t in gone)})"
    dims = tuple(t for t in x.dims if t not in gone)
    size = x.size * (s.length(tuple(p for t in gone for p in t)) if kind == "sum" else 1)
    return s.let(f"{kind}({x.name}, over = {over})", dims, FLOAT, size, x)


def centred(s: Scope) -> Value | None:
    """Less its mean (or greatest) over all, an operator of all examples at once."""
    x = s.pick()
    if x is None or s.shared.apart:
        return None
    kind = s.rng.choice(["mean", "amax", "amin"])
    # Not to the extreme itself, where what has a kink at 0 would be decided by rounding.
    kind = f"0.9 * {kind}" if kind != "mean" else kind
    batch = any(t == ("batch",) for t in x.dims)
    if batch and s.rng.random() < 0.3 and x.dims[0] == ("batch",) and len(x.dims) > 1:
        return s.let(f"{x.name} - {kind}({x.name}, over = batch)", x.dims, FLOAT, 2 * x.size, x)
    return s.let(f"{x.name} - {kind}({x.name})", x.dims, FLOAT, 2 * x.size, x)


def running(s: Scope) -> Value | None:
    x = s.pick()
    rest = [] if x is None else [t for t in x.dims if len(t) == 1 and not (s.shared.apart and s.batch(t))]
    if x is None or not rest:
        return None
    over = s.rng.choice(rest)
    return s.let(f"cumsum({x.name}, over = {text(over)})", x.dims, FLOAT, x.size * s.length(over), x)


def dropped(s: Scope) -> Value | None:
    x = s.pick(named=False)
    if x is None:
        return None
    p = s.rng.choice([0.1, 0.5, 0.3])
    if s.rng.random() < 0.3:
        s.shared.imports.add("Dropout")
        name = s.layer("drop", f"Dropout({p})")
        return s.let(f"{name}({x.name})", x.dims, FLOAT, 2 * x.size, x)
    return s.let(f"dropout({x.name}, p = {p})", x.dims, FLOAT, 2 * x.size, x)


def chosen(s: Scope) -> Value | None:
    """`where` on a comparison, which may read values on their way elsewhere."""
    x = s.pick()
    if x is None:
        return None
    y, sign = s.alike(x), s.rng.choice(["<", "<=", ">", ">=", "==", "!="])
    other = s.rng.choice(["0.1", f"tanh({y.name})", "0"])
    # What is only compared gets no gradient, and so counts as unread.
    text_of = s.rng.choice(["{a}", "{a}", "{a} and {b}", "{a} or not {b}", "not ({a} and {b})"])
    condition = s.let(text_of.format(a=f"{x.name} {sign} {other}", b=f"{y.name} < 0.3"), x.dims, TRUTH)
    if s.rng.random() < 0.3:
        return s.let(f"{x.name} * cast({condition.name}, {RUN})", x.dims, FLOAT, x.size, x, condition)
    then = s.rng.choice([y.name, "0.5", f"sin({y.name})"])
    return s.let(f"where({condition.name}, {then}, tanh({x.name}))", x.dims, FLOAT, 1 + y.size, x, y, condition)


def halted(s: Scope) -> Value | None:
    """Through `detach`, and through a wider element type and back."""
    x = s.pick()
    if x is None:
        return None
    n = x.name
    form = s.rng.choice([f"{n} + detach({n})", f"{n} * sigmoid(detach({n}))", f"cast(cast({n}, f64) * 0.5, {RUN})",
                         f"{n} - cast(detach(cast({n}, f64)), {RUN}) * 0.5"])  # fmt: skip
    return s.let(form, x.dims, FLOAT, 2 * x.size, x)


def counted(s: Scope) -> Value | None:
    """Indices of a dim as numbers."""
    x = s.pick()
    if x is None or not x.dims[-1]:
        return None
    last = x.dims[-1]
    if len(last) > 1:
        return None
    number = s.rng.choice(["{i}", "{i} % 3", "{i} // 2"]).format(i=f"arange({text(last)})")
    return s.let(f"{x.name} + 0.1 * cast({number}, {RUN})", x.dims, FLOAT, x.size + 1, x)


def best(s: Scope) -> Value | None:
    """argmax, then what is at it: by `gather`, by `one_hot`, or as a number."""
    x = s.pick(least=2)
    places = [] if x is None else [i for i, t in enumerate(x.dims) if i and len(t) == 1]
    if x is None or not places:
        return None
    at = s.rng.choice(places)
    over, y = x.dims[at], s.alike(x)
    rest = (*x.dims[:at], *x.dims[at + 1 :])
    index = s.let(f"argmax({y.name}, over = {text(over)})", rest, WHOLE, bound=s.length(over))
    s.live.append(index)
    if s.rng.random() < 0.5:
        return s.let(f"gather({x.name}, {index.name}, over = {text(over)})", rest, FLOAT, x.size, x, index)
    hot = s.let(f"cast(one_hot({index.name}, {text(over)}), {RUN})", (*rest, over), FLOAT, 1.0, index)
    arrow = typed(rest)
    return s.let(f"einsum({x.name}, {hot.name} -> {arrow})", rest, FLOAT, x.size, x, hot)


def narrowed(s: Scope) -> Value | None:
    """Slices of a value, one after the other again: dims of their own, reduced or projected away."""
    x = s.pick(least=2)
    rest = [] if x is None else [t for t in x.dims if len(t) == 1 and s.canonical(t[0]) != ("batch",)]
    if x is None or not rest:
        return None
    (dim,) = term = s.rng.choice(rest)
    place, size, name = x.dims.index(term), s.size(dim), text(term)
    if size < 2 or bare(dim) in [bare(p) for t in x.dims for p in t if p != dim]:
        return None
    at = s.rng.randint(1, size - 1)
    one = s.let(f"slice({x.name}, {name} = {at}..{size})", _with(x, place, s.made(dim, size - at)), FLOAT, x.size, x)
    if s.rng.random() < 0.6:
        two = s.let(f"slice({x.name}, {name} = 0..{at})", _with(x, place, s.made(dim, at)), FLOAT, x.size, x)
        more = s.rng.random() < 0.3
        total = size + (size if more else 0)
        given = [one.name, x.name, two.name] if more else [one.name, two.name]
        one = s.let(f"concat({', '.join(given)}, over = {name})", _with(x, place, s.made(dim, total)), FLOAT, x.size,
                    one, two)  # fmt: skip
    return one


def _with(x: Value, place: int, dim: str) -> tuple[tuple[str, ...], ...]:
    return (*x.dims[:place], (dim,), *x.dims[place + 1 :])


def settled(s: Scope) -> Value | None:
    """A value with a dim that has no name, without it."""
    found = [v for v in s.floats(named=False) if not v.named]
    unread = [v for v in found if not v.uses] or found
    if not unread:
        return None
    x = s.rng.choice(unread)
    place = next(i for i, t in enumerate(x.dims) if any(p.startswith("~") for p in t))
    if place == len(x.dims) - 1:
        out = s.others(x.parts())
        # A number becomes the dim that it meets: only where nothing else has that.
        alone = all(v is x or not set(x.dims[-1]) & set(v.parts()) for v in s.live)
        if out and alone and s.rng.random() < 0.5:
            s.shared.imports.add("Linear")
            name = s.layer("fc", f"Linear({s.length(x.dims[-1])}, {out[0]})")
            return s.let(f"{name}({x.name})", (*x.dims[:-1], (out[0],)), FLOAT, 2 * x.size, x)
        helper = s.shared.makers["last"]
        return s.let(f"{x.name} |> {helper}", x.dims[:-1], FLOAT, x.size, x)  # type: ignore[str-bytes-safe]
    term = x.dims[place]
    if len(term) > 1 or x.uses or bare(term[0]) in ("height", "width"):  # the sides of an image are numbers
        return None
    kind = s.rng.choice(["mean", "amax", "sum"])
    return s.let(f"{kind}({x.name}, over = {text(term)})", (*x.dims[:place], *x.dims[place + 1 :]), FLOAT, x.size, x)


def placed(s: Scope) -> Value | None:
    """Elements in other places along a dim; numbers drawn; a variance beside, or the log of a sum."""
    x = s.pick(least=2)
    rest = [] if x is None else [t for t in x.dims if len(t) == 1 and not s.batch(t)]
    if x is None or not rest:
        return None
    term, n = s.rng.choice(rest), x.name
    over = f"over = {text(term)}"
    wide = typed([() if t == term else t for t in x.dims])
    forms = [f"{n} + flip({n}, {over})", f"{n} - 0.5 * roll({n}, {over}, shift = {s.rng.randint(-2, 2)})",
             f"{n} + 0.1 * rearrange(logsumexp({n}, {over}) -> {wide})",
             f"{n} + 0.1 * rand(-> {typed(x.dims)})", f"{n} * (1 + 0.1 * tanh(randn(-> {typed(x.dims)})))"]  # fmt: skip
    if s.length(term) > 1:
        forms += [f"{n} * 0.5 + rearrange(tanh(var({n}, {over})) -> {wide})"]
    return s.let(s.rng.choice(forms), x.dims, FLOAT, 2 * x.size + 3, x)


def stacked(s: Scope) -> Value | None:
    """Values one upon the other, their mean padded and sliced by steps, and the sum of what is left."""
    x = s.pick(least=2)
    rest = [] if x is None else [t for t in x.dims if len(t) == 1 and not s.batch(t)]
    names = [] if x is None else [n for n in s.others(x.parts()) if s.size(n) < 5]
    if x is None or not rest or not names:
        return None
    y, term, many = s.alike(x), s.rng.choice(rest), s.size(names[0])
    given = ", ".join((x.name, y.name)[at % 2] for at in range(many))
    one = s.let(f"mean(stack({given}, over = {names[0]}), over = {names[0]})", x.dims, FLOAT, x.size, x, y)
    size, place = s.length(term), x.dims.index(term)
    before, total = s.rng.randint(0, 2), s.rng.randint(1, 2)
    wide = _with(x, place, s.made(term[0], before + size + total))
    long = s.let(f"pad({one.name}, {text(term)} = ({before}, {total}))", wide, FLOAT, x.size, one)
    less = _with(x, place, s.made(term[0], -(-(size + 1) // 2)))
    short = s.let(f"{long.name}[{text(term)} = 0..{size + 1}..2]", less, FLOAT, x.size, long)
    rows = s.let(f"sum({short.name}, over = {text(term)})", tuple(t for t in x.dims if t != term), FLOAT,
                 x.size * size, short)  # fmt: skip
    shape = typed([() if t == term else t for t in x.dims])
    return s.let(f"{x.name} + 0.1 * rearrange({rows.name} -> {shape})", x.dims, FLOAT, 2 * x.size, x, rows)


def looked_up_in(s: Scope) -> Value | None:
    """`take` of a table's columns, or rows, by ids of the data or by the greatest of a dim."""
    x = s.pick(least=2)
    if x is None or len(x.dims[-1]) != 1 or s.batch(x.dims[-1]) or len(x.dims) < 3:
        return None
    names = s.others(x.parts())
    if not names:
        return None
    table = s.param(((names[0],), x.dims[-1]))
    best = s.let(f"top_k({x.name}, 1, over = {text(x.dims[-1])})", (*x.dims[:-1], (s.made("one", 1),)), WHOLE)
    found = s.let(f"take({table}, {best.name}, over = {text(x.dims[-1])})", ((names[0],), *best.dims), FLOAT, 1.0, best)
    mean = s.let(f"sum({found.name}, over = {names[0]})", best.dims, FLOAT, 2.0, found)
    wide = typed([*x.dims[:-1], ()])
    return s.let(f"{x.name} + tanh(rearrange({mean.name} -> {wide}))", x.dims, FLOAT, x.size + 1, x, mean)


def picked(s: Scope) -> Value | None:
    """One index of a dim, which the result lacks; beside a value of its dims, if there is one."""
    x = s.pick(least=3)
    rest = [] if x is None else [t for t in x.dims if len(t) == 1 and not s.batch(t)]
    if x is None or not rest:
        return None
    term = s.rng.choice(rest)
    index = s.rng.randint(-s.length(term), s.length(term) - 1)
    one = s.let(f"{x.name}[{text(term)} = {index}]", tuple(t for t in x.dims if t != term), FLOAT, x.size, x)
    wide = typed([() if t == term else t for t in x.dims])
    return s.let(f"{x.name} + 0.5 * rearrange({one.name} -> {wide})", x.dims, FLOAT, 2 * x.size, x, one)


PIECES: tuple[Piece, ...] = (
    smooth, smooth, guarded, guarded, guarded, chosen, chosen, scaled, pair, pair, affine, affine, shares, norm, norm,
    batch_norm, reduced, centred, running, dropped, halted, counted, best, narrowed, picked,
    reduced, smooth, placed, stacked, looked_up_in,
)  # fmt: skip
