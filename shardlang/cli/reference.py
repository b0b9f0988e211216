"""Declarations of operators, optimizers, schedules, sources and initial values, the words of the
language and what the library has -> Markdown.

Shapes and rules are those that the checker finds for an operator's example."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from shardlang.check.context import Context
from shardlang.check.declared import TEXTS, WORDS, DeclaredKind, signature
from shardlang.check.files.imports import Library
from shardlang.check.graph.drafts import OpDraft
from shardlang.check.model.expressions import evaluate
from shardlang.check.model.generic import check_function
from shardlang.check.model.initial import KINDS as STARTS
from shardlang.check.model.operators import operator_names
from shardlang.check.train.data_sources import SOURCES, DataSourceKind
from shardlang.check.train.frozen import FREEZE
from shardlang.check.train.hardware import SETTINGS as HARDWARE
from shardlang.check.train.late import FIGURES
from shardlang.check.train.optimizers import KINDS as OPTIMIZERS
from shardlang.check.train.overrides import PATHS, SETTABLE
from shardlang.check.train.settings import SCHEDULES
from shardlang.check.train.settings import SETTINGS as TRAIN
from shardlang.cli.library import libraries
from shardlang.diagnostics import explain_pages
from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.hints.nearest import offer
from shardlang.ops.declaration import REGISTRY, Operator
from shardlang.ops.rule import FactorRule, Split
from shardlang.ops.torch_words import torch_help, training_help
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse
from shardlang.syntax.words import CLAUSES, ITEMS, MEMBERS, RULES, Word

Explained = DeclaredKind | Word
# What is declared besides operators: the heading it stands under, what all under it share, and the
# declarations.
DECLARED: Sequence[tuple[str, str, Mapping[str, DeclaredKind]]] = (
    ("Optimizers", "w is a parameter, g its gradient after `clip`, t the number of the step from 1; b1 and b2 are the "
     "two `betas`. Each line is a step for each element. The optimizer's state starts at 0.", OPTIMIZERS),
    ("Schedules of the learning rate", "lr is the learning rate of each optimizer.", SCHEDULES),
    ("Data sources", "`batch`, `seq`, `src` and `tgt` are dims or numbers, and `path` may be given without its name. "
     "`seed` orders the examples, by default the run's; `shuffle = false` keeps the source's order.", SOURCES),
    ("Words and text of `csv`", "It bounds a field of `csv`, or is a dim of the file: `dim vocab = words(most = "
     "1000)`.", {**WORDS, **TEXTS}),
    ("Initial values of parameters", "What is drawn is drawn element by element, the same for every strategy.", STARTS),
)  # fmt: skip
# The words of the language and the settings likewise.
_WORDS: Sequence[tuple[str, str, Mapping[str, Explained]]] = (
    ("Words of a file", "It begins an item, at the start of a line.", ITEMS),
    ("Words of a model", "It is a word of a `model`.", MEMBERS),
    ("Words of a strategy", "It is a word of a `strategy`: `strategies.md` has splits, ZeRO and buckets, `stages.md` "
     "stages, schedules and recomputing, `microbatches.md` microbatches, `places.md` what is on the host.", RULES),
    ("Words of what is written in Python", "It is a word of an `operator`, `source`, `schedule` or `optimizer` of your "
     "own (`extensions.md`).", CLAUSES),
    ("Settings of `train`", "It is a setting of `train` (`training.md`).", {**TRAIN, **FREEZE}),
    ("Figures of a step", "A `metric` of `train` may use it (`training.md`).", FIGURES),
    *((f"Settings of a `{item}`", f"It is a setting of a `{item}` (`hardware.md`).",
       {name: Word(f"{name} = {known.example}", known.doc) for name, known in of.items()})
      for item, of in HARDWARE.items()),
)  # fmt: skip
# What stands above the list of what `--set` takes.
_SET = (
    "Gives something of the program another value, for this run alone. Its path is written whole, and the option may "
    "be given again. `train.` and the name of a setting stand for the whole setting, which the program may lack. In a "
    "shell a value with spaces or quotes stands between single quotes."
)
_SPLITS = {
    Split.FREE: "{} may be split.",
    Split.INSIDE: "{} may be split: the ranks then exchange statistics, not the values.",
    Split.WHOLE: "{} may not be split.",
}
_PENDING = "{} may be split: each rank then has a part of a sum, and the result is pending."


@cache
def sections() -> Sequence[tuple[str, str, Mapping[str, Explained]]]:
    """All that is explained besides operators, by heading; the library is last."""
    listed = "\n".join(f"- `{typed}`: {said}" for typed, said in settable())
    option = Word("shardc run net.shard --ranks 2 --set train.optimizer.lr=0.01", f"{_SET}\n\n{listed}")
    library = [(f"The library `{name}`", "", {name: all, **has}) for name, (all, has) in libraries().items()]
    return [*DECLARED, *_WORDS, ("An option of the command", "", {"set": option}), *library]


def settable() -> list[tuple[str, str]]:
    """All that `--set` takes: an example as a shell takes it, and a sentence."""
    settings = {f"train.{TRAIN[name].form.replace(' = ', '=', 1)}": _first(TRAIN[name].doc) for name in SETTABLE}
    return [(shlex.quote(typed), said) for typed, said in {**PATHS, **settings}.items()]


def names() -> list[str]:
    """All that can be explained, some of it under several headings."""
    return [*operator_names(), *(name for *_, declared in sections() for name in declared)]


def entry(name: str) -> str:
    """All that a name is (a schedule and an initial value may share it), or KeyError. A name of the
    library may be whole, `std.nn.Linear`."""
    found = [operator_entry(REGISTRY[name])] if name in operator_names() else []
    found += [declared_entry(name, d[name]) + (all and f"\n{filled(all)}") for _, all, d in sections() if name in d]
    library, _, inner = name.rpartition(".")
    if library in libraries() and inner in libraries()[library][1]:
        found = [declared_entry(inner, libraries()[library][1][inner])]
    if not found:
        raise KeyError(name)
    return "\n".join(found)


def absent(name: str) -> str:
    """That a name is none, and what is written here for it, or the nearest name."""
    known = [*names(), *explain_pages.pages()]
    help = training_help(name) or torch_help(name) or offer(name, known, "`shardc explain` lists all")
    return f"there is nothing called `{name}` to explain; {help}"


def summary(name: str) -> str:
    """The first sentence about a name."""
    doc = REGISTRY[name].doc if name in operator_names() else next(d[name].doc for *_, d in sections() if name in d)
    return _first(doc)


def _first(doc: str) -> str:
    first = re.split(r"(?<=[^.]\.)\s+", " ".join(doc.partition("\n\n")[0].split()))[0]
    return f"{first.rstrip('.:')}."  # a colon stands before formulas


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
    """Paragraphs and lists in lines of at most 100 characters; indented ones unchanged."""
    parts = text.strip("\n").split("\n\n")
    return "\n\n".join(p if p.startswith("    ") else fitted(p, 100) for p in parts) + "\n"


def fitted(part: str, room: int) -> str:
    """A paragraph, or a list, each item of which is one."""
    items = re.split(r"\n(?=- )", part.rstrip("\n"))
    filled = (textwrap.fill(" ".join(item.split()), room, subsequent_indent="  " * item.startswith("- "),
                            break_on_hyphens=False, break_long_words=False) for item in items)  # fmt: skip
    return "\n".join(filled) + "\n" * part.endswith("\n")


def _all(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


# --- all else ----------------------------------------------------------------


def declared_entry(name: str, declared: Explained) -> str:
    if not isinstance(declared, DeclaredKind):
        return f"### {name}\n\n{textwrap.indent(declared.form, '    ')}\n\n{filled(declared.doc)}"
    written = signature(name, declared.params)
    if not isinstance(declared, DataSourceKind):
        return f"### {name}\n\n    {written}\n\n{filled(declared.doc)}"
    if declared.fields is None:
        written = written.replace("(", "(field: type, ..., ", 1)
    listed = []
    for field, (dtype, sizes, bound) in (declared.fields or {}).items():
        dims = ", ".join(map(str, ("batch", *sizes)))
        listed.append(f"`{field}: {dtype}[{dims}]{'' if bound is None else f' < {bound}'}`")
    fields = f"\n{filled('Fields: ' + ', '.join(listed) + '.')}" if listed else ""
    return f"### {name}\n\n    {written}\n\n{filled(declared.doc)}{fields}"
