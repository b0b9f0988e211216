"""Turns reduced rules into syntax tree nodes: one function per rule of grammars/shard.lark, by the
rule's name.

Each takes the kept children and the span of the whole rule. Rules that the grammar cannot express
(a selector's spelling, the order of arguments) are checked here; the tree is made all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardlang.diagnostics.diagnostic import Sink
from shardlang.source import Span
from shardlang.syntax import ast
from shardlang.syntax.slips import check_glob, check_order, check_piped

Children = list[Any]
Docs = dict[int, str]


class Builder:
    """Makes nodes; `docs` maps the place of an item to its `##` comments."""

    def __init__(self, sink: Sink, docs: Docs) -> None:
        self.sink = sink
        self.docs = docs
        own = {name[3:]: getattr(self, name) for name in dir(self) if name.startswith("on_")}
        self.actions: dict[str, Callable[[Children, Span], Any]] = {**ACTIONS, **own}

    def doc(self, span: Span) -> str:
        return self.docs.get(span.start, "") if self.docs else ""

    # --- what carries documentation ------------------------------------------

    def on_dims(self, c: Children, s: Span) -> ast.DimDecl:
        return ast.DimDecl(tuple(c), self.doc(s), s)

    def on_model(self, c: Children, s: Span) -> ast.Model:
        return ast.Model(c[0], c[1] if len(c) == 3 else (), c[-1], self.doc(s), s)

    def on_function(self, c: Children, s: Span) -> ast.Function:
        return ast.Function(c[0], c[1], c[2] if len(c) == 4 else None, c[-1], self.doc(s), s)

    def on_layer(self, c: Children, s: Span) -> ast.Layer:
        return ast.Layer(c[0], c[1] if len(c) == 3 else None, c[-1], self.doc(s), s)

    def on_tensor(self, c: Children, s: Span) -> ast.Tensor:
        return ast.Tensor(c[0].text, c[1], c[2], c[3], self.doc(s), s)

    def on_forward(self, c: Children, s: Span) -> ast.Forward:
        return ast.Forward(c[0], c[1] if len(c) == 3 else None, c[-1], self.doc(s), s)

    def on_strategy(self, c: Children, s: Span) -> ast.Strategy:
        return ast.Strategy(c[0], c[1], self.doc(s), s)

    def on_train(self, c: Children, s: Span) -> ast.Train:
        return ast.Train(c[0], self.doc(s), s)

    def on_hardware(self, c: Children, s: Span) -> ast.Hardware:
        return ast.Hardware(c[0].text, c[1], c[2], self.doc(s), s)

    # --- what is checked here ------------------------------------------------

    def on_segment(self, c: Children, s: Span) -> ast.Segment:
        spelled = [child for child in c if isinstance(child, Span | ast.Name | ast.Number)]
        index: str | int | tuple[int, int] | None = None
        text = s.text
        if text.endswith("]"):
            last = c[-1]
            index = "*" if isinstance(last, Span) else int(last.value) if isinstance(last, ast.Number) else last
            text = text[: text.index("[")].rstrip()
        check_glob(text, spelled, s, self.sink)
        return ast.Segment(text, index, s)

    def on_call(self, c: Children, s: Span) -> ast.Call:
        arrow = c[-1] if len(c) > 1 and isinstance(c[-1], ast.TensorType) else None
        args = c[1:-1] if arrow else c[1:]
        check_order(args, self.sink)
        keywords = tuple(a for a in args if isinstance(a, ast.Keyword))
        fields = tuple(a for a in args if isinstance(a, ast.Field))
        plain = tuple(a for a in args if not isinstance(a, ast.Keyword | ast.Field))
        return ast.Call(c[0], plain, keywords, fields, arrow, s)

    def on_piped(self, c: Children, s: Span) -> ast.Pipe:
        check_piped(c[1], self.sink)
        return ast.Pipe(c[0], c[1], s)


def _condition(c: Children, s: Span) -> ast.If:
    last = c[2] if len(c) == 3 else ()
    return ast.If(c[0], c[1], (last,) if isinstance(last, ast.If) else last, s)


def _split(c: Children, s: Span) -> ast.Split:
    uses = next(n for n, child in enumerate(c) if isinstance(child, tuple))
    rest = c[uses + 1] if len(c) > uses + 1 else None
    sizes = rest if isinstance(rest, tuple) else None
    return ast.Split(tuple(c[:uses]), c[uses], isinstance(rest, Span), sizes, s)


def _shard_entry(c: Children, s: Span) -> ast.ShardEntry:
    if isinstance(c[0], ast.Number):
        return ast.ShardEntry(c[0], (), s)
    none = len(c) == 1 and c[0].text == "_" and s.text == "_"
    return ast.ShardEntry(None, () if none else tuple(c), s)


def _stages(c: Children, s: Span) -> ast.Stages:
    balanced = len(c) > 1 and isinstance(c[1], Span)
    rest = c[2:] if balanced else c[1:]
    virtual = next((child for child in rest if not isinstance(child, tuple)), None)
    entries = next((child for child in rest if isinstance(child, tuple)), ())
    return ast.Stages(c[0], balanced, virtual, entries, s)


def _type(c: Children, s: Span) -> ast.TensorType:
    dtype = c[0] if c and isinstance(c[0], ast.Name) else None
    dims = tuple(child for child in c if isinstance(child, ast.DimTerm))
    marks = [child for child in c if isinstance(child, tuple)]
    pending = tuple(name for mark, names in marks if mark.text == "+" for name in names)
    replicated = tuple(name for mark, names in marks if mark.text == "^" for name in names)
    return ast.TensorType(dtype, dims, pending, replicated, s)


def _chain(c: Children, s: Span) -> ast.Expr:
    """`a < b < c` is `a < b and b < c`, with one node `b`."""
    made: ast.Expr | None = None
    for n in range(0, len(c) - 2, 2):
        link = ast.Binary(c[n + 1].text, c[n], c[n + 2], c[n].span.to(c[n + 2].span))
        made = link if made is None else ast.Binary("and", made, link, made.span.to(link.span))
    assert made is not None
    return made


def _parenthesised(c: Children, s: Span) -> ast.Expr:
    """The span takes the parentheses in; the node is otherwise the same."""
    inner: ast.Expr = replace(c[0], span=s)
    return inner


_LISTS = (
    "start", "formals", "members", "body", "rules", "narrow_rules", "axis_uses", "sizes", "axes", "shard_tuples",
    "stage_entries", "selectors", "settings", "facts",
)  # fmt: skip
ACTIONS: dict[str, Callable[[Children, Span], Any]] = {
    **dict.fromkeys(_LISTS, lambda c, s: tuple(c)),
    **dict.fromkeys(("expression_only", "virtual", "arrow"), lambda c, s: c[0]),
    "use": lambda c, s: ast.Use(c[0][0], c[0][1], tuple(c[1:]), c[0][2], s),
    "path_std": lambda c, s: (".".join(name.text for name in c), False, s),
    "path_file": lambda c, s: (c[0].value, True, s),
    "dim_entry": lambda c, s: ast.DimEntry(c[0], c[1], s),
    "formal": lambda c, s: ast.Formal(c[0], c[1], c[2] if len(c) == 3 else None, s),
    "condition": _condition,
    "assign": lambda c, s: ast.Assign(c[0], c[1], s),
    "returns": lambda c, s: ast.Return(c[0], s),
    "mesh": lambda c, s: ast.Mesh(tuple(c), s),
    "mesh_axis": lambda c, s: ast.MeshAxis(c[0], None if isinstance(c[1], Span) else c[1], s),
    "split": _split,
    "dim_path": lambda c, s: ast.DimPath(tuple(c), s),
    "axis_use": lambda c, s: ast.AxisUse(c[0], len(c) == 2, s),
    "shard": lambda c, s: ast.Shard(c[0], c[1] if len(c) == 2 else None, s),
    "shard_tuple": lambda c, s: ast.ShardTuple(tuple(c), s),
    "shard_entry": _shard_entry,
    "pin": lambda c, s: ast.Pin(c[0], s),
    "stages": _stages,
    "microbatches": lambda c, s: ast.Microbatches(c[0], s),
    "schedule": lambda c, s: ast.Schedule(c[0], s),
    "zero": lambda c, s: ast.Zero(c[0], c[1], s),
    "bucket": lambda c, s: ast.Bucket(c[0], s),
    "recompute": lambda c, s: ast.Recompute(s),
    "place": lambda c, s: ast.Place(c[0], s),
    "strict": lambda c, s: ast.Strict(s),
    "at": lambda c, s: ast.At(c[0], c[1] if isinstance(c[1], tuple) else (c[1],), s),
    "selector": lambda c, s: ast.Selector(tuple(c), s),
    "int_range": lambda c, s: (c[0].value, c[1].value),
    "setting": lambda c, s: ast.Setting("", c[0], (), c[1], s),
    "setting_at": lambda c, s: ast.Setting("", c[0], c[1], c[2], s),
    "metric": lambda c, s: ast.Setting("metric", c[0], (), c[1], s),
    "type": _type,
    "dim_term": lambda c, s: ast.DimTerm(tuple(c), False, s),
    "dim_rest": lambda c, s: ast.DimTerm((), True, s),
    "dim_factor": lambda c, s: ast.DimFactor(c[0], c[1] if len(c) == 2 else (), s),
    "suffix": lambda c, s: (c[0], c[1]),
    "range": lambda c, s: ast.Range(c[0], c[1], s),
    "choice": lambda c, s: ast.Conditional(c[0], c[1], c[2], s),
    "stage_entry": lambda c, s: ast.StageEntry(c[0], c[1], s),
    "binary": lambda c, s: ast.Binary(c[1].text, c[0], c[2], s),
    "chain": _chain,
    "unary": lambda c, s: ast.Unary(c[0].text, c[1], s),
    "attribute": lambda c, s: ast.Attribute(c[0], c[1], s),
    "index": lambda c, s: ast.Index(c[0], c[1], s),
    "keyword": lambda c, s: ast.Keyword(c[0], c[1], s),
    "field": lambda c, s: ast.Field(c[0], c[1], c[2] if len(c) == 3 else None, s),
    "true": lambda c, s: ast.Bool(True, s),
    "false": lambda c, s: ast.Bool(False, s),
    "parenthesised": _parenthesised,
    "tuple": lambda c, s: ast.Tuple(tuple(c), s),
}
