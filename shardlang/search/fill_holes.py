"""A strategy with holes and a point -> the strategy without holes, as a syntax tree."""

from __future__ import annotations

from collections.abc import Iterator

from shardlang.paths.runs import in_runs
from shardlang.plan.strategy.holes import is_hole
from shardlang.search import print_rules
from shardlang.search.space import Open, Point, covers, stage_count
from shardlang.syntax import ast


def filled(of: Open, point: Point, title: str) -> ast.Strategy:
    """The strategy of a point; axes of one rank that no rule names are left out of the mesh."""
    rules = [new for rule in of.strategy.rules for new in _Filling(of, point).rule(rule)]
    rules += print_rules.pins(point.pins)
    named = {axis for rule in rules for axis in _axes(rule)}
    sizes = [(axis, size) for axis, size in point.sizes if size > 1 or axis in named]
    mesh = [print_rules.mesh(sizes)] if sizes else []
    return print_rules.strategy(title, [*mesh, *(rule for rule in rules if not isinstance(rule, ast.Mesh))])


def _axes(rule: ast.Rule) -> Iterator[str]:
    """The axes that a rule names."""
    match rule:
        case ast.At():
            for inner in rule.rules:
                yield from _axes(inner)
        case ast.Split():
            yield from (use.name.text for use in rule.axes)
        case ast.Zero():
            yield from (axis.text for axis in rule.axes)
        case ast.Stages():
            yield rule.axis.text
        case ast.Pin():
            yield from (axis for axis in _words(rule.span.text))
        case ast.Mesh():
            pass
        case _:
            yield from _words(rule.span.text)


def _words(text: str) -> Iterator[str]:
    """The words of a text: a rule that is kept may name an axis in an expression."""
    yield from "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


class _Filling:
    """Each rule as a point has it."""

    def __init__(self, of: Open, point: Point) -> None:
        self.of, self.point = of, point
        self.staged = stage_count(of, dict(point.sizes)) > 1

    def rule(self, rule: ast.Rule) -> list[ast.Rule]:
        """The rules that stand for one of the strategy."""
        if isinstance(rule, ast.At):
            return self._at(rule)
        if isinstance(rule, ast.Recompute) and is_hole(rule):
            again = print_rules.recompute(self.point.again)
            return [print_rules.at(in_runs(self.point.layers), again)] if self.point.layers else []
        if isinstance(rule, ast.Place) and is_hole(rule):
            return [print_rules.at(in_runs(self.point.hosted), print_rules.on_host())] if self.point.hosted else []
        return self._alone(rule, 0)

    def _alone(self, rule: ast.Rule, at: int) -> list[ast.Rule]:
        """The same under `at` or without, where neither layers nor tables are to be named."""
        point = self.point
        if not is_hole(rule):
            return [rule]
        match rule:
            case ast.Split():
                return self._splits(rule, at)
            case ast.Stages():
                keep = self.staged or not self.of.hole(ast.Schedule)
                return [print_rules.balanced(rule.axis.text, point.virtual)] if keep else []
            case ast.Microbatches():
                return [print_rules.microbatches(point.microbatches)] if point.microbatches > 1 else []
            case ast.Schedule():
                return [print_rules.schedule(point.schedule)] if point.schedule else []
            case ast.Zero():
                level, keep = point.zero[[id(each) for each in self.of.zeros].index(id(rule))]
                sizes = dict(point.sizes)
                axes = [axis.text for axis in rule.axes if sizes.get(axis.text, 1) > 1]
                return [print_rules.zero(level, axes, keep)] if level else []
            case ast.Bucket():
                return [print_rules.bucket(point.bucket)] if point.bucket not in (0, 25) else []
            case _:
                return []

    def _splits(self, rule: ast.Split, at: int) -> list[ast.Rule]:
        """The dims of equal axes in one rule, where the first of the open rules stands."""
        beside = self.of.ats[at - 1].rules if at else self.of.strategy.rules
        if rule is not next(each for each in beside if isinstance(each, ast.Split) and is_hole(each)):
            return []
        by_uses: dict[tuple[tuple[str, bool], ...], list[str]] = {}
        for _, dim, uses in (split for split in self.point.splits if split[0] == at):
            by_uses.setdefault(uses, []).append(dim)
        return [print_rules.split(dims, uses, rule.uneven) for uses, dims in by_uses.items()]

    def _at(self, at: ast.At) -> list[ast.Rule]:
        """The rules under `at`, without those that a point leaves out."""
        if not any(map(is_hole, at.rules)):
            return [at]
        number = 1 + [id(each) for each in self.of.ats].index(id(at))
        inner = [new for rule in at.rules for new in self._alone(rule, number)]
        found: list[ast.Rule] = [print_rules.at_selectors(at.selectors, inner)] if inner else []
        for rule in (rule for rule in at.rules if is_hole(rule)):
            paths = self.point.layers if isinstance(rule, ast.Recompute) else self.point.hosted
            mine = [path for path in paths if covers(at, path)]
            if mine and isinstance(rule, ast.Recompute | ast.Place):
                again = isinstance(rule, ast.Recompute)
                new = print_rules.recompute(self.point.again) if again else print_rules.on_host()
                found.append(print_rules.at(in_runs(mine), new))
        return found
