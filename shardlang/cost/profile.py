"""The text of a profile (specs/profile.schema.json) -> `Profile`: the curves that `shardc
calibrate` measured on a device.

Everything is checked: names, kinds, ascending sizes, lengths. `Wrong` says where in the file and
why."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import pairwise
from typing import Any, Final, NoReturn

from shardlang.cost.curves import Curve, Grid, curve
from shardlang.frozen.records import dataclass

FORMAT: Final = 1
# So many points, rows and names at most: a machine has tens of each.
_MOST: Final = 4096
_KINDS: Final = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "send")


class Wrong(Exception):
    """A place in a profile, as `collectives[2].points`, and what is wrong there."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Curves in seconds. device: as the `device` is called; model, driver, torch: of the machine.

    asynchronous: operators are queued and run by themselves, so that a launch costs nothing beside
    a long one. expandable_segments: an option of torch's allocator, which folds/fits.py reads.
    launch, step, meeting: seconds that the emitted program adds to each kernel, to each step and to
    each collective.
    beside: how much slower compute is beside a collective. products: by dtype. attention: by dtype,
    causal, backward: (heads, width, curve over lengths). streams: by operator, "" for any other;
    updates: by kind, over elements; collectives: by kind, members, members a node, over the bytes
    that a rank sends; copies: over bytes; memory: bytes of `context`, `workspace` and the like."""

    device: str
    model: str = ""
    driver: str = ""
    torch: str = ""
    asynchronous: bool = False
    expandable_segments: bool = True
    launch: float = 0.0
    step: float = 0.0
    meeting: float = 0.0
    beside: float = 1.1
    products: Mapping[str, Grid] = field(default_factory=dict)
    attention: Mapping[tuple[str, bool, bool], tuple[tuple[int, int, Curve], ...]] = field(default_factory=dict)
    streams: Mapping[str, Curve] = field(default_factory=dict)
    updates: Mapping[str, Curve] = field(default_factory=dict)
    collectives: Mapping[tuple[str, int, int], Curve] = field(default_factory=dict)
    copies: Curve | None = None
    memory: Mapping[str, float] = field(default_factory=dict)


def read_profile(text: str) -> Profile:
    """The profile that a text is; Wrong where it is none."""
    try:
        found = json.loads(text, parse_constant=_no_number, object_pairs_hook=_once)
    except RecursionError:
        raise Wrong("the file nests too deep") from None
    except ValueError as error:
        raise Wrong(f"no JSON: {error}") from None
    top = _members(found, "the profile", {"format": _any, **dict.fromkeys(_READERS, _any)}, ("format", "device"))
    if top["format"] != FORMAT or isinstance(top["format"], bool):
        raise Wrong(f"`format` is {json.dumps(top['format'])[:40]}, and this shardc reads {FORMAT}")
    return Profile(**{name: _READERS[name](value, name) for name, value in top.items() if name != "format"})


def _no_number(text: str) -> NoReturn:
    raise Wrong(f"{text} is no number that a profile may have")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise Wrong(f"`{next(n for n in names if names.count(n) > 1)[:40]}` is there twice")
    return found


Reader = Callable[[Any, str], Any]


def _any(value: Any, where: str) -> Any:
    return value


def _members(value: Any, where: str, known: Mapping[str, Reader], due: tuple[str, ...]) -> dict[str, Any]:
    """The members of an object, each read; Wrong for one that is unknown or lacking."""
    if not isinstance(value, dict):
        raise Wrong(f"{where} is no object")
    unknown = [name for name in value if name not in known]
    if unknown:
        raise Wrong(f"{where} has `{unknown[0][:40]}`, which no profile has")
    if lacking := [name for name in due if name not in value]:
        raise Wrong(f"{where} has no `{lacking[0]}`")
    inside = "" if where == "the profile" else f"{where}."
    return {name: known[name](each, f"{inside}{name}") for name, each in value.items()}


def _named(read: Reader) -> Reader:
    """Reads an object whose members are all alike."""

    def members(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > _MOST:
            raise Wrong(f"{where} is no object of at most {_MOST} members")
        return {name: read(each, f"{where}.{name[:40]}") for name, each in value.items()}

    return members


def _listed(read: Reader, least: int = 0) -> Reader:
    def items(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= _MOST:
            raise Wrong(f"{where} is no list of {least} to {_MOST}")
        return [read(each, f"{where}[{at}]") for at, each in enumerate(value)]

    return items


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > 200:
        raise Wrong(f"{where} is no text of at most 200 letters")
    return value


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"{where} is neither true nor false")
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise Wrong(f"{where} is no number from 0 on")
    return float(value)


def _above_0(value: Any, where: str) -> float:
    if not _number(value, where):
        raise Wrong(f"{where} is 0")
    return float(value)


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 10**12:
        raise Wrong(f"{where} is no whole number from 1 on")
    return value


def _us(value: Any, where: str) -> float:
    return _number(value, where) / 1e6


def _ascending(read: Reader) -> Reader:
    def sizes(value: Any, where: str) -> list[Any]:
        found: list[Any] = _listed(read, 2)(value, where)
        for at, (one, other) in enumerate(pairwise(found)):
            if one >= other:
                raise Wrong(f"{where}[{at + 1}] is not more than the one before it")
        return found

    return sizes


def _point(value: Any, where: str) -> tuple[float, float]:
    found = _listed(_above_0, 2)(value, where)
    if len(found) != 2:
        raise Wrong(f"{where} is no pair of a size and microseconds")
    return found[0], found[1] / 1e6


def _curve(value: Any, where: str, steepest: float = 1.0) -> Curve:
    points = _listed(_point, 2)(value, where)
    _ascending(_above_0)([x for x, _ in points], where)
    return curve(points, steepest)


def _of_lengths(value: Any, where: str) -> Curve:
    return _curve(value, where, steepest=2.0)


def _grid(value: Any, where: str) -> Grid:
    sizes = _ascending(_count)
    parts = {"m": sizes, "n": sizes, "k": sizes, "us": _listed(_above_0, 8)}
    found = _members(value, where, parts, tuple(parts))
    due = len(found["m"]) * len(found["n"]) * len(found["k"])
    if len(found["us"]) != due:
        raise Wrong(f"{where}.us has {len(found['us'])} numbers, and its sizes make {due}")
    axes = tuple(tuple(map(math.log, found[name])) for name in ("m", "n", "k"))
    return Grid(axes, tuple(math.log(us / 1e6) for us in found["us"]))


def _attention(value: Any, where: str) -> dict[tuple[str, bool, bool], tuple[tuple[int, int, Curve], ...]]:
    parts = {"dtype": _text, "causal": _flag, "backward": _flag, "heads": _count, "width": _count,
             "points": _of_lengths}  # fmt: skip
    rows = _listed(lambda row, at: _members(row, at, parts, tuple(parts)))(value, where)
    found: dict[tuple[str, bool, bool], tuple[tuple[int, int, Curve], ...]] = {}
    for row in rows:
        key = row["dtype"], row["causal"], row["backward"]
        found[key] = (*found.get(key, ()), (row["heads"], row["width"], row["points"]))
    return found


def _collectives(value: Any, where: str) -> dict[tuple[str, int, int], Curve]:
    parts = {"kind": _text, "members": _count, "a_node": _count, "points": _curve}
    rows = _listed(lambda row, at: _members(row, at, parts, tuple(parts)))(value, where)
    for at, row in enumerate(rows):
        if row["kind"] not in _KINDS:
            raise Wrong(f"{where}[{at}].kind is `{row['kind'][:40]}`, and there are {', '.join(_KINDS)}")
    return {(row["kind"], row["members"], row["a_node"]): row["points"] for row in rows}


_READERS: Mapping[str, Reader] = {
    "device": _text, "model": _text, "driver": _text, "torch": _text, "asynchronous": _flag,
    "expandable_segments": _flag, "launch": _us,
    "step": _us, "meeting": _us, "beside": _above_0, "products": _named(_grid), "attention": _attention,
    "streams": _named(_curve), "updates": _named(_curve), "collectives": _collectives,
    "copies": _curve, "memory": _named(_number),
}  # fmt: skip
