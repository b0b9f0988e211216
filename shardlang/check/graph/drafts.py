"""The graph while it grows: values and operators as drafts, named when their statement ends.

Frozen graph values are made from the drafts by `finish`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Init, Kind, LayerCall
from shardlang.ops.declaration import Operator
from shardlang.ops.rule import FactorRule
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import TensorType


@dataclass(slots=True, eq=False)
class ValueDraft:
    kind: Kind
    path: str
    name: str
    type: TensorType
    span: Span
    statement: int = 1
    init: Init | None = None
    constant: float | int | None = None
    bound: int | None = None
    producer: int = -1


@dataclass(slots=True, eq=False)
class OpDraft:
    operator: Operator
    operands: tuple[int, ...]
    results: tuple[int, ...]
    attrs: Mapping[str, Any]
    rule: FactorRule
    span: Span
    path: str = ""
    call: int = 0
    implied: bool = False  # a cast that mixed precision needs: no part of what was written
    within: int = -1
    statement: Span | None = None


@dataclass
class GraphBuilder:
    """`operators_limit` bounds the graph, so that a slip in a count ends in a diagnostic and not in
    a full memory. `paths`: all that was addressed (path, value) or declared (path, -1), in order.
    `within`: the call of a layer (index into `calls`) that operators are now added to; -1: none.
    `statement`: that which is now evaluated. `figures`: values that no operator makes, as the run
    knows them after a step -> their names."""

    values: list[ValueDraft] = field(default_factory=list)
    ops: list[OpDraft] = field(default_factory=list)
    addresses: dict[str, tuple[int, ...]] = field(default_factory=dict)
    declared: dict[str, None] = field(default_factory=dict)
    constants: dict[tuple[str, str], int] = field(default_factory=dict)
    dims: dict[str, Any] = field(default_factory=dict)
    full: bool = False
    operators_limit: int = 20_000
    calls: list[LayerCall] = field(default_factory=list)
    paths: list[tuple[str, int]] = field(default_factory=list)
    within: int = -1
    statement: Span | None = None
    figures: dict[int, str] = field(default_factory=dict)

    def add(self, draft: ValueDraft) -> int:
        self.values.append(draft)
        return len(self.values) - 1

    def named(self, draft: ValueDraft) -> int:
        """Add a value that has its path already (a parameter, a state, a field)."""
        id = self.add(draft)
        self.address(draft.path, id)
        return id

    def field(self, path: str, name: str, type: TensorType, bound: int | None, span: Span) -> int:
        """Add a field of the data source."""
        return self.named(ValueDraft(Kind.DATA, path, name, type, span, bound=bound))

    def address(self, path: str, id: int) -> None:
        self.addresses[path] = (*self.addresses.get(path, ()), id)
        self.declared[path] = None
        self.paths.append((path, id))

    def declare(self, path: str) -> None:
        """Declare a path at which there is no value."""
        self.declared[path] = None
        self.paths.append((path, -1))

    def constant(self, number: float | int, dtype: str, span: Span) -> int:
        """The value of a static number. Numbers written alike are one value; 1 and 1.0 are two."""
        key = (repr(number), dtype)
        if key not in self.constants:
            path = f"constant:{len(self.constants)}"
            draft = ValueDraft(Kind.CONSTANT, path, "constant", TensorType(dtype, ()), span, constant=number)
            self.constants[key] = self.add(draft)
        return self.constants[key]

    @contextmanager
    def calling(self, path: str, model: ast.Name, arguments: Mapping[int, str]) -> Iterator[None]:
        """Drafts added within belong to this call of a layer."""
        before, statement = self.within, self.statement
        self.calls.append(LayerCall(path, model.text, model.span, before, arguments, statement))
        self.within = len(self.calls) - 1
        yield
        self.within, self.statement = before, statement

    def figure(self, name: str, type: TensorType, span: Span) -> int:
        """The value of a figure of the step."""
        known = next((value for value, known in self.figures.items() if known == name), None)
        if known is None:
            known = self.add(ValueDraft(Kind.RESULT, name, name, type, span))
            self.figures[known] = name
        return known

    def operate(
        self, operator: Operator, operands: tuple[int, ...], types: tuple[TensorType, ...], attrs: Mapping[str, Any],
        rule: FactorRule, span: Span,
    ) -> int:  # fmt: skip
        """Add an operator; gives the id of its op draft."""
        first = len(self.values)
        results = tuple(range(first, first + len(types)))
        at = len(self.ops)
        for type in types:
            self.values.append(ValueDraft(Kind.RESULT, "", "", type, span, producer=at))
        draft = OpDraft(operator, operands, results, attrs, rule, span, within=self.within, statement=self.statement)
        self.ops.append(draft)
        return at

    def close(
        self, ops: list[int], result: int, prefix: str, address: str, name: str, call: int,
        others: Sequence[tuple[str, int]] = (),
    ) -> None:  # fmt: skip
        """Name what `ops` (the operators of one statement, without those of layers it calls)
        computed.

        The statement's own value gets the statement's path, values on the way `path:1`, `path:2`;
        later calls of the same layer add `#call`, which no user can write. `result`: the value that
        the statement names, or -1; `others`: further ones that it names, with their addresses."""
        at_path = f"{prefix}." if prefix else ""
        path = at_path + address
        named = {id: (at_path + other, other) for other, id in others if id >= 0} | {result: (path, name)}
        suffix = f"#{call}" if call else ""
        written = [at for at in ops if not self.ops[at].implied]
        step = 0
        for at in ops:
            op = self.ops[at]
            op.call = call
            own = next((named[id] for id in op.results if id in named), None)
            if own is not None:
                op.path = own[0]
            elif not op.implied:
                step += 1
                op.path = f"{path}:{step}"
            for index, id in enumerate(op.results):
                value = self.values[id]
                value.path = op.path + (f":{index}" if index else "") + suffix
                value.name = named[id][1] if id in named else name
                value.statement = len(written)
        for place, id in ((address, result), *others):
            if id >= 0:
                self.address(at_path + place, id)
            else:
                self.declare(at_path + place)

    def name_casts(self) -> None:
        """Name the casts that mixed precision needs after their operands, which may be of
        statements that ended later."""
        for op in self.ops:
            if op.implied:
                made = self.values[op.results[0]]
                op.path = made.path = f"{self.values[op.operands[0]].path}:{made.type.dtype}"

    def needed(self, values: Iterable[int]) -> set[int]:
        """The operators that values are computed by."""
        found: set[int] = set()
        waiting = list(values)
        while waiting:
            producer = self.values[waiting.pop()].producer
            if producer >= 0 and producer not in found:
                found.add(producer)
                waiting += [o for o in self.ops[producer].operands if o >= 0]
        return found

    def keep(self, wanted: Sequence[int]) -> list[int]:
        """Leaves out the operators that no value of `wanted` needs, with what they make: results of
        a call of which only others are used. Gives the new numbers of `wanted`."""
        needed = self.needed(wanted)
        if len(needed) == len(self.ops) and not self.figures:
            return list(wanted)
        left = sorted(needed)
        read = {o for at in left for o in self.ops[at].operands}
        made = {r for at in left for r in self.ops[at].results}
        sources = {i for i, v in enumerate(self.values) if v.kind not in (Kind.RESULT, Kind.CONSTANT)}
        ids = self.arrange(sorted(read - {-1} | made | sources), left)
        return [ids[v] for v in wanted]

    def arrange(self, values: Sequence[int], ops: Sequence[int]) -> Mapping[int, int]:
        """Puts values and operators into this order and leaves out all others; gives the new
        numbers of the values."""
        ids = {old: new for new, old in enumerate(values)}
        self.values = [self.values[old] for old in values]
        self.ops = [self.ops[at] for at in ops]
        for at, op in enumerate(self.ops):
            op.operands = tuple([ids.get(o, -1) for o in op.operands])
            op.results = tuple([ids[r] for r in op.results])
            for result in op.results:
                self.values[result].producer = at
        kept = {path: tuple([ids[v] for v in at if v in ids]) for path, at in self.addresses.items()}
        self.addresses = {path: at for path, at in kept.items() if at}
        self.calls = [
            replace(call, arguments={ids[v]: name for v, name in call.arguments.items() if v in ids})
            for call in self.calls
        ]
        return ids
