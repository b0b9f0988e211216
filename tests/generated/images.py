"""Pieces of a generated forward on images: convolutions, pools, other sizes, channels; then dims by name again."""

from __future__ import annotations

from tests.generated.scope import FLOAT, Scope, Value, text

CHANNELS = ("chan", "deep", "wide")


def _images(s: Scope) -> list[Value]:
    found = [v for v in s.floats(named=False) if len(v.dims) == 4 and v.dims[1][:1] and v.dims[1][0] in CHANNELS]
    return [v for v in found if all(len(t) == 1 for t in v.dims) and v.dims[2][0][:1] == "~"]


def _latest(s: Scope) -> Value | None:
    found = _images(s)
    return next((v for v in reversed(found) if not v.uses), found[-1] if found else None)


def _sides(s: Scope, x: Value) -> tuple[int, int]:
    return s.length(x.dims[2]), s.length(x.dims[3])


def _made(s: Scope, x: Value, channel: str, kernel: int, stride: int, padding: int) -> tuple[tuple[str, ...], ...]:
    sides = [(n + 2 * padding - kernel) // stride + 1 for n in _sides(s, x)]
    return (x.dims[0], (channel,), *((s.made(n, side),) for n, side in zip(("height", "width"), sides, strict=True)))


def convolved(s: Scope) -> Value | None:
    """The library's layer, or the operator with a weight of its own, in groups too."""
    x = _latest(s)
    if x is None:
        return None
    kernel, stride, padding = s.rng.choice([(1, 1, 0), (2, 1, 0), (3, 1, 1), (3, 2, 1), (2, 2, 0), (3, 1, 0)])
    if min(_sides(s, x)) + 2 * padding < kernel + stride:
        return None
    (channel,) = x.dims[1]
    to = s.rng.choice([c for c in CHANNELS if c != channel])
    dims, size = _made(s, x, to, kernel, stride, padding), x.size * 2
    extra = f", stride = {stride}, padding = {padding}"
    if s.rng.random() < 0.5:
        s.shared.imports.add("Conv2d")
        bias = s.rng.choice(["", ", bias = false"])
        name = s.layer("conv", f"Conv2d({channel}, {to}, kernel = {kernel}{extra}{bias})")
        return s.let(f"{name}({x.name})", dims, FLOAT, size, x)
    groups = s.rng.choice([g for g in (1, 2, 3) if s.size(channel) % g == 0 and s.size(to) % g == 0])
    inner = channel if groups == 1 else str(s.size(channel) // groups)
    name = _weight(s, to, inner, kernel, kernel)
    bias = f", {s.param(((to,),))}" if s.rng.random() < 0.5 else ""
    more = extra + (f", groups = {groups}" if groups > 1 else "")
    if groups > 1:
        s.feature("groups")
    return s.let(f"conv2d({x.name}, {name}{bias}{more})", dims, FLOAT, size, x)


def _weight(s: Scope, first: str, second: str, *kernel: int) -> str:
    """A parameter of two dims of channels and the sides of a kernel."""
    name, sides = s.shared.fresh("p"), [s.shared.fresh("r") for _ in kernel]
    s.members.append("dim " + ", ".join(f"{side} = {size}" for side, size in zip(sides, kernel, strict=True)))
    s.members.append(f"param {name}: [{', '.join((first, second, *sides))}] = normal(0.3)")
    return name


def resized(s: Scope) -> Value | None:
    """Images of another size: by a transposed convolution, by interpolation, by means."""
    x = _latest(s)
    if x is None or max(_sides(s, x)) > 8:
        return None
    (channel,) = x.dims[1]
    kind = s.rng.choice(["transposed", "transposed", "nearest", "bilinear", "adaptive"])
    to, sides = channel, [2 * n for n in _sides(s, x)]
    if kind == "transposed":
        to = s.rng.choice([c for c in CHANNELS if c != channel])
        if s.rng.random() < 0.5:
            s.shared.imports.add("ConvTranspose2d")
            call = f"{s.layer('up', f'ConvTranspose2d({channel}, {to}, kernel = 2, stride = 2)')}({x.name})"
        else:
            sides = [n + 1 for n in _sides(s, x)]
            bias = f", {s.param(((to,),))}" if s.rng.random() < 0.5 else ""
            call = f"conv_transpose2d({x.name}, {_weight(s, channel, to, 2, 2)}{bias})"
    elif kind == "nearest":
        call = f"interpolate({x.name}, scale_factor = 2)"
    else:
        sides = [3, 2]
        given = 'interpolate({}, size = (3, 2), mode = "bilinear")', "adaptive_avg_pool2d({}, (3, 2))"
        call = given[kind == "adaptive"].format(x.name)
    made = [(s.made(n, side),) for n, side in zip(("height", "width"), sides, strict=True)]
    dims = (x.dims[0], (to,), *(d if isinstance(d, tuple) else (d,) for d in made))
    return s.let(call, dims, FLOAT, 2 * x.size, x)


def pooled(s: Scope) -> Value | None:
    x = _latest(s)
    if x is None or min(_sides(s, x)) < 3:
        return None
    kernel, stride, padding = s.rng.choice([(2, 2, 0), (3, 1, 1), (2, 1, 0)])
    dims = _made(s, x, x.dims[1][0], kernel, stride, padding)
    given = "2" if (kernel, stride) == (2, 2) else f"{kernel}, stride = {stride}, padding = {padding}"
    return s.let(f"{s.rng.choice(['max_pool2d', 'avg_pool2d'])}({x.name}, {given})", dims, FLOAT, x.size, x)


def treated(s: Scope) -> Value | None:
    """Operators on the channels."""
    x = _latest(s)
    if x is None:
        return None
    kinds = ["drop", "drop", "softmax", "add", "groups", "groups", *([] if s.shared.apart else ["norm", "layer"])]
    n, kind = x.name, s.rng.choice(kinds)
    match kind:
        case "drop":
            return s.let(f"dropout2d({n}, p = {s.rng.choice([0.2, 0.5])})", x.dims, FLOAT, 2 * x.size, x)
        case "norm":
            given = [n, s.state((x.dims[1],), "zeros()"), s.state((x.dims[1],), "ones()")]
            return s.let(f"batch_norm({', '.join(given)})", x.dims, FLOAT, 4.0, x)
        case "groups":
            return _grouped(s, x)
        case "layer":
            s.shared.imports.add("BatchNorm2d")
            name = s.layer("bn", f"BatchNorm2d({text(x.dims[1])})")
            return s.let(f"relu({name}({n}))", x.dims, FLOAT, 4.0, x)
        case "softmax":
            return s.let(f"softmax({n}, over = {text(x.dims[1])})", x.dims, FLOAT, 1.0, x)
    return s.let(f"{n} + gelu({n})", x.dims, FLOAT, 2 * x.size, x)


def _grouped(s: Scope, x: Value) -> Value:
    """The library's layer, or the operator, with or without a weight."""
    groups = s.rng.choice([g for g in (1, 2, 3, s.length(x.dims[1])) if s.length(x.dims[1]) % g == 0])
    if s.rng.random() < 0.3:
        s.shared.imports.add("GroupNorm")
        name = s.layer("gn", f"GroupNorm({groups}, {text(x.dims[1])})")
        return s.let(f"{name}({x.name})", x.dims, FLOAT, 4.0, x)
    given = "".join(f", {s.param((x.dims[1],))}" for _ in range(s.rng.randint(0, 2)))
    return s.let(f"group_norm({x.name}, {groups}{given})", x.dims, FLOAT, 4.0, x)


# A function of the places of an image one after the other; `o` is the channels that come out.
_SOUNDS = {
    "conv1d(y, weight, padding = 1)": "[o, c, k]",
    "conv_transpose1d(y, weight, stride = 2)": "[c, o, k]",
    "max_pool1d(y, 2)": "",
    "avg_pool1d(y, 2)": "",
    "adaptive_avg_pool1d(y, 3)": "",
    'interpolate(y, scale_factor = 2, mode = "linear")': "",
}


def _sound(s: Scope, x: Value) -> Value:
    """The rows of an image as one of [batch, channels, length], worked on and reduced to channels."""
    call = s.rng.choice(list(_SOUNDS))
    weight, name = _SOUNDS[call], call.partition("(")[0] + "_of_rows"
    if name not in s.shared.makers:
        if "along" not in s.shared.makers:
            s.shared.makers["along"] = "along"
            s.shared.items.append("fn along(x: [n, c, l]) -> [n, c] {\n  return mean(x, over = l)\n}")
        s.shared.makers[name] = name
        s.feature("fn")
        given, to = (f", weight: {weight}", "o") if weight else ("", "c")
        s.shared.items.append(
            f"fn {name}(x: [n, c, h, w]{given}) -> [n, {to}] {{\n  y = rearrange(x -> [n, c, h * w])\n"
            f"  return along({call})\n}}"
        )
    if not weight:
        return s.let(f"{name}({x.name})", x.dims[:2], FLOAT, x.size, x)
    (channel,) = x.dims[1]
    to = s.rng.choice([c for c in CHANNELS if c != channel])
    order = (to, channel) if weight.startswith("[o") else (channel, to)
    return s.let(f"{name}({x.name}, {_weight(s, *order, 3)})", (x.dims[0], (to,)), FLOAT, 2 * x.size, x)


def out_of_images(s: Scope) -> Value | None:
    """Flattened into a linear layer, or reduced to channels by a function that names the two sides."""
    x = _latest(s)
    if x is None:
        return None
    if s.rng.random() < 0.6 and s.length(x.dims[2]) * s.length(x.dims[3]) > 1:
        return _sound(s, x)
    out = s.others(x.parts())[0]
    if s.rng.random() < 0.6:
        s.shared.imports.add("Linear")
        s.feature("product dim")
        product = s.length((*x.dims[1], *x.dims[2], *x.dims[3]))
        name = s.layer("fc", f"Linear({product}, {out})")
        keep = text(x.dims[0])
        return s.let(f"flatten({x.name}, keep = {keep}) |> {name}", (x.dims[0], (out,)), FLOAT, 3 * x.size, x)
    if "pixels" not in s.shared.makers:
        s.shared.makers["pixels"] = "pixels"
        s.feature("fn")
        s.shared.items.append(
            "fn pixels(x: [n, c, h, w]) {\n  y = rearrange(x -> [n, h * w, c])\n  return mean(y, over = (h * w))\n}"
            if s.rng.random() < 0.5
            else "fn pixels(x: [n, c, h, w]) -> [n, c] {\n  return mean(x, over = (h, w))\n}"
        )
    return s.let(f"pixels({x.name})", x.dims[:2], FLOAT, x.size, x)


PIECES = (convolved, convolved, pooled, resized, treated)
