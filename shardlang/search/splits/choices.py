"""A strategy without stages -> the choices of its operators, with their seconds.

Equal operators of layers that are alike share one choice. Operators that a rule settles, and the
axes that are not open, stay as they are; which option each choice takes is found by
integer_program.py, chain.py or halving.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from shardlang.check.program import CheckedProgram
from shardlang.cost.items import class_of
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import LEAF, Op
from shardlang.plan.demand import ResolvedStrategy
from shardlang.plan.layouts.assignment import Assignment, LayoutTable, assign, local_size
from shardlang.plan.layouts.candidates import alternatives
from shardlang.plan.layouts.op_classes import OpClass, Planning, ValueFacts, build
from shardlang.plan.layouts.propagate import propagate
from shardlang.plan.layouts.replication import replication
from shardlang.plan.layouts.storage import all_times
from shardlang.plan.resolve import Resolving
from shardlang.search.splits.seconds import SplitPrices
from shardlang.syntax import ast
from shardlang.types.layout import Layout

# More options than these are not looked at along several axes together, but along one after the
# other.
TOGETHER = 600


@dataclass(frozen=True, eq=False)
class SplitChoice:
    """Operators (ids) that take one assignment together, out of `options`. own: the seconds of all
    of them under each option; kept: the bytes that they keep; stored: those of parameters."""

    ops: tuple[int, ...]
    kind: OpClass
    options: tuple[Assignment, ...]
    own: tuple[float, ...]
    kept: tuple[int, ...]
    stored: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Handed:
    """Values that one choice makes and others read, `times` of them alike. made: the form of each
    option of the producer; readers: choices, each with the form of each of its options. seconds: of
    a conversion of one, by the forms before and after; inf where there is none."""

    producer: int
    made: tuple[int, ...]
    readers: tuple[tuple[int, tuple[int, ...]], ...]
    seconds: Mapping[tuple[int, int], float]
    times: int


@dataclass(frozen=True, eq=False)
class Choices:
    """All choices of a program, in the order of their first operators, and what they hand on."""

    planning: Planning
    table: LayoutTable
    choices: tuple[SplitChoice, ...]
    handed: tuple[Handed, ...]

    def seconds(self, picks: Sequence[int]) -> float:
        """The seconds of a microbatch if each choice takes the option of that number. A value is
        converted once to each form that is read."""
        total = sum(choice.own[at] for choice, at in zip(self.choices, picks, strict=True))
        for value in self.handed:
            source = value.made[picks[value.producer]]
            needed = dict.fromkeys(forms[picks[reader]] for reader, forms in value.readers)
            total += value.times * sum(value.seconds[source, form] for form in needed)
        return total

    def kept(self, picks: Sequence[int]) -> int:
        """The bytes that operators keep."""
        return sum(choice.kept[at] for choice, at in zip(self.choices, picks, strict=True))

    def stored(self, picks: Sequence[int]) -> int:
        """The bytes of parameters with what belongs to them."""
        return sum(choice.stored[at] for choice, at in zip(self.choices, picks, strict=True))

    def assignments(self, picks: Sequence[int]) -> dict[int, Assignment]:
        """Operator (id) -> its assignment."""
        pairs = zip(self.choices, picks, strict=True)
        return {op: choice.options[at] for choice, at in pairs for op in choice.ops}


def resolved(
    program: CheckedProgram, strategy: ast.Strategy, ranks: int
) -> tuple[ResolvedStrategy, CheckedProgram] | None:
    """A strategy whose axes need not all be used; None where it has mistakes."""
    sink = Sink()
    found = Resolving(program, strategy, ranks, sink, False).run()
    if any(d.code != "SH322" for d in sink.found) or not found.meshes:
        return None
    return found, program if found.graph is None else replace(program, graph=found.graph)


def closed(planning: Planning, open: Collection[str]) -> list[Assignment]:
    """The assignments along the axes that are not open, as propagation finds them."""
    chosen = propagate(planning, open)
    marked = replication(planning, chosen, planning.table)
    return [_without_marks(now, was, open) for now, was in zip(marked, chosen, strict=True)]


def _without_marks(now: Assignment, was: Assignment, open: Collection[str]) -> Assignment:
    """An assignment without the labels of axes that are open."""
    kept = tuple(a for a in now.replicated if a not in open or a in was.replicated)
    return assign(now.factors, now.through, kept, now.mesh)


def found_choices(
    read: tuple[ResolvedStrategy, CheckedProgram], open: Sequence[str], along: Sequence[str], rates: SplitPrices,
    given: Mapping[int, Assignment] | None = None,
) -> Choices | None:  # fmt: skip
    """The choices along some of the axes that are open; None where there are more than are looked
    at together. given: what is settled along others."""
    strategy, program = read
    planning = build(program.graph, strategy)
    table = planning.table
    base = closed(planning, open) if given is None else [given[op] for op in range(len(planning.graph.ops))]
    groups: dict[tuple[object, ...], list[int]] = {}
    for op in planning.graph.ops:
        key = planning.classes[op.id], base[op.id], class_of(op.path), op.section == "loss"
        groups.setdefault(key, []).append(op.id)
    rows = [tuple(ops) for ops in groups.values()]
    options = [_options(planning, planning.graph.ops[ops[0]], base[ops[0]], along) for ops in rows]
    if len(along) > 1 and sum(map(len, options)) > TOGETHER:
        return None
    own = rates.own(program, planning, table, [ops[0] for ops in rows], options)
    choices = tuple(
        _choice(planning, ops, table, each, seconds) for ops, each, seconds in zip(rows, options, own, strict=True)
    )
    return Choices(planning, table, choices, _handed(planning, table, choices, rates))


def _options(planning: Planning, op: Op, base: Assignment, open: Collection[str]) -> tuple[Assignment, ...]:
    """Every legal way to use the axes that are open; along those that are not used a result with a
    gradient is I or R."""
    kind, found = planning.classes[op.id], [base]
    for axis in planning.meshes[base.mesh].timeless.axes:
        if axis.name in open and axis.size > 1:
            ways = [_along(planning, op, kind, each, axis.name) for each in found]
            found = list(dict.fromkeys(way for each in ways for way in each))
    return tuple(found)


def _along(planning: Planning, op: Op, kind: OpClass, given: Assignment, axis: str) -> list[Assignment]:
    ways = list(alternatives(kind, given, axis, planning.meshes[given.mesh]))
    if axis in (*given.split_axes(), *given.replicated, *(through for through, _ in given.through)):
        return ways  # a rule has settled it
    settled = kind.demand is not None and (kind.demand.complete or kind.wanted is not None)
    trained = op.section == "loss" and any(t.gradient for t in kind.results)
    if given in ways and trained and not settled and planning.graph.loss not in op.results:
        ways.append(assign(given.factors, given.through, (*given.replicated, axis), given.mesh))
    return ways


# Bytes of a parameter of which each is four: with its gradient and two moments in f32.
WITH_MOMENTS = 4


def _choice(
    planning: Planning, ops: tuple[int, ...], table: LayoutTable, options: tuple[Assignment, ...],
    seconds: Sequence[float],
) -> SplitChoice:  # fmt: skip
    """A choice of equal operators. They keep results that backward may read, and parameters with
    what belongs to them."""
    kind, graph = planning.classes[ops[0]], planning.graph
    times = sum(graph.times(graph.ops[op]) for op in ops)
    bytes = [_bytes(kind, table, each) for each in options]
    stored = tuple(times * of_parameters for of_parameters, _ in bytes)
    kept = tuple(times * sum(both) for both in bytes)
    return SplitChoice(ops, kind, options, tuple(times * s for s in seconds), kept, stored)


def _bytes(kind: OpClass, table: LayoutTable, assignment: Assignment) -> tuple[int, int]:
    """Bytes of the parameters and of the results of an operator, in a microbatch."""
    mesh, layouts = table.meshes[assignment.mesh], table.layouts(kind.rule, assignment)
    results = sum(local_bytes(t, x, table) * t.gradient for t, x in zip(kind.results, layouts.results, strict=True))
    operands = zip(kind.operands, layouts.operands, strict=True)
    params = sum(local_bytes(t, x, table) for t, x in operands if t.kind in LEAF and t.gradient)
    return WITH_MOMENTS * params, results // (mesh.time.size if mesh.time else 1)


def local_bytes(tensor: ValueFacts, layout: Layout, table: LayoutTable) -> int:
    """Bytes of the largest part of a value, in all microbatches."""
    return local_size(tensor.shape, all_times(layout, table.meshes), table.meshes[layout.mesh]) * tensor.itemsize


def _handed(
    planning: Planning, table: LayoutTable, choices: Sequence[SplitChoice], rates: SplitPrices
) -> tuple[Handed, ...]:
    """The values that choices hand on, equal ones once."""
    of = {op: at for at, choice in enumerate(choices) for op in choice.ops}
    counts: dict[_Value, int] = {}
    for op in planning.graph.ops:
        for at, value in enumerate(op.results):
            readers = dict.fromkeys((of[user], operand) for user, operand in planning.users[value])
            if readers:
                key = of[op.id], at, planning.tensors[value], tuple(readers)
                counts[key] = counts.get(key, 0) + planning.graph.values[value].times
    return tuple(_value(table, choices, rates, key, times) for key, times in counts.items())


# The choice that makes a value, which of its results it is, the tensor, and the choices that read
# it, each with the number of the operand.
_Value = tuple[int, int, ValueFacts, tuple[tuple[int, int], ...]]


def _value(table: LayoutTable, choices: Sequence[SplitChoice], rates: SplitPrices, key: _Value, times: int) -> Handed:
    producer, result, tensor, readers = key
    numbers: dict[Layout, int] = {}

    def number(layout: Layout) -> int:
        return numbers.setdefault(layout if tensor.gradient else _plain(layout), len(numbers))

    maker = choices[producer]
    wanted = maker.kind.wanted if result == 0 else None
    made = tuple(number(wanted or table.layouts(maker.kind.rule, a).results[result]) for a in maker.options)
    needed = tuple(
        (reader, tuple(number(table.layouts(one.kind.rule, a).operands[at]) for a in one.options))
        for reader, at in readers for one in [choices[reader]]
    )  # fmt: skip
    layouts = list(numbers)
    seconds = {
        (source, form): rates.conversion(tensor, layouts[source], layouts[form])
        for source in dict.fromkeys(made) for form in dict.fromkeys(f for _, forms in needed for f in forms)
    }  # fmt: skip
    return Handed(producer, made, needed, seconds, times)


def _plain(layout: Layout) -> Layout:
    return Layout(layout.dims, layout.pending, (), layout.mesh) if layout.replicated else layout
