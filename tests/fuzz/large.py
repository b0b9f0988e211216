"""Files that have thousands of one thing: axes in strange orders, stages, mistakes, selectors, lines of a map.

Each is given to `check` or to `plan` as a whole command; what these may take is pool.py's."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from tests.fuzz.case import Case

TRAIN = """train {
  model = M()
  data = random(x: [batch, d], batches = 1)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""
BLOCK = "model B {\n  param w: [d] = ones()\n  forward(x: [batch, d]) -> [batch, d] {\n    return x * w\n  }\n}\n"
ONE = "  param w: [d] = ones()\n"
DATA = "  mesh dp = auto\n  split batch over dp\n"
Made = tuple[str, int]


def program(
    body: str = "    y = x * w\n", members: str = ONE, more: str = "", rules: str = DATA, train: str = TRAIN,
    dims: str = "batch = 8, d = 4",
) -> str:  # fmt: skip
    """A program round the statements of a forward, with a strategy."""
    forward = f"  forward(x: [batch, d]) -> [batch, d] {{\n{body}    return y\n  }}\n"
    return f"dim {dims}\n{more}model M {{\n{members}{forward}}}\nstrategy s {{\n{rules}}}\n{train}"


def deep(layers: int, rules: str = DATA, train: str = TRAIN) -> str:
    """A program of many equal layers."""
    return program("    y = x |> a\n", f"  layer a[{layers}] = B()\n", BLOCK, rules, train)


# --- axes in any order --------------------------------------------------------


def _layout(rng: random.Random, names: list[str], axes: list[str]) -> str:
    """A pin: each axis on some dim, or on none."""
    cuts: dict[str, list[str]] = {name: [] for name in names}
    for axis in rng.sample(axes, len(axes)):
        if rng.random() < 0.85:
            cuts[rng.choice(names)].append(axis)
    return ", ".join(f"{name}@({', '.join(on)})" if on else name for name, on in cuts.items())


def pinned(rng: random.Random) -> Made:
    """Up to 20 axes and 12 dims, and pins that put every axis elsewhere in each statement."""
    sizes = [rng.choice((2, 2, 2, 2, 3, 4)) for _ in range(rng.randint(2, 20))]
    while math.prod(sizes) > 1_000_000:
        sizes.pop()
    axes, many = [f"a{i}" for i in range(len(sizes))], rng.randint(1, 12)
    names, size = [f"k{i}" for i in range(many)], math.prod(sizes)
    count = rng.choice((2, 3, 6, 12))
    lines = [f"    h{i} = {f'relu(h{i - 1})' if i else 'v * 2'}\n" for i in range(count)]
    mesh = "  mesh " + ", ".join(f"{a} = {n}" for a, n in zip(axes, sizes, strict=True)) + "\n"
    pins = [f"  at h{i}: [{_layout(rng, names, axes)}]\n" for i in range(count) if rng.random() < 0.8]
    dims = f"batch = {size}, d = {size}, " + ", ".join(f"{k} = {size}" for k in names)
    members = f"{ONE}  param v: [{', '.join(names)}] = ones()\n"
    body = "".join(lines) + f"    y = x * w + sum(h{count - 1})\n"
    return program(body, members, rules=mesh + "".join(pins), dims=dims), size


def sharded(rng: random.Random) -> Made:
    """Statements with device matrices that have no axes in common."""
    primes = [rng.choice((2, 2, 3, 5)) for _ in range(rng.randint(2, 12))]
    size, rules = math.prod(primes), ""
    count = rng.choice((2, 4, 8))
    for i in range(count):
        mine = rng.sample(primes, len(primes))
        cuts = [math.prod(mine[a:b]) for a, b in ((0, len(mine) // 3), (len(mine) // 3, len(mine) // 2))]
        rules += f"  at h{i}: shard (({cuts[0]}, {cuts[1]}),)\n"
    body = "".join(f"    h{i} = relu({f'h{i - 1}' if i else 'x'})\n" for i in range(count))
    return program(f"{body}    y = h{count - 1} * w\n", rules=rules, dims=f"batch = {size}, d = {size}"), size


# --- pipelines ----------------------------------------------------------------


def staged(rng: random.Random) -> Made:
    """Up to 1,000 stages and microbatches."""
    stages, times = rng.choice((2, 10, 100, 256, 500, 1_000)), rng.choice((1, 10, 100, 512, 1_000))
    schedule = rng.choice(("gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv", "dualpipe_v"))
    virtual = rng.choice(("", "", ", virtual = 2", ", virtual = 4"))
    rules = (
        f'  mesh pp = {stages}\n  stages over pp balanced{virtual}\n  microbatches {times}\n  schedule "{schedule}"\n'
    )
    text = deep(stages * rng.choice((1, 2, 4)), rules).replace("batch = 8", f"batch = {times * 8}")
    return text, stages


def divided(rng: random.Random) -> Made:
    """Stages by hand, a selector for each layer."""
    stages = rng.choice((2, 10, 100, 500))
    rules = f"  mesh pp = {stages}\n  stages over pp {{\n"
    rules += "".join(f"    {i}: a[{i}]\n" for i in range(stages)) + "  }\n  microbatches 8\n"
    return deep(stages, rules), stages


# --- mistakes -----------------------------------------------------------------

STATEMENTS: tuple[str, ...] = (
    "    v{i} = relu(xq{i})\n", "    v{i} = reluu{i}(x)\n", "    v{i} = x @ x\n", "    v{i} = sum(x, over = q{i})\n",
    "    v{i} = relu(x, q{i} = 1)\n", "    v{i} = expand(x -> [q{i}, batch, d])\n", "    v{i} = x.q{i}\n",
    "    v{i} = w.q{i}\n", "    v = relu(x)\n", "    v{i} = relu(x)\n", "    v{i} = cast(x, f{i})\n",
    "    v{i} = dropout(x, p = {i}1)\n", "    v{i} = x + concat(x, over = d)\n", "    v{i} = rearrange(x -> [d])\n",
    "    v{i} = slice(x, d = {i}..1)\n", "    v{i} = w{i} |> relu |> relo\n", "    v{i} = (\n", "    v{i} = 1 2\n",
    "    v{i} = x[{i}]\n", "    v{i} = {i} / 0\n", "    v{i} = matmul(x, x, x)\n", "    batch = v{i}\n",
)  # fmt: skip
MEMBERS: tuple[str, ...] = (
    "  param p{i}: [q{i}] = ones()\n", "  param p{i}: [d] = one{i}()\n", "  param p{i}: [d] = ones()\n",
    "  layer l{i} = L{i}()\n", "  layer l{i} = B(1)\n", "  state p{i}: g{i}[d] = zeros()\n",
    "  param w: [d] = ones()\n",
    "  dim d{i} = e{i}\n", "  param p{i}: [d, d] = ones()\n",
)  # fmt: skip
RULES: tuple[str, ...] = (
    "  split q{i} over dp\n", "  split d over m{i}\n", "  at b[{i}].q{i}: recompute\n",
    "  at a[{i}].w: place on moon\n",
    "  at a[{i}]: zero 7 over dp\n", "  zero 1 over dp\n", "  at a[*].q{i}: recompute\n", "  at **.q{i}: recompute\n",
    "  at *q{i}*: recompute\n", "  microbatches {i}\n", "  at a[{i}].w: [d@q{i}]\n", "  at a[{i}].w: shard ((2,),)\n",
    "  at a[{i}].return: [batch@dp, d]\n", "  at a[{i}]: recompute q{i}\n", "  at a[{i}]: split d over dp\n",
)  # fmt: skip
SETTINGS: tuple[str, ...] = (
    "  v{i} = q{i}\n", "  v{i} = {i}\n", "  metric m{i} = mean(q{i})\n", "  optimizer at b.q{i} = sgd(lr = 0.1)\n",
    "  optimizer at a[{i}] = sgd(lr = 0.{i})\n", "  optimizer at **.q{i} = sgd(lr = 0.1)\n", "  freeze at q{i}\n",
    "  freeze at a[{i}]\n", "  optimizer at a[*].w = sgd(lr = 0.{i})\n", "  optimizer at a[{i}] = sgm{i}()\n",
)  # fmt: skip
ITEMS: tuple[str, ...] = (
    "use std.nn: Q{i}\n", "use std.q{i}: Linear\n", "dim q{i} = r{i}\n", "dim q = 1\n", 'use "q{i}.shard": Q\n',
    "device q{i} {{\n  memry = 1GB\n}}\n", "cluster q{i} {{\n  device = r{i}\n}}\n",
    "fn q{i}(x: [e{i}]) {{\n  return x\n}}\n",
    "strategy q{i} {{\n  mesh dp = auto\n  split r{i} over dp\n}}\n", "model Q{i} {{\n}}\n", "modle Q{i} {{\n}}\n",
)  # fmt: skip


def mistaken(rng: random.Random) -> Made:
    """Thousands of times the same mistake, or two by turns."""
    where, some = rng.choice((("body", STATEMENTS), ("members", MEMBERS), ("rules", RULES), ("train", SETTINGS),
                              ("more", ITEMS)))  # fmt: skip
    chosen = rng.sample(some, rng.choice((1, 1, 2)))
    lines = "".join(chosen[i % len(chosen)].format(i=i) for i in range(rng.choice((10, 300, 1_000, 2_000, 4_000))))
    if where == "body":
        return program(lines + "    y = x * w\n"), 2
    if where == "members":
        return program(members=ONE + lines, more=BLOCK), 2
    if where == "more":
        return program(more=lines), 2
    layers = rng.choice((4, 2_000, 14_000))
    if where == "rules":
        return deep(layers, DATA + lines), 2
    return deep(layers, train=TRAIN.replace("  steps", f"{lines}  steps")), 2


def selected(rng: random.Random) -> Made:
    """Thousands of selectors that cover something, on thousands of layers."""
    forms = ("a[{i}]", "a[{i}].w", "a[*]", "a[0..{i}]", "**", "**.w", "*[{i}]", "a[{i}].**", "a*[*].w", "*.w")
    ways = (
        "recompute",
        "place on host",
        "place saved on host",
        "zero 1 over dp",
        "split d over dp",
        "recompute gathers",
    )
    form, way = rng.choice(forms), rng.choice(ways)
    count = rng.choice((10, 300, 1_000, 4_000))
    return deep(
        rng.choice((300, 4_000, 14_000)), DATA + "".join(f"  at {form}: {way}\n".format(i=i) for i in range(count))
    ), 2


MAKERS: tuple[Callable[[random.Random], Made], ...] = (
    pinned, pinned, sharded, staged, divided, mistaken, mistaken, mistaken, mistaken, selected,
)  # fmt: skip
LINES = (
    "q{i}*? = b*\n", "a[{i}].w = b.{i}.w\n", "a[*].w = b.*.w\n", "q{i}.w = b.{i}\n", "a[{i}*].w? = b.*\n",
    "ignore q{i}.*\n", "tied q{i} = r{i}\n", "*[{i}].w? = c.*\n", "a[{i}].w = b part {i} of 4\n", "what\n",
    "*[*].w{i}*? = *.*.*\n",
)  # fmt: skip


def mapped(rng: random.Random) -> Case:
    """Thousands of lines of a name map."""
    chosen = rng.sample(LINES, rng.choice((1, 2)))
    lines = "".join(chosen[i % len(chosen)].format(i=i) for i in range(rng.choice((10, 1_000, 4_000))))
    init = '  init = safetensors("x.safetensors", names = "n.map")\n  steps'
    text = deep(rng.choice((300, 14_000)), train=TRAIN.replace("  steps", init))
    return Case("large", text.encode(), argv=_argv(rng, 2), files={"n.map": f"a[*].w = b.*.w\n{lines}".encode()})


def large(rng: random.Random) -> Case:
    """One of these, as a command."""
    if rng.random() < 0.08:
        return mapped(rng)
    text, ranks = rng.choice(MAKERS)(rng)
    return Case("large", text.encode(), argv=_argv(rng, ranks))


def _argv(rng: random.Random, ranks: int) -> tuple[str, ...]:
    return rng.choice(("check", "plan")), "main.shard", "--ranks", str(ranks)
