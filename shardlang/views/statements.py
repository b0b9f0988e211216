"""A plan -> what it says of each statement of one file: the layout of the result, and what a step
sends for it.

A layer of the library counts for the statement of the file that calls it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from shardlang.folds.traffic import Sent, sent
from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import Kind, Op
from shardlang.plan.plan import Plan
from shardlang.sources.source import Span, TextRange
from shardlang.types.dim import TensorType
from shardlang.types.layout import Layout, layout_text

# Collective and axes -> bytes forward and backward.
SentSums = dict[tuple[str, tuple[str, ...]], list[int]]


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A tensor as ranks hold it. cuts: what lies on an axis, such as `batch@dp` or `+mp`; bytes: of
    the largest part that a rank holds, of one microbatch. axes: those that cut each dim, and
    pending: those that it is a sum over; both of the ranks in the plan's mesh of this number."""

    type: str
    cuts: tuple[str, ...]
    shape: tuple[int, ...]
    bytes: int
    axes: tuple[tuple[str, ...], ...] = ()
    pending: tuple[str, ...] = ()
    mesh: int = 0


@dataclass(frozen=True, slots=True)
class SentBytes:
    """Bytes that ranks send in a step by a collective over axes."""

    collective: str
    axes: tuple[str, ...]
    forward_bytes: int
    backward_bytes: int

    @property
    def bytes(self) -> int:
        return self.forward_bytes + self.backward_bytes


@dataclass(frozen=True, slots=True)
class PlannedStatement:
    """results: the result in each of its layouts, which differ where a model is called in two
    places, and the operators that make it so; read: the cuts of what the statement reads; sent:
    the most first; ops: its operators."""

    place: TextRange
    results: Mapping[LaidOut, Sequence[int]]
    read: tuple[tuple[str, ...], ...]
    sent: tuple[SentBytes, ...]
    ops: tuple[int, ...]

    @property
    def tensors(self) -> tuple[LaidOut, ...]:
        return tuple(self.results)

    @property
    def moves(self) -> bool:
        """Whether the result is laid out as nothing that the statement reads."""
        return any(tensor.cuts not in self.read for tensor in self.tensors)


@dataclass
class _Found:
    ops: list[int] = field(default_factory=list)
    sent: SentSums = field(default_factory=dict)


def statements(plan: Plan, file: str, within: Container[int] | None = None) -> Mapping[TextRange, PlannedStatement]:
    """The statements of a file, by its name, in the order in which they run. within: calls of
    layers that they are run for; None for all."""
    places = places_of(plan, file)
    if within is not None:
        places = {op: place for op, place in places.items() if _written(plan, plan.graph.ops[op]).within in within}
    found: dict[TextRange, _Found] = {}
    by_path: dict[str, TextRange] = {}
    for op, place in places.items():
        found.setdefault(place, _Found()).ops.append(op)
        it = plan.graph.ops[op]
        by_path.update({path: place for path in (*_paths(plan, it.results), it.path)})
        # What no statement makes, parameters and data, is sent for the first that reads it.
        given = (value for value in it.operands if plan.graph.values[value].kind is not Kind.RESULT)
        by_path.update({path: place for path in _paths(plan, given) if path not in by_path})
    for each in sent(plan):
        if each.what == "values" and each.path in by_path:
            add_sent(found[by_path[each.path]].sent, each)
    return {place: _statement(plan, place, one) for place, one in found.items()}


def add_sent(known: SentSums, each: Sent) -> None:
    """Adds what is sent to the bytes by collective and axes."""
    for phase, (collective, size) in enumerate(
        zip(each.collectives, (each.forward_bytes, each.backward_bytes), strict=True)
    ):
        if size:
            known.setdefault((collective, each.axes), [0, 0])[phase] += size


def in_order(known: Mapping[tuple[str, tuple[str, ...]], Sequence[int]]) -> tuple[SentBytes, ...]:
    """The most first."""
    rows = [SentBytes(kind, axes, forward, backward) for (kind, axes), (forward, backward) in known.items()]
    return tuple(sorted(rows, key=lambda row: (-row.bytes, row.collective, row.axes)))


@remembered
def _calling(plan: Plan) -> dict[tuple[str, int], Span | None]:
    """(file, call) -> the statement of the file that leads to the call; filled as it is asked."""
    return {}


def _paths(plan: Plan, values: Iterable[int]) -> Iterator[str]:
    return (plan.graph.values[value].path for value in values)


def places_of(plan: Plan, file: str) -> dict[int, TextRange]:
    """Operator -> the statement of the file that it is done for."""
    found = {}
    for op in plan.graph.ops:
        span = _statement_of(plan, _written(plan, op), file)
        if span is not None:
            found[op.id] = span.start, span.end
    return found


def _written(plan: Plan, op: Op) -> Op:
    """The operator itself; of a cast that mixed precision needs the one that made the value."""
    made = plan.graph.producers.get(op.operands[0]) if op.implied else None
    return op if made is None else _written(plan, plan.graph.ops[made])


def _statement_of(plan: Plan, op: Op, file: str) -> Span | None:
    own = op.statement or op.span
    return own if own.source.name == file else _call_in(plan, op.within, file)


def _call_in(plan: Plan, call: int, file: str) -> Span | None:
    """The statement of the file that makes a call, or one that the call is within."""
    known, around = _calling(plan), list[int]()
    while call >= 0 and (file, call) not in known:
        around.append(call)
        span = plan.graph.calls[call].statement
        if span is not None and span.source.name == file:
            known[file, call] = span
        else:
            call = plan.graph.calls[call].within
    made = known.get((file, call)) if call >= 0 else None
    known.update({(file, each): made for each in around})
    return made


def _statement(plan: Plan, place: TextRange, found: _Found) -> PlannedStatement:
    graph, here = plan.graph, set(found.ops)
    results = [op for op in found.ops if not (graph.ops[op].implied or _inner(plan, op, here))] or found.ops[-1:]
    tensors: dict[LaidOut, list[int]] = {}
    for op in results:
        tensors.setdefault(tensor(plan, graph.ops[op].results[0], plan.ops[op].results[0]), []).append(op)
    read = dict.fromkeys(_read(plan, found.ops, here))
    return PlannedStatement(place, tensors, tuple(read), in_order(found.sent), tuple(found.ops))


def _inner(plan: Plan, op: int, here: set[int]) -> bool:
    """Whether another operator of the statement reads the result, or what a cast makes of it."""
    readers, ops = _readers(plan), plan.graph.ops
    of = [reader for value in ops[op].results for reader in readers.get(value, ())]
    return any(_inner(plan, reader, here) if ops[reader].implied else reader in here for reader in of)


@remembered
def _readers(plan: Plan) -> Mapping[int, Sequence[int]]:
    found: dict[int, list[int]] = {}
    for op in plan.graph.ops:
        for value in op.operands:
            found.setdefault(value, []).append(op.id)
    return found


def _read(plan: Plan, ops: Sequence[int], here: set[int]) -> Iterator[tuple[str, ...]]:
    """The cuts of the values that come from elsewhere, as they were made. Parameters are none: what
    a product reads of them is not how the stream of values lies."""
    for op in ops:
        for value in plan.graph.ops[op].operands:
            known = plan.graph.values[value]
            layout = plan.produced.get(value)
            if known.kind in (Kind.RESULT, Kind.DATA) and plan.graph.producers.get(value) not in here and layout:
                yield tensor(plan, value, layout).cuts


def tensor(plan: Plan, value: int, layout: Layout) -> LaidOut:
    """A value in a layout; equal layers ask for the same again."""
    known, of = _tensors(plan), (plan.graph.values[value].type, layout)
    if of not in known:
        known[of] = _tensor(plan, value, layout)
    return known[of]


@remembered
def _tensors(plan: Plan) -> dict[tuple[TensorType, Layout], LaidOut]:
    """Filled as it is asked."""
    return {}


def _tensor(plan: Plan, value: int, layout: Layout) -> LaidOut:
    known, mesh = plan.graph.values[value], plan.meshes[layout.mesh]
    text = layout_text(known.type, layout, mesh)
    return LaidOut(
        f"{known.type.dtype}{text}", cuts(text), tuple(plan.local_shape(value, layout)),
        bytes=plan.local_bytes(value, layout), axes=tuple(mesh.ranked(axes) for axes in layout.dims),
        pending=mesh.ranked(layout.pending), mesh=layout.mesh,
    )  # fmt: skip


def cuts(layout: str) -> tuple[str, ...]:
    """`[batch@dp, seq, heads@mp * e] +cp` -> `batch@dp`, `heads@mp`, `+cp`."""
    dims, _, marks = layout.removeprefix("[").partition("]")
    found = [part for dim in _split(dims) for part in dim.split(" * ") if "@" in part]
    return *found, *_marks(marks)


def _split(dims: str) -> list[str]:
    """The dims of a layout; axes in brackets stay together."""
    found = [""]
    for part in dims.split(", "):
        if found[-1].count("(") > found[-1].count(")"):
            found[-1] += f", {part}"
        else:
            found.append(part)
    return found[1:]


def _marks(text: str) -> list[str]:
    """`+cp`, `+(dp, mp)`: what is pending. A mark `^` is no cut."""
    return [mark for mark in text.strip().replace(" ^", "\n^").split("\n") if mark.startswith("+")]
