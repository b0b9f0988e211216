"""A plan -> the text of its program as the page shows it: each file with its colours; beside each
statement the layouts of its result, what a step sends for it, and which layers and stages run
it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardlang.cost.items import class_of, layer_of
from shardlang.folds.traffic import sent
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from shardlang.syntax.tables import RESERVED, tables
from shardlang.syntax.tokens import NEWLINE, Token, TokenStream
from shardlang.views.statements import LaidOut, PlannedStatement, statements

Entry = dict[str, Any]
# Kinds of what takes time, as the bars have them.
PRODUCTS, ATTENTION, STREAMS, UPDATE = "products", "attention", "memory-bound operators", "update"
# Of compute that no operator has as its own.
SLOWER = "compute that collectives slow down"
# Fewer seconds than this are what is left of adding up.
LEAST = 1e-9
# A word is a name where one of these comes next, but for words that no name is like.
_AFTER_NAMES = frozenset(("ASSIGN", "LPAR", "COMMA", "RPAR", "COLON", "DOT", "RSQB"))
_NO_NAMES = frozenset((*RESERVED, "FORWARD", "AUTO", "BALANCED"))
_COMMENT = re.compile(r"#[^\n]*")


def over(collective: str, axes: Iterable[str]) -> str:
    """The collective that sends something, as all of the page calls it: `all-gather over dp,
    cp`."""
    return f"{collective.replace('_', '-')} over {', '.join(axes)}"


def kind_of(operator: str, layer: str) -> str:
    """The kind of work that an operator is."""
    known = REGISTRY.get(operator)
    if known is None:
        return UPDATE if layer == "step" else STREAMS
    return PRODUCTS if known.product is not None else ATTENTION if known.attends else STREAMS


def files_of(plan: Plan) -> dict[str, Source]:
    """The file of the program, then those of libraries in which operators stand, by name."""
    own = plan.program.source
    return {own.name: own} | {op.span.source.name: op.span.source for op in plan.graph.ops}


def shown_text(source: Source) -> Entry:
    """Its lines; and of each its colours: flat triples of a column, a length and a class."""
    lines = source.text.split("\n")
    found: list[list[int | str]] = [[] for _ in lines]
    for start, end, kind in _coloured(source):
        line, column = source.position(start)
        found[line - 1] += [column - 1, end - start, kind]
    return {"lines": [line.rstrip("\r") for line in lines], "colours": found}


def _coloured(source: Source) -> Iterator[tuple[int, int, str]]:
    """Keywords (k), numbers and texts (n), comments (c)."""
    text, last = source.text, 0
    every = list(TokenStream(source, tables()))
    for token, following in zip(every, [*every[1:], every[-1]], strict=True):
        kind, start, end = token
        if kind == NEWLINE:  # it has the comments of the lines behind it
            continue
        yield from ((*found.span(), "c") for found in _COMMENT.finditer(text, last, start))
        last = end
        if kind in ("NUMBER", "STRING"):
            yield start, end, "n"
        elif _is_keyword(text, token, following):
            yield start, end, "k"


def _is_keyword(text: str, token: Token, following: Token) -> bool:
    kind, start, end = token
    if tables().keywords.get(text[start:end]) != kind:
        return False
    called = following[0] in _AFTER_NAMES and (following[0] != "LPAR" or following[1] == end)
    return kind in _NO_NAMES or not called


def beside(plan: Plan, seconds: Sequence[Mapping[str, float]] | None) -> dict[str, list[Entry]]:
    """The statements of each file, in the order of the text, which are numbered through all files.
    seconds: of a step by class of operators and values, at each coordinate along the axis of the
    stages; None where they are not known."""
    found, shared = dict[str, list[Entry]](), dict[int, list[int]]()
    rows = list[tuple[Entry, PlannedStatement]]()
    for name, source in files_of(plan).items():
        known = statements(plan, name)
        mine = [(_beside(plan, source, known[place], seconds), known[place]) for place in sorted(known)]
        rows += mine
        found[name] = [entry for entry, _ in mine]
    for number, (_, of) in enumerate(rows):
        for op in of.ops:
            shared.setdefault(op, []).append(number)
    for entry, of in rows:
        entry["with"] = sorted({number for op in of.ops for number in shared[op]})
    return found


def _beside(
    plan: Plan, source: Source, of: PlannedStatement, seconds: Sequence[Mapping[str, float]] | None
) -> Entry:  # fmt: skip
    ops = [plan.graph.ops[op] for op in of.ops]
    classes = {class_of(op.path) for op in ops} | {
        class_of(plan.graph.values[v].path) for op in ops for v in op.results
    }
    start, end = of.place
    return {
        "lines": [source.position(start)[0], source.position(end)[0]],
        "tensors": [_tensor(plan, tensor, made) for tensor, made in of.results.items()],
        "sent": [[over(each.collective, each.axes), each.forward_bytes, each.backward_bytes] for each in of.sent],
        "seconds": max(sum(at.get(each, 0.0) for each in classes) for at in seconds) if seconds is not None else None,
        "layers": sorted({layer_of(op.path) for op in ops}),
        # The statements that share operators: those of a library with the one that calls it.
        "with": [],
        "kinds": sorted({kind_of(op.operator, "") for op in ops}),
        "stages": runs(plan.stage(op) for op in of.ops) if plan.pipeline is not None else None,
    }  # fmt: skip


def _tensor(plan: Plan, tensor: LaidOut, made: Iterable[int]) -> Entry:
    """stages: of the operators that make it."""
    return {
        "type": tensor.type, "cuts": list(tensor.cuts), "shape": list(tensor.shape), "bytes": tensor.bytes,
        "axes": [list(axes) for axes in tensor.axes], "pending": list(tensor.pending), "mesh": tensor.mesh,
        "stages": runs(map(plan.stage, made)) if plan.pipeline is not None else None,
    }  # fmt: skip


def runs(numbers: Iterable[int]) -> list[list[int]]:
    """1, 2, 3, 7 -> [1, 3], [7, 7]."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def by_layer(plan: Plan) -> dict[str, Entry]:
    """Per class of layers what is sent for it, in bytes of a step, and the stages that run it."""
    found: dict[str, dict[str, int]] = {}
    stages: dict[str, list[int]] = {}
    for op in plan.graph.ops:
        stages.setdefault(layer_of(op.path), []).append(plan.stage(op.id))
    for each in sent(plan):
        mine = found.setdefault(layer_of(each.path), {})
        stages.setdefault(layer_of(each.path), []).extend(each.stages)
        for kind, size in zip(each.collectives, (each.forward_bytes, each.backward_bytes), strict=True):
            if size:
                mine[over(kind, each.axes)] = mine.get(over(kind, each.axes), 0) + size
    return {name: {"sent": found.get(name, {}), "stages": runs(stages[name])} for name in stages}
