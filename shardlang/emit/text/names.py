"""Paths and names of the user -> Python identifiers, one per form of a value, none taken twice.

A value has a form as produced and one per conversion. Where the produced form is pending and one
converted form serves all readers, that one bears the user's name and the other says why it exists
(`h_pending`)."""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field

from shardlang.emit.text.paths import readable_path, readable_within, unnumbered
from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import Graph, GraphValue, Kind
from shardlang.ops.python_text import literal
from shardlang.plan.plan import Conversion, MoveKind, Plan
from shardlang.plan.reads import Form, made_form
from shardlang.step.blocks.call import ROOT, called_as, is_below, origin, relative
from shardlang.step.phases import summed_in_time
from shardlang.types.layout import Layout

_AT = re.compile(r"\[\d+\]")
# What a function of the emitted module may not shadow: its imports, its module-level names, and
# builtins in use.
RESERVED = frozenset({
    "F", "torch", "math", "rt", "own", "p", "rows", "totals", "program", "parameters", "states", "forward", "evaluate",
    "finish", "before_microbatch", "before_step", "conclude", "late", "float", "int", "len", "max", "min", "sum",
    "range", "slice", "tuple",
})  # fmt: skip
# What meshes, lists and the files of stages are called.
_FILES = re.compile(r"mesh\d*|stages?\d*|layers|main|schedule")


def identifier(text: str) -> str:
    """The nearest Python identifier: `blocks[3].h:1` -> `blocks_3_h_1`; keywords get an `_`."""
    if text.isascii() and text.isidentifier() and "_" not in (text[0], text[-1]):
        name = text
    else:
        name = re.sub(r"\W+", "_", text.replace("]", "")).strip("_") or "value"
        name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) or name in RESERVED else name


@dataclass(slots=True)
class TakenNames:
    """Names of one function: the first to ask gets the name, later ones `name_2`, `name_3`."""

    names: set[str] = field(default_factory=set)

    def claim(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self.names:
            count += 1
            name = f"{wanted}_{count}"
        self.names.add(name)
        return name

    def first(self, wanted: Sequence[str]) -> str:
        """The first of the names that is free, else the last with a number."""
        return self.claim(next((name for name in wanted if name not in self.names), wanted[-1]))


def attribute(base: str, path: str) -> str:
    """`p`, `blocks[3].fc1.weight` -> the expression that reads it; reserved names are items."""
    for part in path.split(".") if path else ():
        name, bracket, index = part.partition("[")
        base += f".{name}" if is_plain(name) else f"[{literal(name)}]"
        base += bracket + index
    return base


def is_plain(name: str) -> bool:
    """Whether Python has no use of its own for an attribute of this name."""
    return not (keyword.iskeyword(name) or name.startswith("_"))


@dataclass
class Naming:
    """Names for the forms of a plan's values, a function of the emitted program at a time."""

    plan: Plan

    def names(
        self, values: Set[int] | None = None, apart: Set[int] = frozenset(), call: int = ROOT,
        reserved: Iterable[str] = (), formals: Mapping[int, str] | None = None,
    ) -> dict[Form, str]:  # fmt: skip
        """The Python text of each form of each value that the plan reads or makes; of `values`
        alone, if they are given. apart: sums over the microbatches that one function reads beside
        their parts. call: the call of a layer (index into `Graph.calls`) whose function it is, with
        the layer's parameters in `p`. reserved: further names that are taken. formals: values that
        are called as a layer calls what it is given."""
        graph = self.plan.graph
        wanted = {v.id for v in graph.values} if values is None else values
        paths = unnumbered({id: self._path(id, call) for id in sorted(wanted)} | dict(formals or {}))
        short, alike = _short(graph, paths), _alike(self.plan) - apart
        taken = TakenNames({*(mesh.name for mesh in self.plan.meshes), *reserved})
        names: dict[Form, str] = {}
        trees, read = _trees(self.plan), _read_forms(self.plan)
        layer = graph.calls[call].path if call != ROOT else ""
        for value in sorted((graph.values[id] for id in wanted), key=_claim):
            tree = trees.get(value.id, [])
            base = _base_text(value, layer)
            name = short[value.id] if base is None else identifier(relative(value.path, layer))
            here = call == ROOT or is_below(value.path, layer)  # else it is given, in whatever form is read
            main = _main_form(self.plan, value, tree, read.get(value.id, set())) if here else -1
            names.update(
                _value_forms(self.plan, value, name, tree=tree, main=main, taken=taken, alike=alike, base=base)
            )
        return names

    def _path(self, value: int, call: int) -> str:
        """The path that a value is named by in a function."""
        graph = self.plan.graph
        if call == ROOT:
            return readable_path(graph, value)
        formal = graph.calls[call].arguments.get(origin(graph, value))
        path, layer = graph.values[value].path, graph.calls[call].path
        if formal is None and is_below(path, layer):
            return readable_within(graph, value, layer)
        return formal or called_as(graph, value, graph.calls[call]).replace("return", "out")


@remembered
def _alike(plan: Plan) -> set[int]:
    """The conversions whose form is called as what they convert: no line makes a view, nor a sum
    over the microbatches."""
    return {c.id for c in plan.conversions if c.move.kind is MoveKind.VIEW or summed_in_time(plan, c)}


@remembered
def _read_forms(plan: Plan) -> dict[int, set[int]]:
    """Value id -> the conversions that operators read it through."""
    read: dict[int, set[int]] = {}
    for op in plan.ops:
        for use in op.operands:
            if use.conversion >= 0:
                read.setdefault(use.value, set()).add(made_form(plan, use.conversion))
    return read


_RANKS = {Kind.DATA: 0, Kind.RESULT: 1, Kind.PARAM: 2, Kind.STATE: 2, Kind.CONSTANT: 3}


def _claim(value: GraphValue) -> tuple[int, int, int]:
    """Who gets a name first: data, then results of the shortest paths: outermost values keep the
    user's names."""
    return _RANKS[value.kind], value.path.count(".") if value.kind is Kind.RESULT else 0, value.id


def short_names(graph: Graph) -> dict[int, str]:
    """Per value the shortest tail of its path that no other one has, as an identifier.

    `encoder.blocks[3].attention.scores` keeps as much as it needs to be one of a kind."""
    return _short(graph, {value.id: readable_path(graph, value.id) for value in graph.values})


def _short(graph: Graph, paths: Mapping[int, str]) -> dict[int, str]:
    """Per value (of these paths) the shortest tail that no other one has."""
    tails = {id: _tails(path) for id, path in paths.items()}
    named = (tails[id] for id in paths if graph.values[id].kind in (Kind.DATA, Kind.RESULT))
    counts = Counter(tail for mine in named for tail in dict.fromkeys(mine))
    return {
        id: mine[0] if counts[mine[0]] == 1 else next((tail for tail in mine if counts[tail] == 1), mine[-1])
        for id, mine in tails.items()
    }


def _tails(path: str) -> list[str]:
    """`a.b[3].c` -> c, b_3_c, a_b_3_c. A name that the compiler numbered (`h:1`) reads `h_1`."""
    if "." not in path and "[" not in path:
        return [identifier(path)]
    parts = path.split(".")
    tails = [identifier("_".join(parts[at:])) for at in reversed(range(len(parts)))]
    whole = identifier(_AT.sub("", parts[-1]))  # `blocks[3]_out`: `blocks_out`, where there is but one
    return tails if whole == tails[0] else [whole, *tails]


@remembered
def _trees(plan: Plan) -> dict[int, list[Conversion]]:
    trees: dict[int, list[Conversion]] = {}
    for conversion in plan.conversions:
        trees.setdefault(conversion.value, []).append(conversion)
    return trees


def _value_forms(
    plan: Plan, value: GraphValue, name: str, tree: list[Conversion], main: int, taken: TakenNames, alike: Set[int],
    base: str | None,
) -> Mapping[Form, str]:  # fmt: skip
    """Names of the forms of one value. A form that is in `alike` reads as its parent does."""
    forms: dict[Form, str] = {}
    produced = plan.produced.get(value.id)
    if base is not None:
        forms[value.id, -1] = base
    elif main == -1 or produced is None:
        forms[value.id, -1] = taken.claim(name)
    else:
        forms[value.id, main] = taken.claim(name)
        forms[value.id, -1] = taken.first(_reasoned(name, _reasons(plan, value, produced)))
    for conversion in tree:
        if conversion.id in alike:
            forms.setdefault((value.id, conversion.id), forms[value.id, conversion.parent])
        elif (value.id, conversion.id) not in forms:
            reasons, dtype = _reasons(plan, value, conversion.to), value.type.dtype
            # Of a cast, `x_gathered` says enough where x itself has no such form.
            short = _reasoned(name.removesuffix(f"_{dtype}"), reasons[:1]) if value.path.endswith(f":{dtype}") else []
            forms[value.id, conversion.id] = taken.first([*short, *_reasoned(name, reasons)])
    return forms


def _base_text(value: GraphValue, layer: str) -> str | None:
    """The text of a value without a line: a number, a layer's parameter or state; else None."""
    match value.kind:
        case Kind.PARAM | Kind.STATE:
            return attribute("p", relative(value.path, layer)) if is_below(value.path, layer) else None
        case Kind.CONSTANT:
            return number_text(value.constant or 0)
        case Kind.DATA | Kind.RESULT:
            return None


def number_text(number: float | int) -> str:
    """A number as an operand; one below 0 stands in brackets."""
    return repr(number) if number >= 0 else f"({number!r})"


def _main_form(plan: Plan, value: GraphValue, tree: list[Conversion], read: set[int]) -> int:
    """The form with the user's name: of a pending result its one other form, if there is one."""
    produced = plan.produced.get(value.id)
    if value.kind is not Kind.RESULT or produced is None or not produced.pending or not _ranked(plan, produced).pending:
        return -1
    lines = [c for c in tree if c.move.kind is not MoveKind.VIEW]
    ends = read or {c.id for c in lines} - {made_form(plan, c.parent) for c in lines}
    found = sorted(ends - {-1})
    chosen = [at for at in found if not plan.conversions[at].to.pending] or found
    return chosen[0] if len(chosen) == 1 else -1


def _reasoned(name: str, reasons: Sequence[str]) -> list[str]:
    return [f"{name.rstrip('_')}_{reason}" for reason in reasons]


def _reasons(plan: Plan, value: GraphValue, layout: Layout) -> list[str]:
    """Why a form exists, from its layout: `pending`, `whole`, or its cut dims; then the axes."""
    layout = _ranked(plan, layout)
    cut = [(identifier(t[0].name if t else "1"), a) for t, a in zip(value.type.dims, layout.dims, strict=True) if a]
    if layout.pending:
        return ["pending", "_".join(["pending", *layout.pending])]
    gathered = _gathered(plan, value, layout)
    if gathered:
        return ["gathered", "_".join(["gathered", *gathered])]
    if cut:
        by_axes = [part for name, axes in cut for part in (name, *axes)]
        return ["_".join(name for name, _ in cut), "_".join(by_axes)]
    word = "shared" if layout.replicated and not _was_cut(plan, value) else "whole"
    return [word, "_".join([word, *layout.replicated])]


def _gathered(plan: Plan, value: GraphValue, layout: Layout) -> list[str]:
    """The dims in which a form joins a value's parts, all or some of them; [] if it cuts one
    anew."""
    produced = plan.produced.get(value.id)
    if produced is None or produced.mesh != layout.mesh:
        return []
    pairs = [(t, b, a) for t, b, a in zip(value.type.dims, _ranked(plan, produced).dims, layout.dims, strict=True)]
    if any(after != before and not set(after) < set(before) for _, before, after in pairs):
        return []
    return [identifier(term[0].name if term else "1") for term, before, after in pairs if after != before]


def _was_cut(plan: Plan, value: GraphValue) -> bool:
    produced = plan.produced.get(value.id)
    if produced is None:
        return False
    produced = _ranked(plan, produced)
    return bool(produced.split_axes()) or bool(produced.pending)


def _ranked(plan: Plan, layout: Layout) -> Layout:
    """The layout over ranks: microbatches give no form a name."""
    ranked = plan.meshes[layout.mesh].ranked
    dims = tuple(ranked(axes) for axes in layout.dims)
    return Layout(dims, ranked(layout.pending), ranked(layout.replicated), layout.mesh)


def function_name(model: str) -> str:
    """`EncoderBlock` -> `encoder_block`."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", model)
    name = identifier(parts.lower())
    return f"{name}_" if _FILES.fullmatch(name) else name
