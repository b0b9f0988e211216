"""How the tensors of a module start, as modules that its factory made under a few seeds show."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from shardlang.errors import RunError
from shardlang.graph.graph import Init
from shardlang.importing.steps.nodes import Stored

# Those under which the factory is called.
SEEDS = (1, 2, 3)
# What has a smaller chance is not taken for chance.
_RARE = 1e-4
# A Kolmogorov-Smirnov statistic above this, divided by the root of the count, has such a chance.
_REJECTED = 2.2
_DRAWN = 100_000
# An estimate may stand for a number that is so many standard errors away.
_CLOSE = 4
FILE = "`--weights FILE` writes its numbers and starts it as given(), for `init` to read them"


def starts(
    made: Sequence[Mapping[str, Tensor]], used: Iterable[Stored], accepted: frozenset[str], given: bool
) -> dict[Stored, Init]:
    """The start of each used part of a tensor. `made`: the tensors under one seed each. Those whose
    names differ in numbers alone, as in an array of layers, start alike if the tensors beside them
    have the same names and shapes; so do others, where their draws may have the deviation that
    more draws have shown. Fans are those of the whole tensor. given: whether those that no
    distribution has are read from a file. RunError SH608."""
    parts: dict[str, list[Stored]] = {}
    for each in dict.fromkeys(used):
        parts.setdefault(each.name, []).append(each)
    found = {}
    same = _seeded(made, parts)
    known: list[float] = []
    for names in sorted(_groups(made[0], parts), key=lambda names: -len(names) * made[0][names[0]].numel()):
        home, _, last = names[0].rpartition("bias")
        fans = _fans(made[0][names[0]], made[0].get(f"{home}weight") if not last else None, f"{home}weight" in parts)
        for alike in _alike(made, [parts[name] for name in names], fans, known):
            tensors = _drawn(made, alike)
            start = _start(tensors, fans, known)
            if start is None and given:
                trained = same and isinstance(made[0][names[0]], nn.Parameter)
                start = (_distribution(tensors[:1], fans, known) if trained else None) or Init("given")
            if start is None:
                still = all(torch.equal(a, b) for each in tensors for a, b in zip(each, tensors[0], strict=True))
                start = _any(names, [each for row in tensors for each in row], accepted, same, still)
            elif start.kind == "normal" and start.args[0] not in known:
                known.append(start.args[0])
            found.update(dict.fromkeys(alike, start))
    return found


def _groups(tensors: Mapping[str, Tensor], parts: Mapping[str, Sequence[Stored]]) -> Iterable[list[str]]:
    """The names of tensors of which `parts` are used, those together that start alike."""
    beside: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for name, tensor in tensors.items():
        home, _, last = name.rpartition(".")
        beside.setdefault(home, []).append((last, tuple(tensor.shape)))
    groups: dict[tuple[object, ...], list[str]] = {}
    for name, tensor in tensors.items():
        if name in parts:
            cut = [dataclasses.replace(each, name="") for each in parts[name]]
            key = (re.sub(r"\d+", "*", name), *cut, tuple(tensor.shape), *beside[name.rpartition(".")[0]])
            groups.setdefault(key, []).append(name)
    return groups.values()


def _drawn(made: Sequence[Mapping[str, Tensor]], parts: Sequence[Stored]) -> list[list[Tensor]]:
    return [[part.of(each[part.name].detach().double()) for part in parts] for each in made]


def _alike(made: Sequence[Mapping[str, Tensor]], parts: Sequence[Sequence[Stored]], fans: Sequence[Init],
           known: Sequence[float]) -> list[list[Stored]]:  # fmt: skip
    """The parts of tensors that start alike: all of them, if each may start as the whole does."""
    whole = [part for each in parts for part in each]
    places = [list(each) for each in zip(*parts, strict=True)]
    if len(places) == 1:
        return [whole]
    start = _start(_drawn(made, whole), fans, known)
    return [whole] if start is not None and all(_stands(start, _drawn(made, each)) for each in places) else places


def _stands(start: Init, made: Sequence[Sequence[Tensor]]) -> bool:
    """Whether tensors may start so."""
    return _constant(made) == start if _still(made) else _fits(_sorted(made), start)


def _start(made: Sequence[Sequence[Tensor]], fans: Sequence[Init], known: Sequence[float]) -> Init | None:
    """The start of tensors that start alike; fans: as of `_fans`. known: deviations of other
    tensors, which have more numbers."""
    return _constant(made) if _still(made) else _distribution(made, fans, known)


def _still(made: Sequence[Sequence[Tensor]]) -> bool:
    """Whether all seeds give the same."""
    return all(torch.equal(a, b) for each in made[1:] for a, b in zip(made[0], each, strict=True))


def _constant(made: Sequence[Sequence[Tensor]]) -> Init | None:
    """The start of tensors that have one number, if they do."""
    first = made[0][0]
    value = float(first.flatten()[0]) if first.numel() else 0.0
    if not all(bool((tensor == value).all()) for tensor in made[0]):
        return None
    return Init("zeros") if value == 0 else Init("ones") if value == 1 else Init("constant", (value,))


def _distribution(made: Sequence[Sequence[Tensor]], fans: Sequence[Init], known: Sequence[float]) -> Init | None:
    """The distribution that tensors are drawn from, as of `_start`."""
    drawn = _sorted(made)
    return next((start for start in _candidates(drawn, fans, known) if _fits(drawn, start)), None)


def _sorted(made: Sequence[Sequence[Tensor]]) -> Tensor:
    """Numbers of tensors. Copies of a layer say no more than it does."""
    tensors = [tensor for each in made for at, tensor in enumerate(each)
               if not any(torch.equal(tensor, other) for other in each[:at])]  # fmt: skip
    return torch.cat([tensor.flatten() for tensor in tensors])[:_DRAWN].sort().values


def _fans(tensor: Tensor, weight: Tensor | None, used: bool) -> list[Init]:
    """The distributions by fans that a tensor may have; `weight`: of a bias, the weight beside it,
    and whether the program has that under its name."""
    found = []
    if tensor.dim() >= 2:
        fan_in = math.prod(tensor.shape[1:])
        fan_out = tensor.shape[0] * math.prod(tensor.shape[2:])
        found += [Init("kaiming_uniform", (fan_in,)), Init("xavier_uniform", (fan_in, fan_out))]
    if weight is not None and weight.dim() >= 2:
        start = Init("fan_uniform", (math.prod(weight.shape[1:]),))
        found.append(start if used else Init("uniform", (-limit_of(start), limit_of(start))))
    return found


def _candidates(drawn: Tensor, fans: Sequence[Init], known: Sequence[float]) -> list[Init]:
    """The distributions that the draws may have, first those that a layer of torch has."""
    bound, std = float(drawn.abs().max()), float(drawn.square().mean().sqrt())
    error = std / math.sqrt(2 * len(drawn))
    near = [each for each in known if abs(each - std) <= _CLOSE * error]
    normal = [Init("normal", (each,)) for each in [*near, _plain(std, error)]]
    limit = _plain_above(bound, 3 * bound / len(drawn))
    uniform = Init("uniform", (-limit, limit))
    # So many normal numbers would reach further.
    short = std > 0 and math.erf(bound / std / math.sqrt(2)) ** len(drawn) < _RARE
    return [*fans, uniform, *normal] if short else [*fans, *normal, uniform]


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
    if value.numel() > 1 and bool((value == value.flatten()[0]).all()):
        return False
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


def _seeded(made: Sequence[Mapping[str, Tensor]], used: Collection[str]) -> bool:
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
        help = f"take `torch.manual_seed` out of it, as the start shows only in what is drawn anew; {FILE}; "
        raise RunError("SH608", fact, help=f"{help}or `--accept SH608`, which starts it as normal({std:g})")
    if "SH608" not in accepted:
        what = "values that no distribution of the language has"
        if still:
            what = "numbers that are the same under three seeds, which no start of the language has"
        help = f"{FILE}; or `--accept SH608`, which starts it as normal({std:g}), of the same deviation"
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
