"""A plan, with stages or without -> what `shardc why FILE stages` says of it: the work of each
stage, and the plans with fewer, with more, with several on a coordinate, and with other cuts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from shardlang.cost.planned import work
from shardlang.cost.prices import Prices
from shardlang.cost.scripts import Scripts
from shardlang.facts.actions import BACKWARD, FORWARD
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.pipeline_report import layers, pipeline_report, stage_costs
from shardlang.ops.families.internal import TRANSFER
from shardlang.paths.runs import in_runs
from shardlang.plan.pipeline.balance import parts
from shardlang.plan.pipeline.schedules import SCHEDULES
from shardlang.plan.plan import Plan
from shardlang.plan.strategy.axis_sizes import divisors, evaluate
from shardlang.plan.strategy.instead import rules_of, without
from shardlang.step.stages import stages_by_coordinate
from shardlang.syntax import ast
from shardlang.views.alternatives import Entry, StrategyCase

Sizes = Mapping[str, int]
R = TypeVar("R")
# An axis for stages where the strategy has none; the first name that is free.
_NAMES = ("pp", *(f"pp{n}" for n in range(2, 100)))


def stages_now(plan: Plan) -> list[str]:
    """How many there are, and how long they wait for each other."""
    found = pipeline_report(plan)
    if found is None:
        return ["no stages: each rank runs all layers"]
    count, on = len(found["stages"]), len({row["coordinate"] for row in found["stages"]})
    each = f", {count // on} on each coordinate" if count > on else ""
    idle = f"{found['bubble_by_cost']:.1%} of the time idle by the work of the stages"
    return [f"{count} stages over {found['axis']} = {on}{each}", f"schedule {found['schedule']}, {idle}"]


def stage_rows(asked: StrategyCase) -> list[dict[str, Any]]:
    """Each stage with its layers, its share of the work, seconds of a microbatch (None: not known),
    and the peak of its coordinate."""
    plan = asked.plan
    if plan.pipeline is None:
        return []
    costs, seconds, peaks = stage_costs(plan), stage_seconds(asked), step_peaks(plan)
    whole, own = sum(cost.total for cost in costs), layers(plan, plan.pipeline)
    return [
        {"stage": stage, "coordinate": at, "layers": in_runs(own[stage]), "share": costs[stage].total / max(1, whole),
         "microbatch_s": seconds[stage] if seconds is not None else None, "peak_bytes": peaks[at].bytes}
        for stage, at in enumerate(plan.pipeline.coordinates)
    ]  # fmt: skip


def stage_seconds(asked: StrategyCase) -> list[float] | None:
    """Seconds of forward and backward of a microbatch on each stage; None without speeds."""
    hardware, pipeline = asked.hardware, asked.plan.pipeline
    if hardware is None or pipeline is None:
        return None
    scripts = Scripts(Prices(work(asked.plan), hardware), hardware.overlap)
    count = len(pipeline.coordinates)
    return [
        sum(beat.total for kind in (FORWARD, BACKWARD) for beat in scripts.script(stage, kind))
        for stage in range(count)
    ]


# --- alternatives ---


def other_stages(asked: StrategyCase) -> Iterator[Entry]:
    """Fewer and more stages, several on a coordinate, other cuts."""
    rules = asked.rules
    mesh, rule = _of(rules, ast.Mesh), _of(rules, ast.Stages)
    sizes = sizes_of(asked, mesh)
    if mesh is None or sizes is None:
        return
    if rule is None:
        yield from _first_stages(asked, sizes)
        return
    axis, virtual = rule.axis.text, _virtual(asked, rule, sizes)
    for other in sizes:
        if other != axis:
            yield from _resized(asked, rule, sizes, (axis, other), virtual)
    for other in sizes:
        if other != axis:
            yield from _resized(asked, rule, sizes, (other, axis), virtual)
    yield from _virtuals(asked, rule, sizes, virtual)
    yield from _cuts(asked, rule, virtual)


def sizes_of(asked: StrategyCase, mesh: ast.Mesh | None) -> dict[str, int] | None:
    """The sizes of the axes that a strategy declares; None where positional rules have cut them
    further."""
    if mesh is None:
        return None
    plan, names = asked.plan, [axis.name.text for axis in mesh.axes]
    there = plan.pipeline.mesh if plan.pipeline is not None else plan.meshes[0].timeless
    now = {name: 1 for name in names} | {axis.name: axis.size for axis in there.axes}
    return now if set(now) == set(names) else None


def mesh_text(sizes: Sizes) -> str:
    return "mesh " + ", ".join(f"{name} = {size}" for name, size in sizes.items())


def moved(sizes: Sizes, less: str, more: str) -> dict[str, int] | None:
    """The sizes with one axis smaller by its least divisor, and another larger by it."""
    by = next((d for d in divisors(sizes[less]) if d > 1), 0)
    return {**sizes, less: sizes[less] // by, more: sizes[more] * by} if by else None


def recut(asked: StrategyCase, sizes: Sizes, virtual: int = 0) -> tuple[list[ast.Rule], list[str]]:
    """The rules with stages that fit other sizes of axes, and the texts of those that changed: what
    was cut by hand is cut evenly, and a schedule that does not fit is the default one. virtual: so
    many on a coordinate, by default as now."""
    rules = list(asked.rules)
    rule, texts = _of(rules, ast.Stages), list[str]()
    if rule is None:
        return rules, texts
    axis, before = rule.axis.text, _virtual(asked, rule, sizes)
    size, now = sizes[axis], sizes_of(asked, _of(rules, ast.Mesh)) or sizes
    count = 1 if size == 1 else virtual or before
    if count != before or (rule.entries and size != now[axis]):
        texts.append(f"stages over {axis} balanced" + f", virtual = {count}" * (count > 1))
        rules = [*without(rules, (ast.Stages,)), *rules_of(texts[-1])]
    schedule = _schedule(asked, rules, {**asked.program.statics, **sizes}, size, count)
    if schedule:
        texts.append(f'schedule "{schedule}"')
        rules = [*without(rules, (ast.Schedule,)), *rules_of(texts[-1])]
    return rules, texts


def _of(rules: Sequence[ast.Rule], kind: type[R]) -> R | None:
    return next((rule for rule in rules if isinstance(rule, kind)), None)


def _virtual(asked: StrategyCase, rule: ast.Stages, sizes: Sizes) -> int:
    value = evaluate(rule.virtual, {**asked.program.statics, **sizes}) if rule.virtual is not None else 1
    return value if isinstance(value, int) else 1


def _schedule(asked: StrategyCase, rules: Sequence[ast.Rule], names: Mapping[str, Any], size: int, virtual: int) -> str:
    """The schedule to take in the place of one that does not fit; "" where what is written does."""
    written, number = _of(rules, ast.Schedule), _of(rules, ast.Microbatches)
    known = SCHEDULES.get(written.name.value) if written is not None and written.name is not None else None
    count = evaluate(number.count, names) if number is not None and number.count is not None else 1
    if known is None or not isinstance(count, int):
        return ""
    if known.takes(virtual) and known.fits(size * virtual, size, count):
        return ""
    return "interleaved_1f1b" if virtual > 1 else "1f1b" if count >= size else "gpipe"


def _first_stages(asked: StrategyCase, sizes: Sizes) -> Iterator[Entry]:
    """Two stages or the like where there are none: each axis gives its least divisor."""
    rules, names = asked.rules, {*sizes, *asked.program.statics}
    axis = next(name for name in _NAMES if name not in names)
    for less in sizes:
        other = moved({axis: 1, **sizes}, less, axis)
        if other is not None:
            texts = [mesh_text(other), f"stages over {axis} balanced"]
            texts += [f"microbatches 2 * {axis}"] if _of(rules, ast.Microbatches) is None else []
            kinds = (ast.Mesh, ast.Schedule)
            changed = [*rules_of("\n".join(texts)), *without(rules, kinds)]
            yield asked.instead("; ".join(texts), changed, other)


def _resized(
    asked: StrategyCase, rule: ast.Stages, sizes: Sizes, ends: tuple[str, str], virtual: int
) -> Iterator[Entry]:
    other = moved(sizes, *ends)
    if other is not None:
        rules, texts = recut(asked, other, virtual)
        yield asked.instead("; ".join([mesh_text(other), *texts]), rules, other)


def _virtuals(asked: StrategyCase, rule: ast.Stages, sizes: Sizes, virtual: int) -> Iterator[Entry]:
    """Twice as many on a coordinate, and fewer by the least divisor."""
    less = next((d for d in divisors(virtual) if d > 1), 1)
    for other in dict.fromkeys((2 * virtual, virtual // less)):
        if other != virtual and sizes[rule.axis.text] > 1:
            rules, texts = recut(asked, sizes, other)
            yield asked.instead("; ".join(texts), rules)


def _cuts(asked: StrategyCase, rule: ast.Stages, virtual: int) -> Iterator[Entry]:
    """`balanced` for a cut by hand; then the stage with most work, and those of the fullest
    coordinate, give a layer to the stage before or after."""
    several = f", virtual = {virtual}" * (virtual > 1)
    if rule.entries:
        text = f"stages over {rule.axis.text} balanced{several}"
        yield asked.replaced(text, ast.Stages)
    cut = _cut(asked.plan)
    if cut is None:
        return
    for giving, taking in _givers(asked):
        layer = cut[giving][-1 if taking > giving else 0]
        rest = [[part for part in mine if part is not layer] for mine in cut]
        rest[taking] = [*rest[taking], layer] if taking < giving else [layer, *rest[taking]]
        if rest[giving]:
            lines = (f"  {n}: {', '.join(in_runs(p for part in mine for p in part))}" for n, mine in enumerate(rest))
            text = "\n".join([f"stages over {rule.axis.text}{several} {{", *lines, "}"])
            told = f"{', '.join(in_runs(layer))} in stage {taking}, not in {giving}"
            yield asked.replaced(text, ast.Stages, told=told)


def _cut(plan: Plan) -> list[list[list[str]]] | None:
    """Per stage its layers, those together that must be; None where a stage has parts of one, or
    stages do not follow the order of layers."""
    assert plan.pipeline is not None
    count = len(plan.pipeline.coordinates)
    units, groups = parts(plan.graph, count)
    of = {unit: at for at, group in enumerate(groups) for unit in group}
    found: list[set[int]] = [set() for _ in groups]
    for op, unit in zip(plan.graph.ops, units, strict=False):
        if unit is not None and op.operator != TRANSFER and not op.implied:  # these follow their readers
            found[of[unit]].add(plan.pipeline.op_stage[op.id])
    if any(len(stages) != 1 for stages in found):
        return None
    homes = [min(stages) for stages in found]
    if homes != sorted(homes) or len(set(homes)) < count:
        return None
    return [[group for group, home in zip(groups, homes, strict=True) if home == stage] for stage in range(count)]


def _givers(asked: StrategyCase) -> list[tuple[int, int]]:
    """(a stage, its neighbour) that could share more evenly."""
    plan, seconds = asked.plan, stage_seconds(asked)
    assert plan.pipeline is not None
    loads = seconds if seconds is not None else [float(cost.total) for cost in stage_costs(plan)]
    peaks = step_peaks(plan)
    fullest = max(range(len(peaks)), key=lambda at: peaks[at].bytes)
    heavy = dict.fromkeys((loads.index(max(loads)), *(stages_by_coordinate(plan)[fullest] or ())[:1]))
    found = ((stage, other) for stage in heavy for other in (stage - 1, stage + 1))
    return [(stage, other) for stage, other in found if 0 <= other < len(loads)]
