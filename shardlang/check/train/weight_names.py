"""A name map, the text of a file -> which tensor of a file of weights each parameter starts from.

Reads the lines and holds them against the program's parameters and states. Reading weights is left
to the runtime."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardlang.check.context import Context, Frame
from shardlang.check.program import NameMap, NameRule
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.overwrite_guard import MODEL_MARK
from shardlang.graph.graph import Graph
from shardlang.graph.places import PathIndex
from shardlang.hints.nearest import offer
from shardlang.paths.patterns import SingleLayers
from shardlang.paths.stars import DELIMITER, pattern
from shardlang.sources.files import folder_of
from shardlang.sources.source import Source, Span

Setting = tuple[str, Mapping[str, Any]] | None

_RULE = re.compile(
    r"(?P<ours>[^\s=?]+)(?P<maybe>\?)?\s*=\s*(?P<theirs>[^\s=]+)(?P<transposed>\s+transposed)?"
    r"(?:\s+part\s+(?P<part>\d+)\s+of\s+(?P<parts>\d+))?"
)
_WORD = re.compile(r"(?P<word>prefix|ignore)\s+(?P<theirs>[^\s=]+)|tied\s+(?P<tied>[^\s=]+)\s*=\s*(?P<to>[^\s=]+)")
_STARS = 2
_HELP = (
    "write `our.weight = their.weight`, then `transposed` or `part 1 of 3`; or `ignore NAME`, `prefix NAME`, "
    "`tied NAME = OTHER`"
)


def read_names(source: Source, context: Context) -> NameMap | None:
    """The map that a file holds; None after a report."""
    rules: list[NameRule] = []
    ignored: list[str] = []
    tied: list[tuple[str, str]] = []
    prefix = ""
    before = len(context.sink.found)
    for line, span in _lines(source):
        word, rule = _WORD.fullmatch(line), _RULE.fullmatch(line)
        if word is not None and word["word"] == "prefix":
            prefix = word["theirs"]
        elif word is not None and word["tied"] is not None:
            if _stars(word["tied"], word["to"], span, context.sink):
                tied.append((word["tied"], word["to"]))
        elif rule is not None:
            rules.extend(_rule(rule, span, context.sink))
        elif word is not None and _few(word["theirs"], span, context.sink):
            ignored.append(word["theirs"])
        elif word is None:
            context.sink.report("SH240", f"`{line}` is no line of a name map", span, "", help=_HELP)
    if len(context.sink.found) > before:
        return None
    return NameMap(tuple(rules), prefix, (*ignored, *(name for name, _ in tied)), tuple(tied))


def _lines(source: Source) -> list[tuple[str, Span]]:
    """The lines of a map, comments and empty lines left out."""
    found, at = [], 0
    for line in source.text.split("\n"):
        text = line.partition("#")[0].strip()
        if text:
            start = at + line.index(text)
            found.append((text, Span(source, start, start + len(text))))
        at += len(line) + 1
    return found


def _rule(match: re.Match[str], span: Span, sink: Sink) -> list[NameRule]:
    """The rule of a line; none after a report."""
    ours, theirs = match["ours"], match["theirs"]
    part = (int(match["part"]), int(match["parts"])) if match["part"] else None
    if not _stars(ours, theirs, span, sink):
        return []
    if part is not None and not 1 <= part[0] <= part[1]:
        sink.report("SH240", f"there is no part {part[0]} of {part[1]}", span, "", help="parts are counted from 1")
        return []
    return [NameRule(ours, theirs, match["maybe"] is not None, match["transposed"] is not None, part, span)]


def _stars(left: str, right: str, span: Span, sink: Sink) -> bool:
    """Whether both sides of a line have as many stars; else it is reported."""
    if left.count("*") == right.count("*"):
        return _few(left, span, sink) and _few(right, span, sink)
    sink.report(
        "SH240", f"`{left}` has {left.count('*')} `*`, and `{right}` {right.count('*')}", span, "",
        help="each `*` on the left stands for an index, and the one in the same place on the right for the same",
    )  # fmt: skip
    return False


def _few(name: str, span: Span, sink: Sink) -> bool:
    """Whether no part of a name has more stars than can be tried; else it is reported."""
    most = max(part.count("*") for part in DELIMITER.split(name))
    if most > _STARS:
        fact = f"a part of `{name}` has {most} `*`, and at most {_STARS} can be there between dots or brackets"
        sink.report("SH240", fact, span, "", help="one `*` stands for all of a part")
    return most <= _STARS


def fitted(init: Setting, graph: Graph, span: Span, frame: Frame) -> Setting:
    """`init`, its name map checked with the program; lines it lacks become ignored names."""
    names = init[1].get("names") if init is not None else None
    if init is None or names is None:
        return init
    values = [graph.values[v] for v in (*graph.params, *graph.states)]
    due = {each.path: len(each.type.shape) for each in values}
    if graph.in_runs:  # a line may be of one layer
        raise SingleLayers
    places, covered = PathIndex(due), list[list[str]]()
    for rule in names.rules:
        covered.append(_covered(rule.ours, places))
        if places.too_many(rule.span, frame.context.sink):
            return init
    _check(names, due, covered, span, frame.context.sink)
    used = tuple(rule for rule, mine in zip(names.rules, covered, strict=True) if mine)
    rest = tuple(rule.theirs for rule, mine in zip(names.rules, covered, strict=True) if not mine)
    return init[0], {**init[1], "names": replace(names, rules=used, ignored=(*names.ignored, *rest))}


def require_filled(init: Setting, graph: Graph, train: Span, sink: Sink) -> None:
    """SH226 where parameters or states are `given`, and no `init` gives them."""
    values = [graph.values[v] for v in (*graph.params, *graph.states)]
    due = [value for value in values if value.init is not None and value.init.kind == "given"]
    if due and init is None:
        sink.report(
            "SH226", f"nothing gives {_some([value.path for value in due])}: `train` has no `init`", due[0].span,
            "given, so a file has its numbers", labels=[(train, "add `init` here")],
            help=f"write `init = safetensors({_file_of(due[0].span, train)})`, or let it start from a "
            "distribution, as `normal(0.02)`",
        )  # fmt: skip


def _file_of(given: Span, train: Span) -> str:
    """The weights of what is given, as `train` may name them: beside the program that `shardc
    import` wrote, which says so, with its name map."""
    if not given.source.text.startswith(MODEL_MARK):
        return '"weights.safetensors"'
    home = folder_of(given.source.name) / Path(given.source.name).stem
    path = Path(os.path.relpath(home, folder_of(train.source.name))).as_posix()
    return f'"{path}.safetensors", names = "{path}.map"'


def _some(paths: Sequence[str]) -> str:
    """The first of some paths, and how many more."""
    return ", ".join(f"`{path}`" for path in paths[:5]) + (f" and {len(paths) - 5} more" if paths[5:] else "")


def _covered(ours: str, due: PathIndex) -> list[str]:
    """The paths that a name stands for."""
    if "*" not in ours:
        return [ours] if ours in due.order else []
    near = due.near(ours, lambda name: pattern(name).fullmatch)
    matches = pattern(ours).fullmatch if near else None
    return [path for path in near if matches is not None and matches(path)]


def _check(names: NameMap, due: Mapping[str, int], covered: Sequence[Sequence[str]], span: Span, sink: Sink) -> None:
    """Every parameter and state has one line; every line (but those with `?`) has one of them, and
    transposes two dims or more. due: how many dims each has. covered: of each line those that it
    stands for."""
    owner: dict[str, NameRule] = {}
    for rule, mine in zip(names.rules, covered, strict=True):
        if not mine and not rule.maybe:
            _report_nothing(rule, due, sink)
        if mine and rule.transposed and all(due[path] < 2 for path in mine):
            fact = f"`{rule.ours}` has fewer than two dims, and `transposed` exchanges two"
            sink.report("SH240", fact, rule.span, help="leave `transposed` out")
        again = next((path for path in mine if path in owner), None)
        if again is not None:
            sink.report(
                "SH240", f"two lines of the name map are for `{again}`", rule.span, "one line",
                labels=[(owner[again].span, "the other")], help="keep one of them",
            )  # fmt: skip
        owner.update(dict.fromkeys(mine, rule))
    missing = [path for path in due if path not in owner]
    if missing:
        sink.report(
            "SH240", f"the name map has no line for {_some(missing)}", span, "",
            help=f"add one, with the name that the file has: `{missing[0]} = ...`",
        )  # fmt: skip


def _report_nothing(rule: NameRule, due: Mapping[str, int], sink: Sink) -> None:
    def help() -> str:
        lacking = f"`{rule.ours}? = ...` lets the program lack it"
        return offer(rule.ours, {re.sub(r"\[\d+\]", "[*]", path) for path in due}, lacking)

    sink.report("SH240", f"the program has no parameter `{rule.ours}`", rule.span, help=help)
