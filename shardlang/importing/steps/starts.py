"""How the tensors of a module start, as modules that its factory made under a few seeds show."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.graph.graph import Init

# Those under which the factory is called.
SEEDS = (1, 2, 3)
# A Kolmogorov-Smirnov statistic above this, divided by the root of the count, has a chance below
# one in ten thousand.
_REJECTED = 2.2
_DRAWN = 100_000
# An estimate may stand for a number that is so many standard errors away.
_CLOSE = 4


def starts(made: Sequence[Mapping[str, Tensor]], used: set[str], accepted: frozenset[str]) -> dict[str, Init]:
    """The start of each used tensor, by its name. `made`: the tensors under one seed each. Those
    whose names differ in numbers alone, as in an array of layers, start alike if the tensors beside
    them have the same names and shapes; so do others, where their draws may have the deviation that
    more draws have shown. RunError SH608."""
    beside: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, tensor in made[0].items():
        home, _, last = name.rpartition(".")
        beside.setdefault(home, []).append((last, tuple(tensor.shape)))
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in made[0].items():
        if name in used:
            key = (re.sub(r"\d+", "*", name), tuple(tensor.shape), *beside[name.rpartition(".")[0]])
            groups.setdefault(key, []).append(name)
    found = {}
    same = _seeded(made, used)
    known: list[float] = []
    for names in sorted(groups.values(), key=lambda names: -len(names) * made[0][names[0]].numel()):
        home, _, last = names[0].rpartition("bias")
        weight = made[0].get(f"{home}weight") if not last else None
        start = _alike([[each[name].detach().double() for name in names] for each in made], weight, known)
        if start is None:
            drawn = [each[name].detach().double() for each in made for name in names]
            still = all(torch.equal(each[name], made[0][name]) for each in made for name in names)
            start = _any(names, drawn, accepted, same, still)
        elif start.kind == "normal" and start.args[0] not in known:
            known.append(start.args[0])
        found.update(dict.fromkeys(names, start))
    return found


def _alike(made: Sequence[Sequence[Tensor]], weight: Tensor | None, known: Sequence[float]) -> Init | None:
    """The start of tensors that start alike; `weight`: of a bias, the weight beside it. known:
    deviations of other tensors, which have more numbers."""
    first = made[0][0]
    if all(torch.equal(a, b) for each in made[1:] for a, b in zip(made[0], each, strict=True)):
        value = float(first.flatten()[0]) if first.numel() else 0.0
        if not all(bool((tensor == value).all()) for tensor in made[0]):
            return None
        return Init("zeros") if value == 0 else Init("ones") if value == 1 else Init("constant", (value,))
    # Copies of a layer say no more than it does.
    tensors = [tensor for each in made for at, tensor in enumerate(each)
               if not any(torch.equal(tensor, other) for other in each[:at])]  # fmt: skip
    drawn = torch.cat([tensor.flatten() for tensor in tensors])[:_DRAWN].sort().values
    return next((start for start in _candidates(drawn, first, weight, known) if _fits(drawn, start)), None)


def _candidates(drawn: Tensor, first: Tensor, weight: Tensor | None, known: Sequence[float]) -> list[Init]:
    """The distributions that the draws may have, first those that a layer of torch has."""
    bound, std = float(drawn.abs().max()), float(drawn.square().mean().sqrt())
    found = []
    if first.dim() >= 2:
        fan_in = math.prod(first.shape[1:])
        fan_out = first.shape[0] * math.prod(first.shape[2:])
        found += [Init("kaiming_uniform", (fan_in,)), Init("xavier_uniform", (fan_in, fan_out))]
    if weight is not None and weight.dim() >= 2:
        found.append(Init("fan_uniform", (math.prod(weight.shape[1:]),)))
    error = std / math.sqrt(2 * len(drawn))
    near = [each for each in known if abs(each - std) <= _CLOSE * error]
    found += [Init("normal", (each,)) for each in [*near, _plain(std, error)]]
    limit = _plain_above(bound, 3 * bound / len(drawn))
    return [*found, Init("uniform", (-limit, limit))]


def _plain(value: float, error: float) -> float:
    """The shortest number that an estimate may stand for."""
    for digits in range(1, 8):
        near = float(f"{value:.{digits}g}")
        if abs(near - value) <= _CLOSE * error:
            return near
    return value


def _plain_above(value: float, error: float) -> float:
    """The shortest number from `value` on, which is the largest draw, that may be the limit."""
    for digits in range(1, 8):
        near = float(f"{value:.{digits - 1}e}")
        if near < value:
            near = float(f"{value * (1 + 0.5 * 10 ** (1 - digits)):.{digits - 1}e}")
        if value <= near <= value + _CLOSE * error:
            return near
    return value


def limit_of(start: Init) -> float:
    """The bound of a uniform distribution."""
    if start.kind in ("kaiming_uniform", "fan_uniform"):
        return float(start.args[0] ** -0.5)
    if start.kind == "xavier_uniform":
        return math.sqrt(6 / sum(start.args))
    return start.args[1]


def is_uniform(value: Tensor, limit: float) -> bool:
    """Whether numbers may be drawn uniformly from -limit to limit."""
    drawn = value.detach().double().flatten().sort().values
    return _fits(drawn, Init("uniform", (-limit, limit)))


def _fits(drawn: Tensor, start: Init) -> bool:
    """The test of Kolmogorov and Smirnov: whether the draws may have the distribution."""
    if start.kind == "normal":
        below = torch.special.ndtr(drawn / start.args[0])
    else:
        limit = limit_of(start)
        if float(drawn.abs().max()) > limit * (1 + 1e-6):
            return False
        below = (drawn / limit + 1) / 2
    count = len(drawn)
    steps = torch.arange(count, dtype=drawn.dtype)
    furthest = torch.maximum((below - steps / count).abs(), (below - (steps + 1) / count).abs()).max()
    return float(furthest) * math.sqrt(count) < _REJECTED


def _seeded(made: Sequence[Mapping[str, Tensor]], used: set[str]) -> bool:
    """Whether the factory has set a seed of its own, and no tensor is drawn anew."""
    first = {name: made[0][name] for name in used if made[0][name].numel() > 1}
    drawn = [name for name, each in first.items() if bool((each != each.flatten()[0]).any())]
    again = all(torch.equal(made[0][name], each[name]) for name in drawn for each in made[1:])
    return torch.initial_seed() != SEEDS[-1] and bool(drawn) and again


def _any(names: Sequence[str], drawn: Sequence[Tensor], accepted: frozenset[str], seeded: bool, still: bool) -> Init:
    """A normal distribution of the same deviation, if that is accepted. drawn: the tensors of
    these names under one seed after the other. seeded, still: whether all that is drawn, or these
    tensors, are the same under each seed."""
    std = _deviation(drawn, len(names), seeded)
    if seeded and "SH608" not in accepted:
        fact = f"`{names[0]}` and all others are the same under three seeds: the function sets a seed of its own"
        help = "take `torch.manual_seed` out of it, as the start shows only in what is drawn anew; "
        raise RunError("SH608", fact, help=f"{help}or `--accept SH608`, which starts it as normal({std:g})")
    if "SH608" not in accepted:
        what = "values that no distribution of the language has"
        if still:
            what = "numbers that are the same under three seeds, which no start of the language has"
        help = f"`--accept SH608` starts it as normal({std:g}), which has the same deviation"
        help += "; write its numbers by `--weights` and read them by `init`" if still else ""
        raise RunError("SH608", f"`{names[0]}` starts from {what}", help=help)
    return Init("normal", (std,))


def _deviation(drawn: Sequence[Tensor], each: int, seeded: bool) -> float:
    """The deviation of tensors, `each` of them under one seed, to three digits. Where they are
    drawn, it is an estimate, and fewer digits may stand for it."""
    distinct = [tensor for at, tensor in enumerate(drawn) if not any(torch.equal(tensor, o) for o in drawn[:at])]
    numbers = torch.cat([tensor.flatten() for tensor in distinct])
    std = float(numbers.square().mean().sqrt())
    anew = any(not torch.equal(one, other) for one, other in zip(drawn, drawn[each:], strict=False))
    return float(f"{_plain(std, std / math.sqrt(2 * len(numbers))) if seeded or anew else std:.3g}")
