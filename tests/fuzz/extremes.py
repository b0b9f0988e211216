"""Programs that have much of one thing: brackets, layers, dims, axes, lines, letters. Each takes a size."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.fuzz.words import STRANGE

Maker = Callable[[int], str]
TRAIN = (
    "train {\n  model = M()\n  data = random(x: [batch, d], batches = 1)\n  loss = mean(model(x))\n"
    "  optimizer = sgd(lr = 0.1)\n  steps = 1\n}\n"
)
HEAD = "dim batch = 8, d = 4\n"


def model(body: str, members: str = "  param w: [d] = ones()\n", more: str = "") -> str:
    """A program round the statements of a forward that end in a value `y`."""
    return f"{HEAD}{more}model M {{\n{members}  forward(x: [batch, d]) {{\n{body}    return y\n  }}\n}}\n{TRAIN}"


def strategy(rules: str) -> str:
    return model("    h = x * w\n    y = relu(h)\n") + f"strategy s {{\n{rules}}}\n"


def _doubling(n: int) -> str:
    models = "".join(
        f"model A{i} {{\n  layer a = A{i - 1}()\n  layer b = A{i - 1}()\n"
        "  forward(x: [batch, d]) {\n    return x |> a |> b\n  }\n}\n"
        for i in range(1, n)
    )
    first = "model A0 {\n  param w: [d] = ones()\n  forward(x: [batch, d]) {\n    return x * w\n  }\n}\n"
    return model("    y = a(x)\n", f"  layer a = A{n - 1}()\n", first + models)


def _doubling_functions(n: int) -> str:
    more = "".join(f"fn f{i}(x: [batch, d]) {{\n  return f{i - 1}(f{i - 1}(x))\n}}\n" for i in range(1, n))
    return model(f"    y = f{n - 1}(x) * w\n", more="fn f0(x: [batch, d]) {\n  return relu(x)\n}\n" + more)


def _doubling_dims(n: int) -> str:
    more = "".join(
        f"model A{i}(k: dim) {{\n  layer a = A{i - 1}(k * k)\n  forward(x: [batch, d]) {{\n    return a(x)\n  }}\n}}\n"
        for i in range(1, n)
    )
    first = "model A0(k: dim) {\n  param v: [k] = ones()\n  forward(x: [batch, d]) {\n    return x + sum(v)\n  }\n}\n"
    return model("    y = a(x)\n", f"  layer a = A{n - 1}(d)\n", first + more)


def _chain(n: int) -> str:
    more = "".join(
        f"model A{i} {{\n  layer a = A{i - 1}()\n  forward(x: [batch, d]) {{\n    return a(x)\n  }}\n}}\n"
        for i in range(1, n)
    )
    first = "model A0 {\n  param w: [d] = ones()\n  forward(x: [batch, d]) {\n    return x * w\n  }\n}\n"
    return model("    y = a(x)\n", f"  layer a = A{n - 1}()\n", first + more)


def _arrays(n: int) -> str:
    inner = "model B {\n  param w: [d] = ones()\n  forward(x: [batch, d]) {\n    return x * w\n  }\n}\n"
    return model("    y = x |> a\n", f"  layer a[{n}] = B()\n", inner)


def _nested_arrays(n: int) -> str:
    inner = "model B {\n  param w: [d] = ones()\n  forward(x: [batch, d]) {\n    return x * w\n  }\n}\n"
    outer = f"model C {{\n  layer b[{n}] = B()\n  forward(x: [batch, d]) {{\n    return x |> b\n  }}\n}}\n"
    return model("    y = x |> a\n", f"  layer a[{n}] = C()\n", inner + outer)


def _many_dims(n: int) -> str:
    names = [f"k{i}" for i in range(n)]
    sizes = ", ".join(f"{k} = 1" for k in names)
    more = f"dim {sizes}\n"
    return model("    s = v * 2\n    y = x * sum(s)\n", f"  param v: [{', '.join(names)}] = ones()\n", more)


def _einsum(n: int) -> str:
    names = [f"k{i}" for i in range(n)]
    more = f"dim {', '.join(f'{k} = 1' for k in names)}\n"
    half = ", ".join(names[::2])
    turned = ", ".join(reversed(names))
    body = f"    s = einsum(v, u -> [{half}])\n    r = rearrange(v -> [{turned}])\n    y = x * sum(s) * sum(r)\n"
    members = f"  param v: [{', '.join(names)}] = ones()\n  param u: [{half}] = ones()\n"
    return model(body, members, more)


def _product_dims(n: int) -> str:
    names = [f"k{i}" for i in range(n)]
    more = f"dim {', '.join(f'{k} = 2' for k in names)}\n"
    return model("    y = x * sum(v)\n", f"  param v: [{' * '.join(names)}] = ones()\n", more)


def _axes(n: int, rule: str = "split batch over a0") -> str:
    axes = ", ".join(f"a{i} = {2 if i < 3 else 1}" for i in range(n))
    return strategy(f"  mesh {axes}\n  {rule}\n")


def _wide_mesh(n: int) -> str:
    return strategy(
        f"  mesh {', '.join(f'a{i} = 2' for i in range(n))}\n  split batch over (a0, a1, a2)\n  split d over (a3, a4)\n"
    )


def _ifs(n: int) -> str:
    return model("    y = x * w\n", "  if true {\n" * n + "  param w: [d] = ones()\n" + "  }\n" * n)


def _else_ifs(n: int) -> str:
    arms = "".join(f"if d == {i + 5} {{\n  param w{i}: [d] = ones()\n  }} else " for i in range(n))
    return model("    y = x * w\n", f"  {arms}{{\n  param w: [d] = ones()\n  }}\n")


def _body(line: str) -> str:
    return model(f"    y = {line}\n")


def _statements(n: int) -> str:
    lines = "".join(f"    v{i} = relu({f'v{i - 1}' if i else 'x'})\n" for i in range(n))
    return model(f"{lines}    y = v{n - 1} * w\n")


def _tied(n: int) -> str:
    return model("    y = " + " + ".join(["x * w"] * n) + "\n")


NESTED: tuple[Maker, ...] = (
    lambda n: _body("(" * n + "x" + ")" * n),
    lambda n: _body("(" * n),
    lambda n: _body("[" * n),
    lambda n: _body(")" * n),
    lambda n: _body("relu(" * n + "x" + ")" * n),
    lambda n: _body("x[" * n + "0" + "]" * n),
    lambda n: _body("x" + ".y" * n),
    lambda n: _body("-" * n + "x"),
    lambda n: _body("not " * n + "x"),
    lambda n: _body("x" + " |> relu" * n),
    lambda n: _body("x" + "\n      |> relu" * n),
    lambda n: _body("x" + " + x" * n),
    lambda n: _body("x" + " ** x" * n),
    lambda n: _body("2" + " ** 2" * n),
    lambda n: _body("1" + " < 1" * n),
    lambda n: _body("1 if true else " * n + "x"),
    lambda n: _body("((" * n + "1,),)" * n),
    lambda n: _body("x" + "()" * n),
    lambda n: _body("einsum(x -> " * n + "[d]" + ")" * n),
    lambda n: f"dim n = {'(' * n}1{')' * n}\n",
    lambda n: f"dim n = 1{' + 1' * n}\n",
    lambda n: f"dim n = 2{' * 2' * n}\n",
    lambda n: "model M {\n" + "model M {\n" * n + "}\n" * n,
    lambda n: "{" * n + "}" * n,
    lambda n: "train {\n  a = {\n" * n,
    lambda n: "dim n = (\n" * n,
    lambda n: f"strategy s {{\n  mesh a = {'(' * n}2{')' * n}\n}}\n",
    lambda n: f"strategy s {{\n  at {'a.' * n}b: recompute\n}}\n",
    lambda n: f"strategy s {{\n  at {'*a' * n}: recompute\n}}\n",
    lambda n: f"strategy s {{\n  at {'a at ' * n}: recompute\n}}\n",
    lambda n: f"strategy s {{\n  at h: shard {'(' * n}2{')' * n}\n}}\n",
    lambda n: f'use "{"../" * n}x.shard": A\n',
    lambda n: f"use {'a.' * n}b: A\n",
    _ifs, _else_ifs, _chain,
)  # fmt: skip

GROWING: tuple[Maker, ...] = (
    _doubling, _doubling_functions, _doubling_dims, _arrays, _nested_arrays, _many_dims, _einsum, _product_dims,
    _axes,
    _wide_mesh, _statements, _tied,
    lambda n: _axes(n, f"split batch over ({', '.join(f'a{i}' for i in range(n))})"),
    lambda n: _axes(n, "at h: shard ((2, 2), (2,))"),
    lambda n: strategy(f"  mesh a = {n}\n  split batch over a\n"),
    lambda n: strategy(f"  mesh a = 2\n  split batch over a\n  at {'**.' * n}h: recompute\n"),
    lambda n: strategy(f"  mesh a = 2\n  split batch over a\n  at {'*' + 'h*' * n}: recompute\n"),
    lambda n: strategy("  mesh a = 2\n" + "".join("  split batch over a\n" for _ in range(n))),
    lambda n: strategy("  mesh a = 2\n" + "  at h: shard ((2, 1), (1,))\n" * n),
    lambda n: strategy(f"  at h: shard (({', '.join('2' * n)}), (1,))\n"),
    lambda n: strategy(f"  at h: shard (({n}, 1), (1,))\n  at y: shard ((3, 1),)\n"),
    lambda n: strategy(f"  mesh a = 2\n  at h: [batch@({', '.join('a' * n)}), d]\n"),
    lambda n: strategy(f"  mesh a = 2\n  at h: [{', '.join(['d'] * n)}]\n"),
    lambda n: strategy("  mesh a = 2, b = 2\n  split batch over a\n" + "  zero 1 over b\n  zero 2 over b\n" * n),
    lambda n: "dim " + ", ".join(f"a{i} = {i + 1}" for i in range(n)) + "\n",
    lambda n: "".join(f"dim a{i + 1} = a{i} * 2\n" for i in range(n)),
    lambda n: "".join(f"dim a{i} = a{i + 1}\n" for i in range(n)),
    lambda n: "".join(f"fn f{i}(x: [d]) {{\n  return x\n}}\n" for i in range(n)),
    lambda n: "".join(f"strategy s{i} {{\n  mesh a = 2\n}}\n" for i in range(n)) + model("    y = x * w\n"),
    lambda n: "use std.nn: " + ", ".join(["Linear"] * n) + "\n",
    lambda n: "use std.nn: Linear\n" * n,
    lambda n: "use std.nn: " + ", ".join(f"A{i}" for i in range(n)) + "\n",
    lambda n: "train {\n" + "".join(f"  v{i} = {i}\n" for i in range(n)) + "}\n",
    lambda n: "train {\n" + "".join(f"  optimizer at a{i} = sgd(lr = 0.1)\n" for i in range(n)) + "}\n",
    lambda n: model("    y = x * w\n").replace("steps = 1", "steps = 1\n" + "  optimizer at w* = sgd(lr = 1)\n" * n),
    lambda n: model("    y = x * w\n", "".join(f"  param w{i or ''}: [d] = ones()\n" for i in range(n))),
    lambda n: "model M(" + ", ".join(f"a{i}: int = {i}" for i in range(n)) + ") {\n}\n",
    lambda n: model(f"    y = concat({', '.join(['x'] * n)}, over = d)\n"),
    lambda n: model(f"    y = relu({', '.join(['x'] * n)})\n"),
    lambda n: model(f"    y = relu({', '.join(f'a{i} = x' for i in range(n))})\n"),
)  # fmt: skip

LONG: tuple[Maker, ...] = (
    lambda n: f"dim {'n' * n} = 1\n",
    lambda n: f"dim n = {'9' * n}\n",
    lambda n: f"dim n = 1.{'9' * n}\n",
    lambda n: f"dim n = 1{'_0' * n}\n",
    lambda n: f"dim n = 1e{'9' * n}\n",
    lambda n: f"dim n = 1{'x' * n}\n",
    lambda n: f'use "{"x" * n}": A\n',
    lambda n: 'use "' + "\\q" * n + '": A\n',
    lambda n: f'use "{"x" * n}\n',
    lambda n: "#" * n,
    lambda n: "# c\n" * n + model("    y = x * w\n"),
    lambda n: "## doc\n" * n + model("    y = x * w\n"),
    lambda n: "\n" * n + model("    y = x * w\n") + "\n" * n,
    lambda n: " " * n + "dim n = 1" + " " * n,
    lambda n: "dim n = 1 " + "# " * n,
    lambda n: "dim n = 1" + "\r" * n,
    lambda n: "dim n = 1" + "\r\n" * n,
    lambda n: "?" * n,
    lambda n: "? ?\n" * n,
    lambda n: "}\n" * n,
    lambda n: "model M {\n" * n,
    lambda n: "model\n" * n,
    lambda n: '"\n' * n,
    lambda n: "x = (\n" * n,
    lambda n: STRANGE[n % len(STRANGE)] * n,
    lambda n: "dim n = 1 " + STRANGE[n % len(STRANGE)] * n,
    lambda n: f"dim n = {'nn' * n}\n",
    lambda n: model(f"    y = {'nn' * n}(x)\n"),
    lambda n: model(f"    y = x * {'nn' * n}\n"),
    lambda n: model(f"    y = x * w{'' if n % 2 else ' * z' * n}\n"),
    lambda n: model(f"    y = relu(x, {'z' * n} = 1)\n"),
    lambda n: strategy(f"  mesh {'a' * n} = 2\n  split {'b' * n} over {'a' * n}\n"),
    lambda n: strategy(f"  at {'h' * n}: recompute\n"),
    lambda n: model("    y = x * w\n") + "".join(f"## {'d' * 50}\n" for _ in range(n)),
)  # fmt: skip

LONGEST = 200_000  # characters: time is linear in them, and some 4 us each
SMALL = (1, 2, 3, 5, 10, 20, 30, 52, 53, 64, 65, 100, 149, 150, 151, 152, 200, 300, 999, 1000, 1001, 3000)
LARGE = (4_000, 10_000, 20_000, 60_000)


def extreme(rng: random.Random) -> str:
    """One of the makers at a size of its sort."""
    pick = rng.random()
    if pick < 0.4:
        return rng.choice(NESTED)(rng.choice(SMALL if rng.random() < 0.9 else LARGE))[:LONGEST]
    if pick < 0.8:
        return rng.choice((*GROWING, *COUNTED))(rng.choice(SMALL))[:LONGEST]
    return rng.choice(LONG)(rng.choice(SMALL if rng.random() < 0.6 else LARGE))[:LONGEST]


# What takes a number, however large, without a text that is as large.
COUNTED: tuple[Maker, ...] = (
    _arrays, _nested_arrays,
    lambda n: strategy(f"  mesh a = {n}\n  split batch over a\n"),
    lambda n: strategy(f"  at h: shard (({n}, 1), (1,))\n  at y: shard ((3, 1),)\n"),
    lambda n: model("    y = conv2d(x, x, stride = " + str(n) + ")\n"),
    lambda n: model(f"    y = slice(x, d = {n}..{n + 1}) * arange({n})\n"),
    lambda n: model(f"    y = x ** {n} * w / {n}\n"),
    lambda n: model(f"    y = one_hot(argmax(x, over = d), {n})\n"),
    lambda n: model("    y = x * w\n").replace("batch = 8", f"batch = {n}").replace("batches = 1", f"batches = {n}"),
    lambda n: model("    y = x * w\n").replace("d = 4", f"d = {n} * {n} * {n}"),
    lambda n: model("    y = x * w\n").replace("steps = 1", f"steps = {n}\n  seed = {n}\n  clip = {n}\n  epochs = {n}"),
)  # fmt: skip


def vast(rng: random.Random) -> str:
    """Numbers no machine holds where a size, a count or an index is meant."""
    sizes = (10**9, 10**12, 10**18, 2**63 - 1, 2**63, 2**64, 10**30, 0, -1, 1_000, 10**5, 10**6, 10**7)
    return rng.choice(COUNTED)(rng.choice(sizes))
