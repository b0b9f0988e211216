"""`loss at SELECTOR = ..`: several losses, each with the parameters that it trains -> one loss,
their sum, from which each parameter gets the gradient of its own loss alone.

A value that depends on the parameters of one loss only is computed once; another loss reads it
through `detach`. A value that depends on those of several is computed for each loss that needs it,
with the parameters of the others detached: that is what a loop by hand does, which judges made
images twice. Copies are further calls of their layers, so they draw random numbers of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from shardlang.check.context import Frame
from shardlang.check.graph.drafts import OpDraft
from shardlang.check.model.operators import infer, too_many_operators
from shardlang.check.selectors import EVERYWHERE, Specificity
from shardlang.check.train.frozen import covered
from shardlang.check.values import UNKNOWN, Tensor
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph
from shardlang.ops.declaration import REGISTRY, SYMBOLS, Precision
from shardlang.ops.families.shapes import DETACH
from shardlang.paths.patterns import SingleLayers
from shardlang.sources.source import Span
from shardlang.syntax import ast

# The call of a layer (index into `Graph.calls`) and the statement that read a value.
Reader = tuple[int, Span | None]
LOSSES_LIMIT = 32  # each computes again what it shares with others


def trained_by(losses: Sequence[ast.Setting], graph: Graph, frozen: set[int], frame: Frame) -> list[set[int]]:
    """The parameters of each loss: the most specific selector decides; a loss without one has the
    rest."""
    sink = frame.context.sink
    if len(losses) > LOSSES_LIMIT:
        sink.report(
            "SH217", f"the program has {len(losses)} losses, more than {LOSSES_LIMIT}", losses[LOSSES_LIMIT].span,
            "one too many", help="add those that train the same parameters: `loss at SELECTOR = first + second`",
        )  # fmt: skip
        return [set() for _ in losses]
    best: dict[int, tuple[Specificity, int]] = {}
    for number, setting in enumerate(losses):
        everywhere = dict.fromkeys(graph.params, EVERYWHERE)
        for param, rank in (covered(setting, graph, sink, "train") if setting.at else everywhere).items():
            before = best.get(param)
            if before is not None and before[0] == rank:
                sink.report(
                    "SH238", f"two losses train `{graph.values[param].path}`", setting.span, "this one",
                    labels=[(losses[before[1]].span, "and this one are equally specific")],
                    help="narrow one of the selectors",
                )  # fmt: skip
                return [set() for _ in losses]
            if before is None or rank > before[0]:
                best[param] = rank, number
    found = [{p for p, (_, n) in best.items() if n == number} - frozen for number in range(len(losses))]
    for setting, params in zip(losses, found, strict=True):
        if not params and not sink.failed:
            sink.report("SH238", "this loss trains no parameter", setting.span, "none is left for it")
    return found


# A parameter that is detached keeps its type: what reads it has been converted where that is due.
_AS_IT_IS = replace(REGISTRY[DETACH], precision=Precision.WRITTEN)


@dataclass(eq=False)
class Apart:
    """The operators of a program in a new order, with what is computed again for some losses.

    trains: per loss its parameters. `depends`: per value the losses whose parameters it depends on.
    `owner`: the loss that an operator which depends on several is first computed for. `copies`:
    (value, loss) -> the value there. `order`: operators as they are placed; `calls`: (call of a
    layer, loss) -> the copied call. `numbers`: the last call of each layer; `further`: those of
    copies. `counts`: how often a value is detached."""

    frame: Frame
    trains: Sequence[set[int]]
    depends: list[frozenset[int]] = field(default_factory=list)
    owner: dict[int, int] = field(default_factory=dict)
    copies: dict[tuple[int, int], int] = field(default_factory=dict)
    detached: dict[tuple[int, int], int] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    order: list[int] = field(default_factory=list)
    calls: dict[tuple[int, int], int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    further: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.build = self.frame.context.build
        self.given = [op.operands for op in self.build.ops]
        self.depends = _depends(self)
        for op in self.build.ops:
            self.numbers[self._layer(op)] = max(op.call, self.numbers.get(self._layer(op), 0))

    def of(self, losses: Sequence[int]) -> list[int]:
        """The value of each loss, its gradient reaching its own parameters alone."""
        for loss, value in enumerate(losses):
            for op in self._mixed(value, loss):
                self.owner.setdefault(op, loss)
        for op in range(len(self.given)):
            self._place(op)
        return [self._version(value, loss, (-1, self.build.statement)) for loss, value in enumerate(losses)]

    def _place(self, op: int) -> None:
        """An operator in its place, behind what is computed again for it."""
        draft, loss = self.build.ops[op], self.owner.get(op)
        if loss is not None:
            draft.operands = tuple([self._version(v, loss, (draft.within, draft.statement)) for v in self.given[op]])
        self.order.append(op)

    def _version(self, value: int, loss: int, reader: Reader) -> int:
        """A value as a loss reads it."""
        if value < 0 or not self.depends[value]:
            return value
        if loss not in self.depends[value]:
            return self._detach(value, reader)
        if self.depends[value] == {loss}:
            return value
        producer = self.build.values[value].producer
        if self.owner[producer] == loss:
            return value
        if (value, loss) not in self.copies:
            for op in sorted(self._mixed(value, loss)):
                if self.owner[op] != loss and (self.build.ops[op].results[0], loss) not in self.copies:
                    self._copy(op, loss)
        return self.copies[value, loss]

    def _mixed(self, value: int, loss: int) -> Iterator[int]:
        """The operators on the way to a value that depend on the parameters of this loss and of
        another one."""
        seen: set[int] = set()
        waiting = [value]
        while waiting:
            at = waiting.pop()
            if at < 0 or loss not in self.depends[at] or self.depends[at] == {loss} or (at, loss) in self.copies:
                continue
            producer = self.build.values[at].producer
            if producer not in seen:
                seen.add(producer)
                yield producer
                waiting += self.given[producer]

    def _copy(self, op: int, loss: int) -> None:
        """The operator once more, as a further call of its layer."""
        build, draft = self.build, self.build.ops[op]
        if too_many_operators(len(build.ops) + 1, draft.span, self.frame):
            self.copies.update({(value, loss): value for value in draft.results})
            return
        within = self._call(draft.within, loss)
        operands = tuple([self._version(v, loss, (within, draft.statement)) for v in self.given[op]])
        call = self._number(draft, loss)
        made, first = len(build.ops), len(build.values)
        results = tuple(range(first, first + len(draft.results)))
        build.ops.append(replace(draft, operands=operands, results=results, call=call, within=within))
        for old, new in zip(draft.results, results, strict=True):
            value = build.values[old]
            path = f"{_parts(value.path)[0]}#{call}"
            build.values.append(replace(value, path=path, producer=made))
            self.depends.append(frozenset((loss,)))
            self.copies[old, loss] = new
        self.order.append(made)

    def _number(self, op: OpDraft, loss: int) -> int:
        """The number of the further call that a loss needs of an operator's layer, for this
        call."""
        layer = self._layer(op)
        if (layer, op.call, loss) not in self.further:
            self.numbers[layer] = self.further[layer, op.call, loss] = self.numbers[layer] + 1
        return self.further[layer, op.call, loss]

    def _detach(self, value: int, reader: Reader) -> int:
        """A value without its gradient, once in each call of a layer."""
        within, statement = reader
        if (value, within) not in self.detached:
            build, draft = self.build, self.build.values[value]
            tensor = Tensor(value, draft.type, draft.name)
            span = statement or draft.span
            made = infer(_AS_IT_IS, [tensor], [span], names=[draft.name], span=span, frame=self.frame)
            if made is UNKNOWN:  # the program is too large, which is reported
                return value
            op, result = build.ops[-1], build.values[made.id]
            count, self.counts[value] = self.counts[value], self.counts[value] + 1
            path, op.call = _parts(draft.path)
            op.path = f"{path.removesuffix('.return')}:detached{count or ''}"
            result.path = op.path + (f"#{op.call}" if op.call else "")
            result.name, op.within, op.statement = draft.name, within, statement
            self.depends.append(frozenset())
            self.detached[value, within] = made.id
            self.order.append(len(build.ops) - 1)
        return self.detached[value, within]

    def _call(self, call: int, loss: int) -> int:
        """The call of a layer that copies belong to."""
        if call >= 0 and (call, loss) not in self.calls:
            given = self.build.calls[call]
            within = self._call(given.within, loss)
            arguments = {self._argument(v, loss, within): name for v, name in given.arguments.items()}
            self.build.calls.append(replace(given, within=within, arguments=arguments))
            self.calls[call, loss] = len(self.build.calls) - 1
        return self.calls[call, loss] if call >= 0 else -1

    def _argument(self, value: int, loss: int, within: int) -> int:
        """A tensor as it is given to a copied call."""
        mixed = loss in self.depends[value] and self.depends[value] != {loss}
        return self._version(value, loss, (within, self.build.statement)) if mixed else value

    def _layer(self, op: OpDraft) -> str:
        return self.build.calls[op.within].path if op.within >= 0 else ""


def _parts(path: str) -> tuple[str, int]:
    """A value's path without the number of the call of its layer, and that. A cast has the type
    behind it: `a.return#1:bf16`."""
    path, _, rest = path.partition("#")
    call, colon, dtype = rest.partition(":")
    return path + colon + dtype, int(call or 0)


def _depends(apart: Apart) -> list[frozenset[int]]:
    """Per value the losses whose parameters it depends on, so that a gradient flows."""
    build, none = apart.build, frozenset[int]()
    found = [none] * len(build.values)
    for loss, params in enumerate(apart.trains):
        for param in params:
            found[param] = frozenset((loss,))
    for op in build.ops:
        if op.operator.differentiable:
            of = none.union(*(found[v] for v in op.operands if v >= 0))
            for result in op.results if of else ():
                found[result] = of if build.values[result].type.floating else none
    return found


def joined(
    losses: Sequence[tuple[ast.Setting, int]], trains: Sequence[set[int]], frame: Frame
) -> tuple[int, Mapping[int, int]]:
    """The sum of the losses as a new value of the graph, which is put into order: each value behind
    what it is made of. Gives also the new numbers of all values, none after a report. SingleLayers
    instead of runs."""
    if frame.context.runs is not None:
        raise SingleLayers
    build, apart = frame.context.build, Apart(frame, trains)
    frame.ops, build.statement = [], losses[-1][0].span
    values = apart.of([value for _, value in losses])
    first, frame.ops = len(build.ops), []
    total: Any = None
    for (setting, _), value in zip(losses, values, strict=True):
        term = Tensor(value, build.values[value].type, "loss")
        span = setting.value.span
        if total is not None:
            term = infer(SYMBOLS["+", 2], (total, term), (span, span), names=("", ""), span=span, frame=frame)
        if build.full:
            return value, {}
        total = term
    build.close(frame.ops, total.id, "train", "loss", "loss", 0)
    apart.order += range(first, len(build.ops))
    _address_copies(apart)
    made = {v for op in build.ops for v in op.results}
    sources = [v for v in range(len(build.values)) if v not in made]
    ids = build.arrange([*sources, *(v for op in apart.order for v in build.ops[op].results)], apart.order)
    return ids[total.id], ids


def _address_copies(apart: Apart) -> None:
    """Selectors cover copies as they cover further calls of a layer."""
    by_value: dict[int, list[int]] = {}
    for (old, _), new in apart.copies.items():
        by_value.setdefault(old, []).append(new)
    addresses: Mapping[str, tuple[int, ...]] = apart.build.addresses
    apart.build.addresses = {
        path: (*at, *(new for v in at for new in by_value.get(v, ()))) for path, at in addresses.items()
    }
