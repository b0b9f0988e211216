"""Declarations of operators, optimizers, schedules, sources and initial values -> Markdown.

Shapes and rules are those that the checker finds for an operator's example."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shardlang.check.constants import show
from shardlang.check.context import Context
from shardlang.check.declared import TEXTS, WORDS, Declared
from shardlang.check.files.imports import Library
from shardlang.check.graph.drafts import OpDraft
from shardlang.check.model.expressions import evaluate
from shardlang.check.model.generic import check_function
from shardlang.check.model.initial import KINDS as STARTS
from shardlang.check.model.operators import operator_names
from shardlang.check.train.data_sources import SOURCES, Known
from shardlang.check.train.optimizers import KINDS as OPTIMIZERS
from shardlang.check.train.settings import SCHEDULES
from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.ops.declaration import REGISTRY, Operator, Param
from shardlang.ops.rule import FactorRule, Split
from shardlang.source import Source
from shardlang.syntax.parse import parse

# What is declared besides operators: the heading it stands under, what all under it share, and the
# declarations.
DECLARED: Sequence[tuple[str, str, Mapping[str, Declared]]] = (
    ("Optimizers", "w is a parameter, g its gradient after `clip`, t the number of the step from 1; b1 and b2 are the "
     "two `betas`. Each line is a step for each element. The optimizer's state starts at 0.", OPTIMIZERS),
    ("Schedules of the learning rate", "lr is the learning rate of each optimizer.", SCHEDULES),
    ("Data sources", "`batch`, `seq`, `src` and `tgt` are dims or numbers, and `path` may be given without its name. "
     "`seed` orders the examples, by default the run's; `shuffle = false` keeps the source's order.", SOURCES),
    ("Words and text of `csv`", "It bounds a field of `csv`, or is a dim of the file: `dim vocab = words(most = "
     "1000)`.", {**WORDS, **TEXTS}),
    ("Initial values of parameters", "They are drawn element by element, the same for every strategy.", STARTS),
)  # fmt: skip
_SPLITS = {
    Split.FREE: "{} may be split.",
    Split.INSIDE: "{} may be split: the ranks then exchange statistics, not the values.",
    Split.WHOLE: "{} may not be split.",
}
_PENDING = "{} may be split: each rank then has a part of a sum, and the result is pending."


def names() -> list[str]:
    """All that can be explained."""
    return [*operator_names(), *(name for *_, declared in DECLARED for name in declared)]


def entry(name: str) -> str:
    """The declaration of a name (a schedule and an initial value may share it), or KeyError."""
    found = [operator_entry(REGISTRY[name])] if name in operator_names() else []
    found += [f"{declared_entry(name, d[name])}\n{filled(all)}" for _, all, d in DECLARED if name in d]
    if not found:
        raise KeyError(name)
    return "\n".join(found)


def summary(name: str) -> str:
    """The first sentence about a name."""
    doc = REGISTRY[name].doc if name in operator_names() else next(d[name].doc for *_, d in DECLARED if name in d)
    return f"{doc.partition('. ')[0].partition(chr(10))[0].rstrip('.:')}."


def signature(name: str, params: Sequence[Param], arrow: bool = False) -> str:
    """`dropout(x, p = 0.5)`; the kind stands where no default shows it."""
    listed = ", ".join(_param(param) for param in params)
    return f"{name}({listed}{' -> [dims]' if arrow else ''})"


def _param(param: Param) -> str:
    written = {
        "tensors": "x, y, ...",
        "slices": "dim = start..end, ...",
        "places": "dim = index",
        "pads": "dim = (before, behind), ...",
    }
    if param.kind in written:
        return written[param.kind]
    shown = param.kind != "tensor" and param.default in (..., None)
    kind = f": {'dim' if param.kind == 'newdim' else param.kind}" if shown else ""
    return f"{param.name}{kind}{default(param)}"


def default(param: Param) -> str:
    """` = 0.5`; nothing where the argument must be given."""
    return "" if param.required else f" = {_value(param.default)}"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))})"
    if value is None:
        return "none"
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else show(value)


# --- operators ---------------------------------------------------------------


def operator_entry(operator: Operator) -> str:
    draft, body = drafted(operator), operator.example.partition("{")[2].strip(" }")
    written = signature(operator.name, operator.params, "->" in body)
    between = operator.symbol and len(operator.params) > 1
    head = f"### {operator.name}\n\n    {f'left {operator.symbol} right, or ' if between else ''}{written}\n"
    lines = [*_rule(draft.rule), *_through(draft.rule, [p.name for p in operator.params if p.kind == "tensor"])]
    lines += ["No gradient flows through it."] * (not operator.differentiable)
    lines += ["In `eval` it does nothing."] * operator.train_only
    listed = "".join(f"- {line}\n" for line in lines)
    return f"{head}\n{filled(operator.doc)}\n```shard\n{example(operator)}```\n\n{listed}"


def example(operator: Operator) -> str:
    """The example of a declaration as a function of the language."""
    formals, _, body = operator.example.partition("{")
    return f"fn example{formals}{{\n  return {body.strip(' }')}\n}}\n"


def drafted(operator: Operator) -> OpDraft:
    """The operator as the checker makes it of its example."""
    sink = Sink()
    context = Context(sink, evaluator=evaluate)
    file = parse(Source(f"{operator.name}.shard", example(operator)), sink)
    scope = Library(context, {}).open(file)
    check_function(scope.names["example"], scope, context)
    made = [draft for draft in context.build.ops if draft.operator is operator]
    if sink.failed or not made:
        raise InternalError(f"the example of `{operator.name}` is none: {[d.message for d in sink.found]}")
    return made[0]


def _rule(rule: FactorRule) -> list[str]:
    """Which dims may be split, and what follows."""
    in_results = {f for dims in rule.results for dim in dims for f in dim}
    sorts: dict[str, dict[str, None]] = {}
    for f, factor in enumerate(rule.factors):
        summed = factor.split is Split.FREE and f not in in_results
        sort = _PENDING if summed else _SPLITS[factor.split]
        sorts.setdefault(sort, {})[f"`{'...' if factor.name == 'leading' else factor.name}`"] = None
    return [sort.format(_all(found)) for sort, found in sorts.items()]


def _through(rule: FactorRule, params: Sequence[str]) -> list[str]:
    """A line on the operands through which pending sums pass."""
    called = [*params, *(f"operand {at}" for at in range(len(params) + 1, len(rule.operands) + 1))]
    if not rule.operands:
        return []
    if not rule.through:
        return ["Pending operands are summed first."]
    words = [f"`{name}`" if name in params else name for name in called]
    sets = [_all(words[at] for at in some) + " together" * (len(some) > 1) for some in rule.through]
    return [f"A pending sum passes through {', or through '.join(sets)}."]


def filled(text: str) -> str:
    """Paragraphs in lines of at most 100 characters; indented ones (formulas) unchanged."""
    parts = (part if part.startswith("    ") else " ".join(part.split()) for part in text.strip("\n").split("\n\n"))
    lines = (p if p.startswith("    ") else textwrap.fill(p, 100, break_on_hyphens=False) for p in parts)
    return "\n\n".join(lines) + "\n"


def _all(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


# --- all else ----------------------------------------------------------------


def declared_entry(name: str, declared: Declared) -> str:
    written = signature(name, declared.params)
    if not isinstance(declared, Known):
        return f"### {name}\n\n    {written}\n\n{filled(declared.doc)}"
    if declared.fields is None:
        written = written.replace("(", "(field: type, ..., ", 1)
    listed = []
    for field, (dtype, sizes, bound) in (declared.fields or {}).items():
        dims = ", ".join(map(str, ("batch", *sizes)))
        listed.append(f"`{field}: {dtype}[{dims}]{'' if bound is None else f' < {bound}'}`")
    fields = f"\n{filled('Fields: ' + ', '.join(listed) + '.')}" if listed else ""
    return f"### {name}\n\n    {written}\n\n{filled(declared.doc)}{fields}"
