"""Random strategies for programs that are right: many axes, rules, selectors, matrices, absurd sizes."""

from __future__ import annotations

import random
import re

from tests.fuzz.words import ABSURD

DIMS = re.compile(r"\bdim\s+(.*)|(\w+): dim\b")
VALUES = re.compile(r"^\s*(?:layer |param |state )?(\w+)(?:\[\d+\])?(?:: \[.*\])? = ", re.MULTILINE)
STRATEGY = re.compile(r"^strategy .*?^}\n", re.MULTILINE | re.DOTALL)
AXES = "abcdefghijklmnopqrstuvwxyz"


def restrategised(rng: random.Random, text: str) -> tuple[str, int | None]:
    """The program with a strategy of its own, and a number of ranks that mostly fits."""
    dims = [n for found in DIMS.findall(text) for n in (re.findall(r"(\w+) =", found[0]) or [found[1]]) if n] or ["d"]
    values = VALUES.findall(text) or ["h"]
    count = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 8, 20))
    sizes = [rng.choice((1, 2, 2, 2, 3, 4, 8)) for _ in range(count)]
    axes = list(AXES[:count])
    rules = [_rule(rng, dims, values, axes) for _ in range(rng.choice((1, 2, 3, 5, 10)))]
    if axes:
        shown = [f"{a} = {_size(rng, n)}" for a, n in zip(axes, sizes, strict=True)]
        rules.insert(0, "mesh " + ", ".join(shown))
    body = "\n  ".join(rules)
    ranks = 1
    for size in sizes:
        ranks *= size
    asked = ranks if rng.random() < 0.8 else rng.choice((None, 1, 8, 7, 10**12, 2**70))
    if not axes and asked is not None:
        asked = rng.choice((2, 4, 6, 8, 8, 12, 16, 64))
    return STRATEGY.sub("", text) + f"\nstrategy s {{\n  {body}\n}}\n", asked


def _size(rng: random.Random, size: int) -> str:
    pick = rng.random()
    return "auto" if pick < 0.05 else rng.choice(ABSURD) if pick < 0.07 else str(size)


def _rule(rng: random.Random, dims: list[str], values: list[str], axes: list[str]) -> str:
    pick = rng.random()
    if pick < 0.45:
        return _split(rng, dims, axes)
    if pick < 0.85:
        return f"at {_selector(rng, values)}: {_narrow(rng, dims, axes)}"
    if pick < 0.93:
        return f"zero {rng.choice('01233459')} over {_axes(rng, axes)}{rng.choice(('', '', ', keep', ', kept'))}"
    return rng.choice((
        "strict", "bucket gradients 25MB", "microbatches 4", "recompute", "place on host", 'schedule "gpipe"',
        "bucket gradients 0B", "attend evenly", "chunks 2",
        "stages over a balanced", "stages over a {\n 0: x\n 1: y\n }", "bucket gradients 1e300TB",
        "microbatches 1 / 0", "mesh z = 2",
    ))  # fmt: skip


def _narrow(rng: random.Random, dims: list[str], axes: list[str]) -> str:
    match rng.randrange(5):
        case 0:
            return _split(rng, dims, axes)
        case 1:
            return _pin(rng, dims, axes)
        case 2 | 3:
            out = f" -> {_tuples(rng, axes, 1)}" if rng.random() < 0.3 else ""
            return f"shard {_tuples(rng, axes, rng.randint(0, 3))}{out}"
        case _:
            return rng.choice(("recompute", "place on host", "place on device", "zero 3 over a", "place on moon"))


def _split(rng: random.Random, dims: list[str], axes: list[str]) -> str:
    names = ", ".join(rng.choice(dims) for _ in range(rng.choice((1, 1, 1, 2, 3))))
    tail = rng.choice(("", "", "", "", " uneven", f" sizes ({rng.choice(ABSURD)}, 2)", " sizes (1, 2, 3)"))
    return f"split {names} over {_axes(rng, axes, '?')}{tail}"


def _axes(rng: random.Random, axes: list[str], mark: str = "") -> str:
    names = axes or ["a"]
    if rng.random() < 0.6:
        return rng.choice(names)
    chosen = rng.sample(names, rng.randint(1, len(names))) if rng.random() < 0.9 else [rng.choice(names)] * 2
    return "(" + ", ".join(a + (mark if rng.random() < 0.15 else "") for a in chosen) + ")"


def _pin(rng: random.Random, dims: list[str], axes: list[str]) -> str:
    terms = []
    for _ in range(rng.randint(0, 4)):
        term = " * ".join(
            rng.choice(dims) + (f"@{_axes(rng, axes)}" if rng.random() < 0.5 else "")
            for _ in range(rng.choice((1, 1, 2)))
        )
        terms.append(term if rng.random() < 0.95 else "...")
    suffix = "".join(f" {rng.choice('+^')}{_axes(rng, axes)}" for _ in range(rng.choice((0, 0, 0, 1, 2))))
    return f"[{', '.join(terms)}]{suffix}"


def _tuples(rng: random.Random, axes: list[str], count: int) -> str:
    return "(" + "".join(_tuple(rng, axes) + ", " for _ in range(count)).rstrip() + ")"


def _tuple(rng: random.Random, axes: list[str]) -> str:
    entries = []
    for _ in range(rng.randint(0, 4)):
        pick = rng.random()
        number = str(rng.choice((1, 1, 2, 2, 4, 8, 3, 6, 0, 10**12)))
        entries.append("_" if pick < 0.2 else _axes(rng, axes) if pick < 0.3 else number)
    return "(" + "".join(f"{e}, " for e in entries).rstrip() + ")"


def _selector(rng: random.Random, values: list[str]) -> str:
    pick = rng.random()
    if pick < 0.7:
        return rng.choice(values)
    parts = [
        rng.choice((*values, "**", "**", "*", "*a*", "fc*", "*_*_*", "weight", "train", "blocks[*]", "blocks[0..2]",
        "x[3]", "b[9..1]"))
        for _ in range(rng.choice((1, 2, 2, 3, 3, 6, 12, 30)))
    ]  # fmt: skip
    return ".".join(parts) if pick < 0.95 else f"{'.'.join(parts)}, {rng.choice(values)}"
