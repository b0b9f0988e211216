"""The logical graph: values and operators with whole shapes, before any layout. Frozen; made by
check/, read by plan/ and emit/.

Values and operators are numbered in a topological order. Types hold canonical dims (unified,
formals replaced by what they were given), while each operator's factor rule still knows dims apart
as its own model did."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from enum import Enum
from functools import cached_property
from itertools import groupby
from typing import Any

from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.places import PathIndex
from shardlang.ops.declared import DECLARED
from shardlang.ops.rule import FactorRule
from shardlang.paths.patterns import RUN, count
from shardlang.sources.source import Span
from shardlang.types.dim import Dim, TensorType

# A value within a statement: its path, and that of the statement.
_INNER = re.compile(r"(.*):\d+(?:#\d+)?")


InTurn = tuple[int, int]  # a value; of one of a run, the number of its layer within that


class Kind(Enum):
    DATA = "data"  # a field of a batch
    PARAM = "param"  # trained, or frozen
    STATE = "state"  # saved, not trained
    RESULT = "result"  # of an operator
    CONSTANT = "constant"  # a static number used as a tensor of no dims; `GraphValue.constant` holds it


LEAF = frozenset((Kind.DATA, Kind.PARAM, Kind.STATE, Kind.CONSTANT))  # what no operator makes


@dataclass(frozen=True, slots=True)
class Init:
    """How a parameter or state starts: `normal(0.02)` is ("normal", (0.02,)). Kinds: zeros, ones,
    constant(v), normal(std), uniform(low, high), kaiming_uniform(fan_in) and
    xavier_uniform(fan_in, fan_out) with sizes resolved, and given, by `init` alone."""

    kind: str
    args: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphValue:
    """`path` is its address (`encoder.blocks[3].attention.scores`, `conv1.weight`, `train.loss`):
    unique; a value within a statement of several operators gets a path that no user can write
    (`h:1`). `name` is the last part.

    gradient: the loss's gradient flows to it. statement: how many operators its statement holds (1:
    `shard` may name it)."""

    id: int
    kind: Kind
    path: str
    name: str
    type: TensorType
    gradient: bool
    span: Span
    statement: int = 1
    init: Init | None = None
    constant: float | int | None = None
    bound: int | None = None  # DATA of integers: exclusive upper bound, where known
    ignored: tuple[int, ...] = ()  # DATA of integers: numbers outside of the bound that all uses leave out

    @property
    def times(self) -> int:
        """How many values it stands for: those of the layers of a run."""
        return count(self.path)


@dataclass(frozen=True, slots=True)
class LayerCall:
    """One call of a layer: its path (`encoder.blocks[3]`, "" for the model of `train`), the name of
    its model and where that is declared, the call that it is made in (index into `Graph.calls`; -1:
    `train`), the tensors given to it (value id -> formal), and the statement that calls it."""

    path: str
    model: str
    span: Span
    within: int
    arguments: Mapping[int, str]
    statement: Span | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One operator. `path` is the address of what it computes (its random key), `call` the number
    of the call of the layer it stands in, `within` that call (index into `Graph.calls`; -1: none),
    `statement` the whole statement. `section`: "loss" (the loss needs it) or "metric" (only metrics
    do; computed without gradient). `implied`: a cast that mixed precision needs, which no statement
    writes."""

    id: int
    operator: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attrs: Mapping[str, Any]
    rule: FactorRule
    span: Span
    path: str
    call: int
    section: str = "loss"
    within: int = -1
    statement: Span | None = None
    implied: bool = False

    @property
    def called(self) -> str:
        """The operator as a program calls it: one that a file declares by the name it has there."""
        declaration = self.attrs.get(DECLARED)
        return self.operator if declaration is None else str(declaration.name)


@dataclass(frozen=True)
class Graph:
    """`addresses`: every path a selector may name -> the values there (a layer called twice has
    several; the value a call returns is also under the name it was assigned to). `declared`: every
    declared path, members that a static `if` removed included, layers with their index
    (`encoder.blocks[3]`) too.
    `dims`: names a strategy may use -> dims: file-level and root-model dims by name, others by path
    (`fc1.out`). `data`: the DATA values, `loss`: value id (a model without `train` has none),
    `metrics`: name -> value id."""

    values: tuple[GraphValue, ...]
    ops: tuple[Op, ...]
    data: tuple[int, ...]
    params: tuple[int, ...]
    states: tuple[int, ...]
    loss: int | None
    metrics: Mapping[str, int]
    addresses: Mapping[str, tuple[int, ...]]
    declared: tuple[str, ...]
    dims: Mapping[str, tuple[Dim, ...]]
    batch: Dim | None = None  # the dim that the data source batches over
    producers: Mapping[int, int] = field(default_factory=dict)  # value id -> op id
    calls: tuple[LayerCall, ...] = ()  # of layers, each after the call that it is made in

    @cached_property
    def in_runs(self) -> bool:
        """Whether runs of equal layers are told once, at `blocks[3-123]`."""
        return any(count(call.path) > 1 for call in self.calls)

    def times(self, op: Op) -> int:
        """How many operators one stands for: those of the layers of a run."""
        return count(self.calls[op.within].path) if op.within >= 0 else 1

    def in_turns(self, values: Iterable[int]) -> Iterator[InTurn]:
        """Values layer by layer, also those of runs."""
        for run, group in groupby(values, lambda value: _run_of(self.values[value].path)):
            mine = list(group)
            yield from ((value, turn) for turn in range(count(run)) for value in mine)

    @remembered
    def places(self) -> PathIndex:
        """The paths of `addresses`, to find those that a selector covers."""
        return PathIndex(self.addresses)

    @remembered
    def declared_places(self) -> PathIndex:
        """The paths of `declared`, to find whether a selector covers any."""
        return PathIndex(self.declared)

    @remembered
    def within_statements(self) -> Mapping[str, list[int]]:
        """Path of a statement -> the values within it (`h:1`, `h:2` of `h`), which have no path."""
        found: dict[str, list[int]] = {}
        for value in self.values:
            inner = _INNER.fullmatch(value.path)
            if inner is not None:
                found.setdefault(inner[1], []).append(value.id)
        return found

    def made_of(self, *kinds: Kind) -> set[int]:
        """The values of these kinds, and those that are computed from such alone."""
        found = {v.id for v in self.values if v.kind in kinds}
        for op in self.ops:
            if found.issuperset(op.operands):
                found.update(op.results)
        return found

    def shown(self, value: int) -> str:
        """A value as its user calls it: its shortest written path, without numbers of calls."""
        written = [path for path, ids in self.addresses.items() if value in ids and not path.endswith("return")]
        path = min(written, key=lambda p: (p.startswith("train."), len(p)), default=self.values[value].path)
        return path.replace("train.metric:", "train.").partition("#")[0].partition(":")[0]

    def frozen(self, value: int) -> bool:
        """Whether a value is a parameter that never changes: the loss has no gradient for it."""
        return self.values[value].kind is Kind.PARAM and self.loss is not None and not self.values[value].gradient


def _run_of(path: str) -> str:
    """The run of layers that a path is in; "" for none."""
    found = RUN.search(path) if "-" in path else None
    return path[: found.end()] if found is not None else ""
