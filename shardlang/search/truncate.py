"""A program with arrays of layers that are alike -> the same with few of each.

Whatever reads the last layer of an array then reads the last of those that are left. Layers are
alike if their operators are the same and read the same of the layer before, of their own parameters
and of what is outside of the array."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardlang.check.program import CheckedProgram, Training
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import LEAF, Graph, GraphValue, Kind, Op


@dataclass(frozen=True)
class Elements:
    """The elements of an array of layers: their paths, and the operators (ids) of each, in
    order."""

    paths: tuple[str, ...]
    ops: tuple[tuple[int, ...], ...]

    def handed(self, graph: Graph) -> list[GraphValue]:
        """The values that a layer hands to the next."""
        read = {v for op in self.ops[1] for v in graph.ops[op].operands}
        return [graph.values[v] for op in self.ops[0] for v in graph.ops[op].results if v in read]


def arrays(graph: Graph) -> list[Elements]:
    """The outermost arrays with more than three elements that are alike, each called once."""
    calls = graph.calls
    outer: dict[int, int] = {-1: -1}
    for at, call in enumerate(calls):
        above = outer[call.within]
        outer[at] = above if above >= 0 else at if call.path.endswith("]") else -1
    ops: dict[int, list[int]] = {}
    for op in graph.ops:
        if outer[op.within] >= 0:
            ops.setdefault(outer[op.within], []).append(op.id)
    rows: dict[tuple[int, str], list[int]] = {}
    for at in ops:
        rows.setdefault((calls[at].within, calls[at].path.rpartition("[")[0]), []).append(at)
    found = (
        Elements(tuple(calls[at].path for at in row), tuple(tuple(ops[at]) for at in row)) for row in rows.values()
    )
    return [array for array in found if len(array.paths) > 3 and _alike(graph, array)]


def _alike(graph: Graph, array: Elements) -> bool:
    """Whether layers from the second on are the same, and only the last is read from outside."""
    if len({*array.paths}) < len(array.paths) or len({len(mine) for mine in array.ops}) > 1:
        return False
    at = {op: (n, i) for n, mine in enumerate(array.ops) for i, op in enumerate(mine)}
    last = len(array.paths) - 1
    for op in graph.ops:
        for value in op.operands if op.id not in at else ():
            if at.get(graph.producers.get(value, -1), (last, 0))[0] != last:
                return False
    rows = [_row(graph, array, n, at) for n in range(1, len(array.paths))]
    return all(row == rows[0] and row is not None for row in rows)


def _row(graph: Graph, array: Elements, n: int, at: Mapping[int, tuple[int, int]]) -> list[object] | None:
    """The operators of a layer, as seen from it; None where it reads what is further back."""
    row = list[object]()
    for id_ in array.ops[n]:
        op = graph.ops[id_]
        reads = list[object]()
        for value in op.operands:
            producer, path = graph.producers.get(value, -1), graph.values[value].path
            if producer in at:
                layer, i = at[producer]
                if n - layer not in (0, 1):
                    return None
                reads.append((n - layer, i, graph.ops[producer].results.index(value)))
            elif graph.values[value].kind in LEAF and path.startswith(array.paths[n]):
                reads.append(path.removeprefix(array.paths[n]))
            else:
                reads.append(value)
        shapes = [(v.type.shape, v.type.dtype) for v in map(graph.values.__getitem__, (*op.operands, *op.results))]
        row.append((op.operator, repr(dict(op.attrs)), op.section, op.implied, reads, shapes))
    return row


def cut(program: CheckedProgram, found: Sequence[Elements], left: int) -> CheckedProgram:
    """The program with the first `left` layers of each array."""
    graph = program.graph
    gone = {op for array in found for mine in array.ops[left:] for op in mine}
    instead: dict[int, int] = {}
    for array in found:
        for old, new in zip(array.ops[-1], array.ops[left - 1], strict=True):
            instead.update(zip(graph.ops[old].results, graph.ops[new].results, strict=True))
    kept = [_reading(op, instead) for op in graph.ops if op.id not in gone]
    read = {v for op in kept for v in op.operands}
    lost = {v for op in graph.ops if op.id in gone for v in op.operands if graph.values[v].kind in LEAF} - read
    dead = lost | {v for op in gone for v in graph.ops[op].results}
    number = {v.id: at for at, v in enumerate(v for v in graph.values if v.id not in dead)}
    prefixes = tuple(path for array in found for path in array.paths[left:])
    made = _numbered(graph, kept, number, instead, prefixes)
    training = _training(program.training, number) if program.training is not None else None
    return replace(program, graph=made, training=training)


def _reading(op: Op, instead: Mapping[int, int]) -> Op:
    operands = tuple(instead.get(v, v) for v in op.operands)
    return op if operands == op.operands else replace(op, operands=operands)


def _below(path: str, prefixes: tuple[str, ...]) -> bool:
    return any(path.startswith(p) and path[len(p) : len(p) + 1] in ("", ".", ":", "[") for p in prefixes)


def _numbered(
    graph: Graph, kept: Sequence[Op], number: Mapping[int, int], instead: Mapping[int, int], prefixes: tuple[str, ...]
) -> Graph:
    """The graph of what is left, with its own numbers."""

    def at(value: int) -> int:
        return number[instead.get(value, value)]

    values = tuple(replace(graph.values[old], id=new) for old, new in number.items())
    calls = [at for at, call in enumerate(graph.calls) if not _below(call.path, prefixes)]
    of = {-1: -1, **{old: new for new, old in enumerate(calls)}}
    ops = tuple(
        replace(op, id=n, operands=tuple(map(at, op.operands)), results=tuple(map(at, op.results)),
                within=of[op.within])
        for n, op in enumerate(kept)
    )  # fmt: skip
    addresses = {
        path: tuple(dict.fromkeys(at(v) for v in ids if instead.get(v, v) in number))
        for path, ids in graph.addresses.items()
        if not _below(path, prefixes)
    }
    ids = {kind: tuple(v.id for v in values if v.kind is kind) for kind in (Kind.DATA, Kind.PARAM, Kind.STATE)}
    return replace(
        graph, values=values, ops=ops, data=ids[Kind.DATA], params=ids[Kind.PARAM], states=ids[Kind.STATE],
        loss=at(graph.loss) if graph.loss is not None else None,
        metrics={name: at(v) for name, v in graph.metrics.items()}, addresses=addresses,
        declared=tuple(path for path in graph.declared if not _below(path, prefixes)),
        dims={name: dims for name, dims in graph.dims.items() if not _below(name, prefixes)},
        producers={v: op.id for op in ops for v in op.results},
        calls=tuple(
            replace(graph.calls[old], within=of[graph.calls[old].within],
                    arguments={at(v): n for v, n in graph.calls[old].arguments.items() if instead.get(v, v) in number})
            for old in calls
        ),
    )  # fmt: skip


def _training(training: Training, number: Mapping[int, int]) -> Training:
    settings = tuple(
        replace(setting, params=tuple(number[v] for v in setting.params if v in number))
        for setting in training.optimizers
    )
    return replace(training, optimizers=settings)
