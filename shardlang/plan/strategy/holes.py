"""The holes of a strategy: the places where it says `auto`, and a search has to find what is best
there.

SH325 keeps such a strategy from being planned; the search is search/'s."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Span
from shardlang.syntax import ast

# Places of holes that are underlined.
MOST_SHOWN = 20


def holes(strategy: ast.Strategy, overrides: Mapping[str, int]) -> list[Span]:
    """The places of a strategy that are open. One axis that is `auto` takes the ranks that are
    left: it is no hole. overrides: sizes of axes that are set from outside, 0 for `auto`."""
    found = [rule.span for rule in narrowed(strategy) if is_hole(rule)]
    meshes = (axis for rule in strategy.rules if isinstance(rule, ast.Mesh) for axis in rule.axes)
    autos = [axis.span for axis in meshes if overrides.get(axis.name.text, axis.size or 0) == 0]
    return [*(autos if len(autos) > 1 else []), *found]


def narrowed(strategy: ast.Strategy) -> Iterator[ast.Rule]:
    """The rules of a strategy, and those of its `at`."""
    for rule in strategy.rules:
        yield from rule.rules if isinstance(rule, ast.At) else (rule,)


def is_hole(rule: ast.Rule) -> bool:
    """Whether a rule says `auto`."""
    match rule:
        case ast.Split():
            return not rule.dims
        case ast.Stages():
            return rule.auto
        case ast.Microbatches():
            return rule.count is None
        case ast.Schedule():
            return rule.name is None
        case ast.Zero():
            return rule.level is None
        case ast.Bucket():
            return rule.size is None
        case ast.Recompute():
            return rule.what is None
        case ast.Place():
            return rule.where is None
        case _:
            return False


def report_holes(strategy: ast.Strategy, open: list[Span], ranks: int, sink: Sink) -> None:
    """SH325 for a strategy that is to be planned."""
    name, file = strategy.name.text, strategy.span.source.name
    many = "1 thing" if len(open) == 1 else f"{len(open)} things"
    sink.report(
        "SH325", f"strategy `{name}` leaves {many} open, and only a whole strategy can be planned", open[0], "open",
        labels=[(span, "") for span in open[1:MOST_SHOWN]],
        help=f"run `shardc tune {file} --ranks {ranks} --strategy {name}`, which finds what is best there",
    )  # fmt: skip
