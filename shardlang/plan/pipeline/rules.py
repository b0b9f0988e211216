"""The rules of a strategy on stages and schedules, with numbers evaluated and names looked up.

Turns the rules' syntax into plain values and reports what is wrong with them by themselves. Which
operator is in which stage is stages.py's; what a schedule does is schedules.py's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from shardlang.check.model.instantiate import LAYERS_LIMIT
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.plan.strategy.axis_sizes import SizedAxis, divisors, either, evaluate
from shardlang.sources.source import Span
from shardlang.syntax import ast

Offer = Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class Entry:
    """`1: decoder, head`."""

    stage: int
    selectors: tuple[ast.Selector, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class StageRule:
    """`count` stages over `coordinates` of `axis`, `virtual` on each; None without a rank count.
    offer: another size of an axis, as a help has it; "" where there is none."""

    axis: str
    coordinates: int | None
    virtual: int
    entries: tuple[Entry, ...]
    balanced: bool
    span: Span
    virtual_span: Span | None = None
    offer: Offer = lambda axis, size: ""

    @property
    def count(self) -> int | None:
        return None if self.coordinates is None else self.coordinates * self.virtual


def read_stages(
    rule: ast.Stages, axes: Mapping[str, SizedAxis], statics: Mapping[str, int | float], sink: Sink, offer: Offer
) -> StageRule | None:
    """The rule; None after reporting. Its axis is known to be declared."""
    before = len(sink.found)
    virtual = 1
    if rule.virtual is not None:
        value, help = evaluate(rule.virtual, statics), "`virtual = 2` gives each coordinate two stages"
        virtual = value if isinstance(value, int) and value >= 1 else 0
        if not 1 <= virtual <= LAYERS_LIMIT:
            fact, label = f"`virtual` is {'no number' if value is None else value}", "a whole number from 1 is needed"
            if virtual:
                fact, label = f"`virtual` is {virtual}, and no program has as many layers", f"at most {LAYERS_LIMIT}"
            sink.report("SH420", fact, rule.virtual.span, label, help=help)
            return None
    coordinates = axes[rule.axis.text].size
    entries = _entries(rule, statics, sink)
    span = rule.virtual.span if rule.virtual is not None else None
    found = StageRule(
        rule.axis.text, coordinates, virtual, entries=entries, balanced=rule.balanced, span=rule.axis.span,
        virtual_span=span, offer=offer,
    )  # fmt: skip
    if len(sink.found) == before and not rule.balanced:
        _check_numbers(found, axes[rule.axis.text], sink)
    return found if len(sink.found) == before else None


def _entries(rule: ast.Stages, statics: Mapping[str, int | float], sink: Sink) -> tuple[Entry, ...]:
    found: dict[int, Entry] = {}
    for entry in rule.entries:
        value = evaluate(entry.stage, statics)
        if not isinstance(value, int) or value < 0:
            fact, label = f"`{entry.stage.span.text}` is no number of a stage", "a whole number from 0 is needed"
            sink.report("SH420", fact, entry.stage.span, label, help="stages are numbered from 0: `0: encoder`")
        elif value in found:
            first, help = found[value].span, "list all of its layers after one number"
            sink.again("SH420", f"stage {value} is given twice", entry.stage.span, first, help)
        else:
            found[value] = Entry(value, entry.selectors, entry.stage.span)
    return tuple(found[s] for s in sorted(found))


def _check_numbers(rule: StageRule, axis: SizedAxis, sink: Sink) -> None:
    """SH420 for stages that do not exist: the number of stages is a multiple of the axis's size."""
    if not rule.entries:
        sink.report("SH423", "no layer is in a stage", rule.span, help="write `0: LAYER, ...`, a line for each stage")
        return
    if rule.count is None or rule.coordinates is None:
        return
    given, count = rule.entries[-1].stage + 1, rule.count
    if given <= count:
        return
    size = f"`{rule.axis}` = {rule.coordinates}" + (f" and virtual = {rule.virtual}" if rule.virtual > 1 else "")
    labels = [(axis.span, f"`{rule.axis}` has {rule.coordinates} ranks")]
    if given % rule.coordinates == 0:
        more = given // rule.coordinates
        sink.report(
            "SH420", f"there is no stage {given - 1}: {size} make{'s' * (rule.virtual == 1)} {count}",
            rule.entries[-1].span, "", labels=labels,
            help=f"`{rule.axis} = {given}`, or {more} stages on each: `stages over {rule.axis}, virtual = {more} {{`",
        )  # fmt: skip
        return
    fits = [d for d in divisors(given) if d > 1] or [given]
    low = given // rule.coordinates * rule.coordinates
    near = either([n for n in (low, low + rule.coordinates) if n])
    sink.report(
        "SH420", f"{given} stages do not divide over {size}", rule.entries[-1].span, "", labels=labels,
        help=f"`{rule.axis}` could be {either(fits)}; or make it {near} stages",
    )  # fmt: skip
