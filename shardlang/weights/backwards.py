"""A name map, read backwards: which of our tensors, joined in which order, fill each of theirs.

Reports SH609 wherever the map does not say that of all of ours and of all of theirs exactly
once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial

from shardlang.check.program import NameMap, NameRule
from shardlang.checkpoints.index import Saved
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.hints.nearest import offer
from shardlang.paths.stars import pattern, renamed
from shardlang.weights.elements import FLOATS, convertible

# What helps where the two are of different models.
_SAME = "take the weights, the map and the folder of one and the same model"
# A shape that is not known.
UNKNOWN = (-1,)


@dataclass(frozen=True)
class Slice:
    """Our tensor `ours` is from `first` to `last` of the first dim of theirs, after transposing."""

    ours: str
    first: Fraction
    last: Fraction
    rule: NameRule


@dataclass(frozen=True)
class Filling:
    """The pieces of one of their tensors, in order. type: what it is to be."""

    pieces: tuple[Slice, ...]
    transposed: bool
    type: Saved


@dataclass(frozen=True)
class Backwards:
    """The fillings of their tensors, all by name. tied: names that are another's tensor once more;
    kept: those that the map ignores."""

    filled: Mapping[str, Filling]
    tied: Mapping[str, str]
    kept: Sequence[str]


def backwards(
    names: NameMap, ours: Mapping[str, Saved], theirs: Mapping[str, Saved | None], sink: Sink, dtype: str = ""
) -> Backwards:
    """The way from ours to theirs, by name. theirs: None for one whose type is not known; then it
    has the shape of ours, and floating-point numbers are of `dtype` if that is given. Right only
    where nothing is reported."""
    types = {name: each or Saved(dtype, UNKNOWN) for name, each in theirs.items()}
    full = {name.removeprefix(names.prefix): name for name in theirs}
    pieces: dict[str, list[Slice]] = {}
    rules = _rules(ours, names, sink)
    if not rules:
        return Backwards({}, {}, [])
    for path, rule in rules.items():
        name = renamed(path, rule.ours, rule.theirs)
        assert name is not None
        if name not in full:
            help = partial(offer, name, full, _SAME)
            sink.report("SH609", f"`{path}` is `{name}`, which the other model does not have", rule.span, help=help)
            continue
        i, n = rule.part or (1, 1)
        pieces.setdefault(full[name], []).append(Slice(path, Fraction(i - 1, n), Fraction(i, n), rule))
    _require_used(names, ours, sink)
    filled = {name: found for name, each in pieces.items() if (found := _filling(name, each, ours, types[name], sink))}
    tied, kept = _rest([name for name in theirs if name not in pieces], names, full, sink)
    for name, to in tied.items():
        again = _typed(name, filled[to].pieces, ours, types[name], sink) if to in filled else None
        filled.update({name: again} if again is not None else {})
    return Backwards(filled, tied, kept)


def their_names(names: NameMap, ours: Iterable[str]) -> list[str]:
    """The names of theirs that a map fills, without its prefix, tied ones included."""
    found = [renamed(path, rule.ours, rule.theirs) for path in ours for rule in names.rules]
    known = [name for name in dict.fromkeys(found) if name is not None]
    tied = [renamed(name, right, left) for name in known for left, right in names.tied]
    return list(dict.fromkeys([*known, *(name for name in tied if name is not None)]))


def _rules(ours: Iterable[str], names: NameMap, sink: Sink) -> dict[str, NameRule]:
    """The one line for each tensor of ours; without those for which there is another number."""
    found: dict[str, NameRule] = {}
    without = []
    for path in ours:
        rules = [rule for rule in names.rules if pattern(rule.ours).fullmatch(path)]
        if len(rules) == 1:
            found[path] = rules[0]
        elif rules:
            sink.report(
                "SH609", f"two lines of the map are for `{path}`", rules[1].span, "one line",
                labels=[(rules[0].span, "the other")], help="keep one of them",
            )  # fmt: skip
        else:
            without.append(path)
    if without:
        line = f"with its name in the other model: `{without[0]} = ...`"
        help = f"add one, {line}" if found else f"it is the map of another model: write one, each line {line}"
        sink.report("SH609", f"the map has no line for {_some(without)} of the weights", None, help=help)
    return found


def _some(names: Sequence[str]) -> str:
    """The first of some names, and how many more."""
    return ", ".join(f"`{name}`" for name in names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")


def _require_used(names: NameMap, ours: Mapping[str, Saved], sink: Sink) -> None:
    """Reports lines that are for none of ours: each that is misspelt, and all others as one."""
    due = {re.sub(r"\[\d+\]", "[*]", path) for path in ours}
    rest = []
    for rule in names.rules:
        covered = [shape for path, shape in ours.items() if pattern(rule.ours).fullmatch(path)]
        if covered and rule.transposed and all(len(each.shape) < 2 for each in covered):
            fact = f"`{rule.ours}` has fewer than two dims, and `transposed` exchanges two"
            sink.report("SH609", fact, rule.span, help="leave `transposed` out")
        if covered or rule.maybe:
            continue
        if near := offer(rule.ours, due):
            sink.report("SH609", f"the weights have no `{rule.ours}`", rule.span, help=near)
        else:
            rest.append(rule)
    if rest:
        span = rest[0].span
        help = _SAME if span.source.library else f"`{rest[0].ours}? = ...` lets them lack it"
        sink.report("SH609", f"the weights have no {_some([rule.ours for rule in rest])}", span, help=help)


def _filling(name: str, pieces: list[Slice], ours: Mapping[str, Saved], type: Saved, sink: Sink) -> Filling | None:
    """The filling of one of theirs; None after a report."""
    pieces.sort(key=lambda piece: piece.first)
    rules, at = pieces[0].rule, Fraction(0)
    for piece in pieces:
        if piece.first < at or piece.rule.transposed != rules.transposed:
            help = "each part of a tensor is filled once: give each line a part of its own, all transposed or none"
            before = pieces[pieces.index(piece) - 1]
            sink.report(
                "SH609", f"`{before.ours}` and `{piece.ours}` would both fill the same of `{name}`", piece.rule.span,
                labels=[(before.rule.span, "the other")], help=help,
            )  # fmt: skip
            return None
        if piece.first > at:
            break
        at = piece.last
    if at != 1:
        last = pieces[-1].rule
        fact = f"no line fills `{name}` from {at} of it on" if at else f"no line fills the beginning of `{name}`"
        sink.report("SH609", fact, last.span, help="add a line for each of its parts")
        return None
    return _typed(name, tuple(pieces), ours, type, sink)


def _typed(name: str, pieces: tuple[Slice, ...], ours: Mapping[str, Saved], type: Saved, sink: Sink) -> Filling | None:
    """The filling, where the shapes and types of its pieces fit; None after a report."""
    transposed, first = pieces[0].rule.transposed, ours[pieces[0].ours]
    if type.shape == UNKNOWN:
        whole = (sum(ours[piece.ours].shape[0] for piece in pieces), *first.shape[1:]) if first.shape else ()
        dtype = type.dtype if type.dtype and first.dtype in FLOATS else first.dtype
        type = Saved(dtype, whole[::-1] if transposed else whole)
    whole = type.shape[::-1] if transposed else type.shape
    for piece in pieces:
        mine, share = ours[piece.ours], piece.last - piece.first
        due = whole if share == 1 or not whole else (whole[0] * share, *whole[1:])
        if mine.shape != due:
            part = f", of which this is {share}" if share != 1 else ""
            fact = f"`{piece.ours}` is {list(mine.shape)}, and `{name}` {list(type.shape)}{' transposed' * transposed}"
            sink.report("SH609", f"{fact}{part}", piece.rule.span, help=_SAME)
            return None
        if not convertible(mine.dtype, type.dtype):
            fact = f"`{piece.ours}` is {mine.dtype.lower()}, which does not become {type.dtype.lower()}, as `{name}` is"
            sink.report("SH609", fact, piece.rule.span, help=_SAME)
            return None
    return Filling(pieces, transposed, type)


def _rest(rest: Sequence[str], names: NameMap, full: Mapping[str, str], sink: Sink) -> tuple[dict[str, str], list[str]]:
    """Those of theirs that no line fills: tied to others, or ignored."""
    tied, kept, empty = {}, [], []
    spare = [*names.ignored, *(rule.theirs for rule in names.rules if rule.maybe)]
    for name in rest:
        short = name.removeprefix(names.prefix)
        others = (renamed(short, left, right) for left, right in names.tied)
        to = next((other for other in others if other is not None), None)
        if to is not None and to in full and full[to] not in rest:
            tied[name] = full[to]
        elif any(pattern(text).fullmatch(short) for text in spare):
            kept.append(name)
        else:
            empty.append(name)
    if empty:
        short = empty[0].removeprefix(names.prefix)
        help = f"add a line, `... = {short}`; or `tied {short} = OTHER`, if it is another tensor once more"
        sink.report("SH609", f"no line of the map fills {_some(empty)} of the other model", None, help=help)
    return tied, kept
