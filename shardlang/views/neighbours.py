"""A plan and one of `QUESTIONS`, such as `mesh` or `microbatches` -> the rules that decided, and
the costs of their neighbours, as plain data (`shardc why --json`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from shardlang.cost.predict import predict
from shardlang.folds.traffic import sent
from shardlang.paths.runs import in_runs
from shardlang.plan.pipeline.schedules import SCHEDULES
from shardlang.plan.plan import Plan
from shardlang.plan.strategy.instead import layers_of, summed_over
from shardlang.sources.source import Span
from shardlang.step.saved_activations import owners
from shardlang.step.stages import stages_by_coordinate
from shardlang.syntax import ast
from shardlang.views.alternatives import Entry, StrategyCase, head, place
from shardlang.views.stages import mesh_text, moved, other_stages, recut, sizes_of, stage_rows, stages_now
from shardlang.views.values import zero_text


def neighbours(asked: StrategyCase, what: str) -> Entry:
    """The answer for one of `QUESTIONS`."""
    now, kinds, others, more = QUESTIONS[what]
    written = [place(span) for span in _spans(asked.rules, kinds)]
    return {
        **head(asked), "kind": what, "name": what, "is": now(asked.plan),
        "decided": {"by": what if written else "none", "rules": written}, **more(asked),
        "alternatives": list(others(asked)) if asked.strategy is not None else [],
    }  # fmt: skip


def _spans(rules: Sequence[ast.Rule], kinds: tuple[type, ...]) -> list[Span]:
    """The rules of some kinds; with a selector, the whole `at`."""
    return [
        rule.span for rule in rules
        if isinstance(rule, kinds) or (isinstance(rule, ast.At) and any(isinstance(r, kinds) for r in rule.rules))
    ]  # fmt: skip


# --- mesh ---


def _mesh_now(plan: Plan) -> list[str]:
    mesh = plan.pipeline.mesh if plan.pipeline is not None else plan.meshes[0].timeless
    return [", ".join(f"{axis.name} = {axis.size}" for axis in mesh.axes)]


def _meshes(asked: StrategyCase) -> Iterator[Entry]:
    """One axis smaller by its least divisor, and another larger by it. Stages that are cut by hand
    are cut evenly where their number changes."""
    now = sizes_of(asked, next((rule for rule in asked.rules if isinstance(rule, ast.Mesh)), None))
    for less in now or ():
        for more in now or ():
            sizes = moved(now, less, more) if now is not None and more != less else None
            if sizes is not None:
                rules, texts = recut(asked, sizes)
                yield asked.instead("; ".join([mesh_text(sizes), *texts]), rules, sizes)


def _axis_rows(asked: StrategyCase) -> list[Entry]:
    """A row for each axis, then one for each group of several over which something is sent. sent:
    by what it is; exposed_s: seconds of a step (None: not known)."""
    plan = asked.plan
    mesh = plan.pipeline.mesh if plan.pipeline is not None else plan.meshes[0].timeless
    bytes, waits = _sent(asked), _waits(asked)
    alone: list[tuple[str, ...]] = [(axis.name,) for axis in mesh.axes]
    groups = [axes for axes in bytes if len(axes) > 1 and {(axis,) for axis in axes} <= {*alone}]
    sizes = {axes: mesh.degree(axes) for axes in (*alone, *groups)}
    return [
        {"axes": list(axes), "size": size, "rules": list(_rules(asked, axes[0])) if len(axes) == 1 else [],
         "sent": [{"what": what, "bytes": count} for what, count in bytes.get(axes, {}).items()],
         "exposed_s": waits.get(axes, 0.0) if waits is not None else None}
        for axes, size in sizes.items()
    ]  # fmt: skip


def _rules(asked: StrategyCase, axis: str) -> Iterator[Entry]:
    """The rules that name an axis, but for the mesh."""
    for rule in asked.rules:
        for inner in rule.rules if isinstance(rule, ast.At) else (rule,):
            match inner:
                case ast.Split(axes=uses):
                    named = [use.name.text for use in uses]
                case ast.Zero(axes=names):
                    named = [name.text for name in names]
                case ast.Stages(axis=over):
                    named = [over.text]
                case _:
                    named = []
            if axis in named:
                yield place(rule.span)


def _sent(asked: StrategyCase) -> dict[tuple[str, ...], dict[str, int]]:
    """Axes -> what is sent over them in a step, by a rank at each coordinate of the stages."""
    plan, found = asked.plan, dict[tuple[str, ...], dict[str, int]]()
    for each in sent(plan):
        times = sum(not each.stages.isdisjoint(mine) for mine in stages_by_coordinate(plan))
        count = (each.forward_bytes + each.backward_bytes) * times
        if count:
            row = found.setdefault(each.axes, {})
            row[each.what] = row.get(each.what, 0) + count
    return found


def _waits(asked: StrategyCase) -> dict[tuple[str, ...], float] | None:
    if asked.hardware is None:
        return None
    found: dict[tuple[str, ...], float] = {}
    for (_, axes), seconds in predict(asked.plan, asked.hardware).exposed_s.items():
        found[axes] = found.get(axes, 0.0) + seconds
    return found


# --- ZeRO ---


def _zero_now(plan: Plan) -> list[str]:
    counts = Counter[str]()
    for value, param in plan.params.items():
        counts[zero_text(param) if param.zero else "no zero"] += plan.graph.values[value].times
    return [f"{text}: {count} parameter{'s' * (count != 1)}" for text, count in counts.most_common()]


def _zeros(asked: StrategyCase) -> Iterator[Entry]:
    """Another level for all parameters: over the axes that the rules name, else over those along
    which gradients are summed."""
    rules, plan = asked.rules, asked.plan
    every = [inner for rule in rules for inner in (rule.rules if isinstance(rule, ast.At) else (rule,))]
    named = Counter(tuple(axis.text for axis in rule.axes) for rule in every if isinstance(rule, ast.Zero))
    axes = next((axes for axes, _ in named.most_common() if axes), ()) if named else summed_over(plan)
    declared = {a.name.text for rule in rules if isinstance(rule, ast.Mesh) for a in rule.axes}
    if not axes or not declared.issuperset(axes):
        return
    over = axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
    now = {(p.zero, p.keep) for p in plan.params.values()}
    for level, keep in ((0, False), (1, False), (2, False), (3, False), (3, True)):
        if now != {(level, keep)}:
            text = f"zero {level} over {over}{', keep' * keep}" if level else ""
            yield asked.replaced(text, ast.Zero, none="no zero")


# --- recompute ---


def _recompute_now(plan: Plan) -> list[str]:
    paths = dict.fromkeys(
        plan.graph.calls[plan.graph.ops[op].within].path for g in owners(plan).groups for op in g.ops[:1]
    )
    return in_runs(path for path in paths if path) or ["nothing"]


def _recomputes(asked: StrategyCase) -> Iterator[Entry]:
    """Nothing; then all layers of the outermost arrays, whole or in part."""
    outer = layers_of(asked.plan.graph)
    texts = [f"at {', '.join(outer)}: recompute{what}" for what in ("", " gathers", " all but products")]
    for text in (*([""] if owners(asked.plan).groups else ()), *(texts if outer else ())):
        yield asked.replaced(text, ast.Recompute, none="no recompute")


# --- microbatches and their order ---


def _microbatches_now(plan: Plan) -> list[str]:
    batch = plan.program.graph.batch
    of = f" of {(batch.size or 0) // plan.microbatches} of `{batch.name}` on all ranks together" if batch else ""
    return [f"{plan.microbatches} microbatch{'es' * (plan.microbatches != 1)}{of}"]


def _other_microbatches(asked: StrategyCase) -> Iterator[Entry]:
    """A quarter and a half of them, twice and four times as many."""
    now = asked.plan.microbatches
    for count in (now // 4, now // 2, 2 * now, 4 * now):
        if count and (count >= now or now % count == 0):
            yield asked.replaced(f"microbatches {count}", ast.Microbatches)


def _other_schedules(asked: StrategyCase) -> Iterator[Entry]:
    """Those that take as many stages on a coordinate."""
    pipeline = asked.plan.pipeline
    virtual = len(pipeline.coordinates) // len(pipeline.actions) if pipeline is not None else 0
    for name, schedule in SCHEDULES.items():
        if pipeline is not None and name != pipeline.schedule and schedule.takes(virtual):
            yield asked.replaced(f'schedule "{name}"', ast.Schedule)


Now = Callable[[Plan], Sequence[str]]
Others = Callable[[StrategyCase], Iterator[Entry]]
More = Callable[[StrategyCase], Entry]


# What can be asked about, besides values: what it is now, its rules, the alternatives, and what
# else the answer has.
QUESTIONS: dict[str, tuple[Now, tuple[type, ...], Others, More]] = {
    "mesh": (_mesh_now, (ast.Mesh,), _meshes, lambda asked: {"axes": _axis_rows(asked)}),
    "zero": (_zero_now, (ast.Zero,), _zeros, lambda _: {}),
    "recompute": (_recompute_now, (ast.Recompute,), _recomputes, lambda _: {}),
    "microbatches": (_microbatches_now, (ast.Microbatches,), _other_microbatches, lambda _: {}),
    "schedule": (stages_now, (ast.Schedule,), _other_schedules, lambda _: {}),
    "stages": (
        stages_now, (ast.Stages, ast.Schedule, ast.Microbatches), other_stages,
        lambda asked: {"stages": stage_rows(asked)},
    ),
}  # fmt: skip
