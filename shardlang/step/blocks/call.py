"""Calls of layers as a plan has them, and how what is in a layer is called from there.

Which steps are of which call is said by tree.py, and which calls are the same by blocks.py."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, LayerCall
from shardlang.ops.families.internal import TRANSFER
from shardlang.paths.patterns import indexes
from shardlang.plan.plan import Step
from shardlang.plan.reads import Form

ROOT = -1
_STAGE = re.compile(r"(@\d+)+$")
_CALL = re.compile(r"#\d+")


@dataclass(frozen=True)
class BlockCall:
    """One call of a layer, with what it computes in order.

    path: of the layer ("" for the model of `train`, and for the root, which is `train` itself).
    model: its name. reads: forms that are made outside of it, or are parameters of other layers, in
    the order of first use. gives: forms that are read outside of it. block: calls with the same
    number are the same but for their paths. region: the recompute group that this call is
    the whole of; -1 for none. call: index into `Graph.calls`."""

    path: str
    model: str
    items: tuple[Step | BlockCall, ...]
    reads: tuple[Form, ...]
    gives: tuple[Form, ...]
    block: int
    region: int = -1
    call: int = ROOT

    @cached_property
    def array(self) -> tuple[str, range] | None:
        """`encoder.blocks[3]` -> ("encoder.blocks", range(3, 4)); None for what is no layer of an
        array."""
        array, bracket, index = self.path[:-1].rpartition("[")
        return (array, indexes(index)) if bracket and self.path[-1] == "]" else None

    @property
    def times(self) -> int:
        """How many calls it stands for: those of a run."""
        return len(self.array[1]) if self.array is not None else 1

    def steps(self) -> Iterator[Step]:
        """All steps, those of inner calls too."""
        for item in self.items:
            if isinstance(item, BlockCall):
                yield from item.steps()
            else:
                yield item


def runs(items: Sequence[Step | BlockCall]) -> list[Step | tuple[BlockCall, ...]]:
    """The items, with neighbours of an array that are the same block joined; a call alone is a
    run of one."""
    found: list[Step | list[BlockCall]] = []
    for item in items:
        last = found[-1] if found else None
        if not isinstance(item, BlockCall):
            found.append(item)
        elif isinstance(last, list) and _follows(last[-1], item):
            last.append(item)
        else:
            found.append([item])
    return [tuple(item) if isinstance(item, list) else item for item in found]


def _follows(before: BlockCall, call: BlockCall) -> bool:
    if before.block != call.block or (before.region < 0) != (call.region < 0):
        return False
    first, second = before.array, call.array
    return first is not None and second is not None and (first[0], first[1].stop) == (second[0], second[1].start)


def is_below(path: str, layer: str) -> bool:
    """Whether a path is of something in a layer; all is in the root."""
    return not layer or (path.startswith(layer) and path[len(layer) : len(layer) + 1] in (".", "["))


def origin(graph: Graph, value: int) -> int:
    """The value that one stands for: it may have been handed on from other stages."""
    producer = graph.producers.get(value)
    while producer is not None and graph.ops[producer].operator == TRANSFER:
        value = graph.ops[producer].operands[0]
        producer = graph.producers.get(value)
    return value


def without_stage(path: str) -> str:
    """A path without what is added to it where a value stands for that of another stage."""
    return _STAGE.sub("", path) if "@" in path else path


def without_call(path: str) -> str:
    """A path without the number of the call of a layer that it is of."""
    return _CALL.sub("", path) if "#" in path else path


def called_as(graph: Graph, value: int, made: LayerCall | None) -> str:
    """The path of a value as a call of a layer sees it (None: as `train` does): the formal that
    it is given as, or its path from the layer; the last part alone of what is of another layer,
    such as the cast of an argument that mixed precision needs."""
    value = origin(graph, value)
    formal = made.arguments.get(value) if made is not None else None
    path = without_stage(graph.values[value].path)
    if formal is not None or made is None or is_below(path, made.path):
        return formal or relative(path, made.path if made is not None else "")
    producer = graph.producers.get(value)
    if producer is None or not graph.ops[producer].implied:
        return path.rpartition(".")[2]
    inner = called_as(graph, graph.ops[producer].operands[0], made).rpartition(".")[2]
    return f"{inner}:{path.rpartition('.')[2].rpartition(':')[2]}"


def relative(path: str, layer: str) -> str:
    """A path from a layer that it is in; whole where it is not in it."""
    return path[len(layer) :].removeprefix(".") if layer and is_below(path, layer) else path
