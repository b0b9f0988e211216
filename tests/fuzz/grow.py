"""Random programs that are right, with all families of operators, layers, arrays, strategies; and one fault put in."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from tests.fuzz.mutate import NAME, absurd, mutated
from tests.fuzz.words import OPERATORS

SIZES = (2, 4, 4, 6, 8, 8, 12, 3, 16)
DIMS = ("seq", "width", "hidden", "other", "more")
UNARY = ("relu", "gelu", "silu", "tanh", "sigmoid", "exp", "square", "abs", "sin", "cos", "-")


@dataclass
class Grower:
    """Grows one model; `live` maps values that may be read to their dims."""

    rng: random.Random
    sizes: dict[str, int] = field(default_factory=dict)
    members: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    live: dict[str, list[str]] = field(default_factory=dict)
    count: int = 0

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def pick(self) -> tuple[str, list[str]]:
        return self.rng.choice(list(self.live.items())[-4:])

    def value(self, text: str, dims: list[str]) -> None:
        name = self.name("v")
        self.body.append(f"{name} = {text}")
        if dims[:1] == ["batch"]:
            self.live[name] = dims

    def param(self, dims: list[str]) -> str:
        name = self.name("w")
        init = self.rng.choice(("normal(0.02)", "ones()", "zeros()", "uniform(-0.1, 0.1)"))
        self.members.append(f"param {name}: [{', '.join(dims)}] = {init}")
        return name

    def other(self, dims: list[str]) -> str | None:
        left = [d for d in DIMS if d not in " ".join(dims)]
        return self.rng.choice(left) if left else None

    # --- pieces ---

    def linear(self) -> None:
        x, dims = self.pick()
        out = self.other(dims)
        if out is None or len(dims) < 2:
            return
        match self.rng.randrange(3):
            case 0:
                self.value(f"{x} @ {self.param([dims[-1], out])}", [*dims[:-1], out])
            case 1:
                w = self.param([out, dims[-1]])
                self.value(f"einsum({x}, {w} -> [{', '.join([*dims[:-1], out])}])", [*dims[:-1], out])
            case _:
                layer = self.name("fc")
                bias = self.rng.choice(("", ", bias = false"))
                self.members.append(f"layer {layer} = Linear({dims[-1]}, {out}{bias})")
                self.value(f"{x} |> {layer} |> relu", [*dims[:-1], out])

    def blocks(self) -> None:
        x, dims = self.pick()
        if len(dims) < 2 or "*" in dims[-1]:
            return
        layer, many = self.name("blocks"), self.rng.choice(("1", "2", "3", "2 * 2"))
        self.members.append(f"layer {layer}[{many}] = {self.rng.choice(('LayerNorm', 'RMSNorm'))}({dims[-1]})")
        self.value(f"{x} |> {layer}" + self.rng.choice(("", "[0]")), dims)

    def unary(self) -> None:
        x, dims = self.pick()
        op = self.rng.choice(UNARY)
        self.value(f"-{x}" if op == "-" else f"{op}({x})", dims)

    def scaled(self) -> None:
        x, dims = self.pick()
        op = self.rng.choice(("*", "+", "-", "/"))
        self.value(f"{x} {op} {self.rng.choice(('2', '0.5', '1e-3', 'width', 'width ** -0.5', '(1 / 3)'))}", dims)

    def pair(self) -> None:
        x, dims = self.pick()
        same = [v for v, d in self.live.items() if d == dims]
        self.value(f"{x} {self.rng.choice('+-*')} {self.rng.choice(same)}", dims)

    def affine(self) -> None:
        x, dims = self.pick()
        self.value(f"{x} {self.rng.choice('+*')} {self.param(dims[-self.rng.randint(1, 2) :])}", dims)

    def shares(self) -> None:
        x, dims = self.pick()
        self.value(f"{self.rng.choice(('softmax', 'log_softmax', 'cumsum'))}({x}, over = {dims[-1]})", dims)

    def reduced(self) -> None:
        x, dims = self.pick()
        if len(dims) > 2 and "*" not in dims[1]:
            self.value(f"{self.rng.choice(('sum', 'mean', 'amax'))}({x}, over = {dims[1]})", [dims[0], *dims[2:]])

    def moved(self) -> None:
        x, dims = self.pick()
        if len(dims) < 3:
            return
        rest = dims[1:]
        self.rng.shuffle(rest)
        if self.rng.random() < 0.5:
            rest = [*rest[:-2], " * ".join(rest[-2:])]
        self.value(f"rearrange({x} -> [{', '.join(['batch', *rest])}])", ["batch", *rest])

    def apart(self) -> None:
        x, dims = self.pick()
        parts = [p for d in dims for p in d.split(" * ")]
        self.value(f"rearrange({x} -> [{', '.join(parts)}])", parts)

    def cut(self) -> None:
        x, dims = self.pick()
        if "*" not in dims[-1]:
            cut = f"slice({x}, {dims[-1]} = 0..{self.rng.choice((1, 2))})"
            self.value(f"{x} * sum({cut})", dims)

    def dropped(self) -> None:
        x, dims = self.pick()
        self.value(f"dropout({x}, p = {self.rng.choice(('0.1', '0.5'))})", dims)

    def chosen(self) -> None:
        x, dims = self.pick()
        self.value(f"where({x} {self.rng.choice(('>', '<='))} 0.1, {x}, tanh({x}))", dims)

    def grow(self) -> None:
        pieces = (
            self.linear, self.linear, self.linear, self.blocks, self.unary, self.unary, self.scaled, self.pair,
            self.affine,
            self.shares, self.reduced, self.moved, self.apart, self.cut, self.dropped, self.chosen,
        )  # fmt: skip
        self.rng.choice(pieces)()


def program(rng: random.Random) -> str:
    """A whole program with a strategy."""
    g = Grower(rng, {d: rng.choice(SIZES) for d in DIMS} | {"batch": rng.choice((4, 8, 16))})
    dims = rng.choice((["batch", "width"], ["batch", "seq", "width"], ["batch", "seq", "hidden", "width"]))
    g.live["x"] = dims
    for _ in range(rng.choice((2, 4, 8, 16))):
        g.grow()
    g.affine()
    last, result = list(g.live.items())[-1]
    used = _used(g, last)
    lines = "".join(f"    {line}\n" for line in g.body if line.split()[0] in used)
    members = "".join(f"  {line}\n" for line in g.members if re.findall(r"\w+", line)[1] in used)
    g.live = {name: there for name, there in g.live.items() if name in used}
    sizes = ", ".join(f"{d} = {n}" for d, n in g.sizes.items())
    loss = "mse_loss(y, label)" if rng.random() < 0.5 else "mean(square(y))"
    label = f", label: [{', '.join(result)}]" if "label" in loss else ""
    model = (
        f"model Net {{\n{members}\n  forward(x: [{', '.join(dims)}]) -> [{', '.join(result)}] {{\n{lines}"
        f"    return {last}\n  }}\n}}\n"
    )
    data = f"random(x: [{', '.join(dims)}]{label}, batches = 2, seed = 1)"
    train = (
        f"train {{\n  model = Net()\n  data = {data}\n  y = model(x)\n"
        f"  loss = {loss}\n  metric size = mean(abs(y))\n  optimizer = sgd(lr = 0.1)\n  steps = 2\n}}\n"
    )
    return f"use std.nn: LayerNorm, Linear, RMSNorm\n\ndim {sizes}\n\n{model}\n{_strategy(rng, g)}\n{train}"


def _used(g: Grower, last: str) -> set[str]:
    """The names that the result depends on: anything else would be an error, as never used."""
    used = {last}
    for line in reversed(g.body):
        name, _, text = line.partition(" = ")
        if name in used:
            used.update(NAME.findall(text))
    return used


def _strategy(rng: random.Random, g: Grower) -> str:
    rules = []
    axes = rng.sample(("dp", "mp", "cp"), rng.randint(1, 3))
    rules.append("mesh " + ", ".join([f"{axes[0]} = auto", *(f"{a} = 2" for a in axes[1:])]))
    there = [d for d in ("batch", *DIMS) if d in " ".join(t for dims in g.live.values() for t in dims)]
    for axis, dim in zip(axes, rng.sample(there, len(there)), strict=False):
        rules.append(f"split {dim} over {axis}" + rng.choice(("", "", "", " uneven")))
    if rng.random() < 0.3:
        rules.append(f"zero {rng.choice((1, 2, 3))} over {axes[0]}")
    return "strategy s {\n  " + "\n  ".join(rules) + "\n}\n"


def faulty(rng: random.Random, text: str) -> str:
    """One fault, of the sort that people make."""
    lines = text.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    names = NAME.findall(text)
    match rng.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines[at] = NAME.sub(lambda m: rng.choice(names) if rng.random() < 0.3 else m.group(), lines[at])
        case 2:
            lines[at] = re.sub(r"\b(\w+)\(", lambda m: f"{rng.choice(OPERATORS)}(", lines[at], count=1)
        case 3:
            lines[at] = _without_argument(rng, lines[at])
        case 4:
            lines.insert(at, lines[at])
        case 5:
            return absurd(rng, text)
        case 6:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            return mutated(rng, text)
    return "".join(lines)


def _without_argument(rng: random.Random, line: str) -> str:
    """Of things with commas between, one is lost or put first."""
    parts = line.split(", ")
    if len(parts) < 2:
        return line.replace("(", "(x, ", 1)
    taken = parts.pop(rng.randrange(len(parts)))
    return ", ".join(parts if rng.random() < 0.6 else [taken.strip(), *parts])
