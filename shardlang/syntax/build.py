"""Turns reduced rules into syntax tree nodes: one function per rule of grammars/shard.lark, by the
rule's name.

Each takes the kept children and the span of the whole rule. Rules that the grammar cannot express
(a selector's spelling, the order of arguments) are checked here (SH113 to SH115); the tree is made
all the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.syntax.expressions import Node

Children = list[Any]
_GLOB = re.compile(r"\*\*|(?:\*?[A-Za-z0-9_])+\*?|\*")


class TreeBuilder:
    """Makes nodes, by the names of rules."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        own = {"segment": self._segment, "call": self._call, "item": self._pick, "piped": self._piped}
        self.actions: dict[str, Callable[[Children, Span], Any]] = {**ACTIONS, **own}

    def _segment(self, c: Children, s: Span) -> ast.Segment:
        spelled = [child for child in c if isinstance(child, Span | ast.Name | ast.Number)]
        index: str | int | tuple[int, int] | None = None
        text = s.text
        if text.endswith("]"):
            last = c[-1]
            index = "*" if isinstance(last, Span) else int(last.value) if isinstance(last, ast.Number) else last
            text = text[: text.index("[")].rstrip()
        _check_glob(text, spelled, s, self.sink)
        return ast.Segment(text, index, span=s)

    def _call(self, c: Children, s: Span) -> ast.Call:
        arrow = c[-1] if len(c) > 1 and isinstance(c[-1], ast.TensorType) else None
        args = c[1:-1] if arrow else c[1:]
        _check_order(args, self.sink)
        keywords = tuple(a for a in args if isinstance(a, ast.Keyword))
        fields = tuple(a for a in args if isinstance(a, ast.Field))
        plain = tuple(a for a in args if not isinstance(a, ast.Keyword | ast.Field))
        return ast.Call(c[0], plain, keywords, fields, arrow, span=s)

    def _pick(self, c: Children, s: Span) -> ast.Pick:
        return ast.Pick(c[0], tuple(c[1:]), span=s)

    def _piped(self, c: Children, s: Span) -> ast.Pipe:
        _check_piped(c[1], self.sink)
        return ast.Pipe(c[0], c[1], span=s)


def _check_glob(text: str, parts: Sequence[object], span: Span, sink: Sink) -> None:
    """A selector's part is `**`, or a name that may hold single `*`, in one piece."""
    if len(parts) == 1 or _GLOB.fullmatch(text):
        return
    if any(c.isspace() for c in text):
        message, help = (
            f"`{text}` is not one name",
            f"write `{''.join(text.split())}`, or a comma between two selectors",
        )
    else:
        message, help = (
            "`**` stands for whole parts of a path",
            f"write `{text.replace('**', '*')}`, or `.` round the `**`",
        )
    sink.report("SH114", message, span, help=help)


def _check_order(args: Sequence[ast.Expr | ast.Keyword | ast.Field], sink: Sink) -> None:
    """Arguments without a name come first."""
    named: ast.Keyword | ast.Field | None = None
    for arg in args:
        if isinstance(arg, ast.Keyword | ast.Field):
            named = named or arg
        elif named is not None:
            sink.report(
                "SH113", "an argument without a name follows one with a name", arg.span,
                labels=[(named.span, f"`{named.name.text}` has a name")],
                help=f"put it before `{named.name.text}`, or write `name = {arg.span.text}`",
            )  # fmt: skip
            return


def _check_piped(right: ast.Expr, sink: Sink) -> None:
    """The right side of `|>` is something to call."""
    if not isinstance(right, ast.Name | ast.Attribute | ast.Index | ast.Call):
        sink.report(
            "SH115", f"`{right.span.text}` cannot take what the pipe passes on", right.span,
            "neither a layer nor an operator",
            help="write the name of a layer or an operator after `|>`, as in `x |> relu`",
        )  # fmt: skip


def _condition(c: Children, s: Span) -> ast.If:
    last = c[2] if len(c) == 3 else ()
    return ast.If(c[0], c[1], (last,) if isinstance(last, ast.If) else last, span=s)


def _split(c: Children, s: Span) -> ast.Split:
    uses = next(n for n, child in enumerate(c) if isinstance(child, tuple))
    rest = c[uses + 1] if len(c) > uses + 1 else None
    sizes = rest if isinstance(rest, tuple) else None
    dims = tuple(child for child in c[:uses] if not isinstance(child, Span))
    return ast.Split(dims, c[uses], isinstance(rest, Span), sizes, span=s)


def _shard_entry(c: Children, s: Span) -> ast.ShardEntry:
    if isinstance(c[0], ast.Number):
        return ast.ShardEntry(c[0], (), span=s)
    none = len(c) == 1 and c[0].text == "_" and s.text == "_"
    return ast.ShardEntry(None, () if none else tuple(c), span=s)


def _stages(c: Children, s: Span) -> ast.Stages:
    word = c[1] if len(c) > 1 and isinstance(c[1], Span) else None
    rest = c[2:] if word else c[1:]
    virtual = next((child for child in rest if not isinstance(child, tuple)), None)
    entries = next((child for child in rest if isinstance(child, tuple)), ())
    return ast.Stages(c[0], word is not None, virtual, entries, word is not None and word.text == "auto", span=s)


def _memory(c: Children, s: Span) -> ast.Place:
    return ast.Place(None if isinstance(c[-1], Span) else c[-1], len(c) == 2, span=s)


def _zero(c: Children, s: Span) -> ast.Zero:
    level = None if isinstance(c[0], Span) else c[0]
    return ast.Zero(level, c[1] if len(c) > 1 else (), c[2] if len(c) > 2 else None, span=s)


def _type(c: Children, s: Span) -> ast.TensorType:
    dtype = c[0] if c and isinstance(c[0], ast.Name) else None
    dims = tuple(child for child in c if isinstance(child, ast.DimTerm))
    marks = [child for child in c if isinstance(child, tuple)]
    pending = tuple(name for mark, names in marks if mark.text == "+" for name in names)
    replicated = tuple(name for mark, names in marks if mark.text == "^" for name in names)
    return ast.TensorType(dtype, dims, pending, replicated, span=s)


def _chain(c: Children, s: Span) -> ast.Expr:
    """`a < b < c` is `a < b and b < c`, with one node `b`."""
    made: ast.Expr | None = None
    for n in range(0, len(c) - 2, 2):
        link = ast.Binary(c[n + 1].text, c[n], c[n + 2], span=c[n].span.to(c[n + 2].span))
        made = link if made is None else ast.Binary("and", made, link, span=made.span.to(link.span))
    assert made is not None
    return made


def _parenthesised(c: Children, s: Span) -> ast.Expr:
    """The span takes the parentheses in; the node is otherwise the same."""
    inner: ast.Expr = replace(c[0], span=s)
    return inner


def _fields(made: type[Node]) -> Callable[[Children, Span], Node]:
    """A function that makes a node whose fields are the children of its rule; `auto` is None."""
    return lambda c, s: made(*(None if isinstance(child, Span) else child for child in c), span=s)


def _listed(made: Callable[..., Node]) -> Callable[[Children, Span], Node]:
    return lambda c, s: made(tuple(c), span=s)


_LISTS = (
    "start", "formals", "members", "body", "rules", "narrow_rules", "axis_uses", "sizes", "axes", "shard_tuples",
    "stage_entries", "selectors", "settings", "facts", "level_facts", "facts_of_operator", "facts_of_own", "fields",
)  # fmt: skip
# The nodes of these rules have the rules' children as their fields.
_FIELDS = {
    "attribute": ast.Attribute, "bucket": ast.Bucket, "chunks": ast.Chunks,
    "dim_entry": ast.DimEntry,
    "flops": ast.Flops, "operator": ast.Operator, "python": ast.Python, "reduces": ast.Reduces,
    "source": ast.OwnSource, "own_schedule": ast.OwnSchedule, "optimizer": ast.OwnOptimizer,
    "field": ast.Field, "formal": ast.Formal, "index": ast.Index, "keyword": ast.Keyword, "choice": ast.Conditional,
    "mesh_axis": ast.MeshAxis, "microbatches": ast.Microbatches, "pin": ast.Pin, "range": ast.Range,
    "schedule": ast.Schedule, "shard": ast.Shard,
    "stage_entry": ast.StageEntry, "strategy": ast.Strategy, "strict": ast.Strict, "train": ast.Train,
}  # fmt: skip


# The one field of these nodes has all children of the rule.
_LISTED = {
    "attend": ast.Attend, "dim_path": ast.DimPath, "dims": ast.DimDecl, "inside": ast.Inside, "keeps": ast.Keeps,
    "mesh": ast.Mesh, "needs": ast.Needs, "returns": ast.Return, "selector": ast.Selector,
    "shard_tuple": ast.ShardTuple, "tuple": ast.Tuple, "whole": ast.Whole,
}  # fmt: skip


def _hardware(c: Children, s: Span) -> ast.Hardware:
    settings = tuple(fact for fact in c[2] if isinstance(fact, ast.Setting))
    levels = tuple(fact for fact in c[2] if isinstance(fact, ast.Hardware))
    return ast.Hardware(c[0].text, c[1], settings, levels, span=s)


ACTIONS: dict[str, Callable[[Children, Span], Any]] = {
    **dict.fromkeys(_LISTS, lambda c, s: tuple(c)),
    **dict.fromkeys(("expression_only", "virtual", "arrow"), lambda c, s: c[0]),
    **{rule: _fields(made) for rule, made in _FIELDS.items()},
    **{rule: _listed(made) for rule, made in _LISTED.items()},
    "use": lambda c, s: ast.Use(c[0][0], c[0][1], tuple(c[1:]), c[0][2], span=s),
    "path_std": lambda c, s: (".".join(name.text for name in c), False, s),
    "path_file": lambda c, s: (c[0].value, True, s),
    "condition": _condition,
    "recompute": lambda c, s: ast.Recompute(None if c and isinstance(c[0], Span) else tuple(c), span=s),
    "place": _memory,
    "zero": _zero,
    "split": _split,
    "model": lambda c, s: ast.Model(c[0], c[1] if len(c) == 3 else (), c[-1], span=s),
    "linear": lambda c, s: ast.Linear(c[0], span=s),
    "remembers": lambda c, s: ast.Remembers(c[1], c[2], span=s),
    "function": lambda c, s: ast.Function(c[0], c[1], tuple(c[2:-1]), c[-1], span=s),
    "assign": lambda c, s: ast.Assign(c[0], c[-1], tuple(c[1:-1]), span=s),
    "layer": lambda c, s: ast.Layer(c[0], c[1] if len(c) == 3 else None, c[-1], span=s),
    "tensor": lambda c, s: ast.Tensor(c[0].text, c[1], c[2], c[3], span=s),
    "forward": lambda c, s: ast.Forward(c[0], tuple(c[1:-1]), c[-1], span=s),
    "hardware": _hardware,
    "level": lambda c, s: ast.Hardware("level", c[0], c[1], span=s),
    "axis_use": lambda c, s: ast.AxisUse(c[0], len(c) == 2, span=s),
    "shard_entry": _shard_entry,
    "stages": _stages,
    "at": lambda c, s: ast.At(c[0], c[1] if isinstance(c[1], tuple) else (c[1],), span=s),
    "int_range": lambda c, s: (c[0].value, c[1].value),
    "setting": lambda c, s: ast.Setting("", c[0], (), c[1], span=s),
    "setting_at": lambda c, s: ast.Setting("", c[0], c[1], c[2], span=s),
    "freeze": lambda c, s: ast.Setting("freeze", c[0], c[1], c[0], span=s),
    "several": lambda c, s: ast.Setting("", c[0], (), c[-1], tuple(c[1:-1]), span=s),
    "metric": lambda c, s: ast.Setting("metric", c[0], (), c[1], span=s),
    "type": _type,
    "dim_term": lambda c, s: ast.DimTerm(tuple(c), False, span=s),
    "dim_rest": lambda c, s: ast.DimTerm((), True, span=s),
    "dim_factor": lambda c, s: ast.DimFactor(c[0], c[1] if len(c) == 2 else (), span=s),
    "suffix": lambda c, s: (c[0], c[1]),
    "binary": lambda c, s: ast.Binary(c[1].text, c[0], c[2], span=s),
    "chain": _chain,
    "unary": lambda c, s: ast.Unary(c[0].text, c[1], span=s),
    "true": lambda c, s: ast.Bool(True, span=s),
    "false": lambda c, s: ast.Bool(False, span=s),
    "parenthesised": _parenthesised,
}
