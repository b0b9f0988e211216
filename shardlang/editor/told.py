"""A plan -> the texts, in Markdown, that an editor shows where one points: at a statement, a layer,
an axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from shardlang.editor.shown import LayerName
from shardlang.folds.pipeline_report import whole_mesh
from shardlang.folds.traffic import sent
from shardlang.graph.graph import Kind
from shardlang.paths.patterns import count
from shardlang.paths.runs import in_runs
from shardlang.plan.demand import ResolvedStrategy
from shardlang.plan.plan import Plan
from shardlang.sources.source import TextRange
from shardlang.step.parameters import HeldBytes, all_held
from shardlang.terminal.display import rounded_up, size
from shardlang.types.mesh import Mesh
from shardlang.views.statements import LaidOut, PlannedStatement, SentBytes, SentSums, add_sent, in_order, tensor
from shardlang.views.why import decided

# Rows of what is sent, and groups of ranks, that one text lists.
_MOST = 6


def statement_text(plan: Plan, found: PlannedStatement, by: ResolvedStrategy | None) -> str:
    """The layouts of its result, what a step sends for it, and which rules decide. by: the rules,
    where they are known."""
    lines = [_tensor(plan, tensor) for tensor in found.tensors[:_MOST]]
    lines += [f"{len(found.tensors) - _MOST} more layouts"] if len(found.tensors) > _MOST else []
    lines += _sent(found.sent)
    if by is not None:
        value = plan.graph.ops[found.ops[-1]].results[0]
        reason = decided(by, plan.graph, value, plan)
        rules = [f"`{rule['text']}` (line {rule['source'].rpartition(':')[2]})" for rule in reason["rules"]]
        lines += [f"Decided by {', '.join(rules)}"] if rules else []
    return "\n\n".join(lines)


def _tensor(plan: Plan, tensor: LaidOut, stored: bool = False) -> str:
    """stored: whether it is there all the time, and not of a microbatch."""
    shape = " x ".join(map(str, tensor.shape)) or "one number"
    of = " of a microbatch" if plan.microbatches > 1 and not stored else ""
    return f"`{tensor.type}`\n\nA rank holds {shape}{of}, {size(tensor.bytes)}"


def _sent(rows: Sequence[SentBytes]) -> list[str]:
    """A list of what is sent, the most first."""
    if not rows:
        return []
    lines = [f"- {_row(row)}" for row in rows[:_MOST]]
    lines += [f"- {len(rows) - _MOST} more, {size(sum(row.bytes for row in rows[_MOST:]))}"] * (len(rows) > _MOST)
    return ["A step sends for it:\n" + "\n".join(lines)]


def _row(row: SentBytes) -> str:
    both = ((row.forward_bytes, "forward"), (row.backward_bytes, "backward"))
    amounts = ", ".join(f"{size(amount)} {way}" for amount, way in both if amount)
    return f"{row.collective.replace('_', '-')} over {', '.join(row.axes)}: {amounts}"


def axis_texts(plan: Plan) -> Mapping[str, str]:
    """Axis -> its ranks, and the groups that communicate over it."""
    found = {}
    for index in range(len(plan.meshes)):
        mesh = whole_mesh(plan, index)
        found.update({axis.name: _axis(plan, mesh, axis.name, axis.size) for axis in mesh.axes})
    return found


def _axis(plan: Plan, mesh: Mesh, axis: str, ranks: int) -> str:
    text = f"Axis `{axis}`: {ranks} rank{'s' * (ranks != 1)} in each of {plan.ranks // ranks:,} groups"
    if ranks == 1:
        return text
    groups = [f"{{{', '.join(map(str, group))}}}" for group in mesh.groups((axis,))] if plan.ranks <= 64 else []
    shown = [*groups[:_MOST], *([".."] if len(groups) > _MOST else [])]
    return f"{text}\n\n{' '.join(shown)}" if groups else text


def layer_texts(plan: Plan) -> Mapping[LayerName, str]:
    """A layer, as its model declares it -> its paths, what a rank holds of its parameters, and what
    a step sends for it."""
    paths = dict[LayerName, list[str]]()
    for call, name in _named(plan):
        paths.setdefault(name, []).append(plan.graph.calls[call].path)
    held, rows = _of_layers(plan, {path for every in paths.values() for path in every})
    return {name: _layer(every, held, rows) for name, every in paths.items()}


def _named(plan: Plan) -> Iterator[tuple[int, LayerName]]:
    """Each call of a layer, with the layer's model and its name there."""
    for index, call in enumerate(plan.graph.calls):
        around = plan.graph.calls[call.within] if call.within >= 0 else None
        model, home = (around.model, around.path) if around is not None else ("", "")
        name = call.path.removeprefix(f"{home}.") if home else call.path
        if name and "." not in name:
            yield index, (model, name.partition("[")[0])


def calls_of(plan: Plan, layer: LayerName) -> frozenset[int]:
    """The calls of a layer, and those within them."""
    found = {call for call, name in _named(plan) if name == layer}
    for index, call in enumerate(plan.graph.calls):
        if call.within in found:
            found.add(index)
    return frozenset(found)


_Sums = tuple[dict[str, list[int]], dict[str, SentSums]]


def _of_layers(plan: Plan, paths: set[str]) -> _Sums:
    """Path of a layer -> bytes that a rank holds of its parameters (themselves, copies, gradients,
    state of optimizers), and bytes by collective and axes."""
    held, rows = dict[str, list[int]](), dict[str, SentSums]()
    for value, each in all_held(plan).items():
        it = plan.graph.values[value]
        for path in _around(it.path, paths):
            mine = held.setdefault(path, [0] * len(HeldBytes._fields))
            mine[:] = [sum_ + amount * it.times for sum_, amount in zip(mine, each, strict=True)]
    for one in sent(plan):
        for path in _around(one.path, paths):
            add_sent(rows.setdefault(path, {}), one)
    return held, rows


def _around(path: str, layers: set[str]) -> list[str]:
    """The layers that a value is in, by their paths."""
    found, at = [path] if path in layers else [], path.find(".")
    while at >= 0:
        found += [path[:at]] if path[:at] in layers else []
        at = path.find(".", at + 1)
    return found


def _layer(paths: Sequence[str], held: Mapping[str, Sequence[int]], rows: Mapping) -> str:
    own = [sum(held.get(path, (0, 0, 0, 0))[part] for path in paths) for part in range(4)]
    names = ("parameters", "copies of them", "gradients", "optimizer")
    parts = [f"{name} {rounded_up(amount)}" for name, amount in zip(names, own, strict=True) if amount]
    every = SentSums()
    for path in paths:
        for key, both in rows.get(path, {}).items():
            mine = every.setdefault(key, [0, 0])
            mine[:] = [mine[0] + both[0], mine[1] + both[1]]
    layers = sum(map(count, paths))
    lines = [f"`{', '.join(in_runs(paths))}`" + (f": {layers} layers" if layers > 1 else "")]
    lines += [f"A rank holds of {'them' if layers > 1 else 'it'}: {', '.join(parts)}"] if parts else []
    return "\n\n".join([*lines, *_sent(in_order(every))])


def parameter_texts(plan: Plan, file: str) -> Mapping[TextRange, str]:
    """A `param` or `state` of a file -> its layout as it is stored, and the bytes of a rank."""
    found, rows = dict[TextRange, str](), dict[str, SentSums]()
    for one in sent(plan):
        add_sent(rows.setdefault(one.path, {}), one)
    for value, each in all_held(plan).items():
        it, param = plan.graph.values[value], plan.params[value]
        if it.span.source.name != file or it.kind not in (Kind.PARAM, Kind.STATE):
            continue
        beside = (("copy", each.copy), ("gradient", each.gradient), ("optimizer", each.optimizer))
        more = [f"{name} {size(amount)}" for name, amount in beside if amount]
        lines = [_tensor(plan, tensor(plan, value, param.stored), stored=True)]
        lines += [f"Beside it: {', '.join(more)}"] if more else []
        lines += _sent(in_order(rows.get(it.path, {})))
        lines += [f"`zero {param.zero}` over {', '.join(param.zero_axes)}"] if param.zero else []
        found.setdefault((it.span.start, it.span.end), "\n\n".join(lines))
    return found


def statement_texts(
    plan: Plan, found: Iterable[PlannedStatement], by: ResolvedStrategy | None = None
) -> Mapping[TextRange, str]:  # fmt: skip
    return {each.place: statement_text(plan, each, by) for each in found}
