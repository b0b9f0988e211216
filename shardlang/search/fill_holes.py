"""A strategy with holes and a point -> the strategy without holes, as a syntax tree."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardlang.paths.runs import in_runs
from shardlang.plan.strategy.holes import is_hole
from shardlang.search import print_rules
from shardlang.search.print_rules import either, rule
from shardlang.search.space import Open, Point, covers, stage_count
from shardlang.syntax import ast

_WORD = re.compile(r"\w+")


def filled(of: Open, point: Point, title: str) -> ast.Strategy:
    """The strategy of a point; axes of one rank that no rule names are left out of the mesh."""
    rules = [new for old in of.strategy.rules for new in _Filling(of, point).rule(old)]
    rules += print_rules.pins(point.pins)
    named = {word for each in rules for word in _WORD.findall(each.span.text) if not isinstance(each, ast.Mesh)}
    sizes = [(axis, size) for axis, size in point.sizes if size > 1 or axis in named]
    mesh = [rule(f"mesh {', '.join(f'{axis} = {size}' for axis, size in sizes)}")] if sizes else []
    return print_rules.strategy(title, [*mesh, *(each for each in rules if not isinstance(each, ast.Mesh))])


class _Filling:
    """Each rule as a point has it."""

    def __init__(self, of: Open, point: Point) -> None:
        self.of, self.point = of, point
        self.staged = stage_count(of, dict(point.sizes)) > 1

    def rule(self, of: ast.Rule) -> list[ast.Rule]:
        """The rules that stand for one of the strategy."""
        if isinstance(of, ast.At):
            return self._at(of)
        narrow = self._narrow(of)
        if narrow is not None:
            paths, inner = narrow
            return [print_rules.at(in_runs(paths), inner)] if paths else []
        return self._alone(of, 0)

    def _narrow(self, of: ast.Rule) -> tuple[Sequence[str], str] | None:
        """The layers or tables that an open rule is for, and the rule of these."""
        match of:
            case ast.Recompute() if is_hole(of):
                return self.point.layers, f"recompute {self.point.again}".rstrip()
            case ast.Place() if is_hole(of):
                return self.point.hosted, "place on host"
            case _:
                return None

    def _alone(self, of: ast.Rule, at: int) -> list[ast.Rule]:
        """The same under `at` or without, where neither layers nor tables are to be named."""
        if not is_hole(of):
            return [of]
        if isinstance(of, ast.Split):
            return self._splits(of, at)
        text = self._text(of)
        return [rule(text)] if text else []

    def _text(self, of: ast.Rule) -> str:
        """The text that stands in the place of an open rule; "" for what is so without one."""
        point = self.point
        match of:
            case ast.Stages() if self.staged or not self.of.hole(ast.Schedule):
                virtual = f", virtual = {point.virtual}" if point.virtual > 1 else ""
                return f"stages over {of.axis.text} balanced{virtual}"
            case ast.Microbatches() if point.microbatches > 1:
                return f"microbatches {point.microbatches}"
            case ast.Schedule() if point.schedule:
                return f'schedule "{point.schedule}"'
            case ast.Zero():
                level, keep = point.zero[[id(each) for each in self.of.zeros].index(id(of))]
                sizes = dict(point.sizes)
                axes = [axis.text for axis in of.axes if sizes.get(axis.text, 1) > 1]
                return f"zero {level} over {either(axes)}{', keep' * keep}" if level else ""
            case ast.Bucket() if point.bucket not in (0, 25):
                return f"bucket gradients {point.bucket}MB"
            case _:
                return ""

    def _splits(self, of: ast.Split, at: int) -> list[ast.Rule]:
        """The dims of equal axes in one rule, where the first of the open rules stands."""
        beside = self.of.ats[at - 1].rules if at else self.of.strategy.rules
        if of is not next(each for each in beside if isinstance(each, ast.Split) and is_hole(each)):
            return []
        by_uses: dict[tuple[tuple[str, bool], ...], list[str]] = {}
        for _, dim, uses in (split for split in self.point.splits if split[0] == at):
            by_uses.setdefault(uses, []).append(dim)
        return [print_rules.split(dims, uses, of.uneven) for uses, dims in by_uses.items()]

    def _at(self, at: ast.At) -> list[ast.Rule]:
        """The rules under `at`, without those that a point leaves out."""
        if not any(map(is_hole, at.rules)):
            return [at]
        number = 1 + [id(each) for each in self.of.ats].index(id(at))
        inner = [new for each in at.rules for new in self._alone(each, number)]
        found: list[ast.Rule] = [print_rules.at_selectors(at.selectors, inner)] if inner else []
        for paths, text in filter(None, map(self._narrow, at.rules)):
            mine = [path for path in paths if covers(at, path)]
            found += [print_rules.at(in_runs(mine), text)] if mine else []
        return found
