"""A program -> what each of its names is in its tree, and where the words of rules stand, to hold colours to.

What a name is comes from the node that has it (`Split.dims`); what is a word of a rule, from how the parser reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest import mock

from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.automaton import Automaton
from shardlang.syntax.parse import parse
from shardlang.syntax.tables import tables
from tests import mdtest

ROOT = Path(__file__).resolve().parents[2]
WORD = "word of a rule"
# The scopes that fit a role, by how they begin. Of what is not here any variable fits.
_DIMS, _AXES, _CHOICES = "variable.other.constant.dim", "support.class.component.axis", "support.constant.choice"
_FUNCTIONS, _SETTINGS, _SELECTORS = "entity.name.function", "variable.other.property.setting", "variable.other.selector"
_PARAMETERS, _TYPES = "variable.parameter.formal", "storage.type"
FIT: dict[str, tuple[str, ...]] = {
    WORD: ("keyword", "constant.language"),
    **dict.fromkeys(("DimEntry.name", "DimPath.parts", "DimFactor.dim", "Whole.dims", "Inside.dims"), (_DIMS,)),
    **dict.fromkeys(("MeshAxis.name", "AxisUse.name", "ShardEntry.axes", "Stages.axis", "Zero.axes"), (_AXES,)),
    **dict.fromkeys(("DimFactor.axes", "TensorType.pending", "TensorType.replicated"), (_AXES,)),
    **dict.fromkeys(("Zero.word", "Recompute.what", "Attend.how", "Place.where", "Needs.words"), (_CHOICES,)),
    **dict.fromkeys(("Function.name", "Operator.name", "Python.name", "OwnSource.name"), (_FUNCTIONS,)),
    **dict.fromkeys(("OwnSchedule.name", "OwnOptimizer.name", "Pipe.right"), (_FUNCTIONS,)),
    "Call.callee": (_FUNCTIONS, "entity.name.type.model"), "Layer callee": ("entity.name.type.model",),
    "Model.name": ("entity.name.type.model",), "Strategy.name": ("entity.name.type.strategy",),
    "Hardware.name": ("entity.name.type.hardware",), "Use.names": ("entity.name.type",),
    "Formal.name": (_PARAMETERS,), "Field.name": (_PARAMETERS,),
    "Formal.kind": (_TYPES,), "TensorType.dtype": (_TYPES,),
    "Keyword.name": ("variable.parameter.argument",), "Pick.places": (_DIMS,),
    "Setting.name": (_SETTINGS,), "Setting.others": (_SETTINGS,), "Segment": (_SELECTORS,),
    "Layer.name": ("variable.other.declaration.layer",), "Tensor.name": ("variable.other.declaration.tensor",),
}  # fmt: skip


# A program in which a word is a name of every kind.
_AS_NAMES = """use std.WORD: WORD, Linear
dim b = WORD, WORD = 4
device WORD {
  WORD = 80GB
}
model WORD(WORD: dim, n: int = WORD) {
  dim WORD = n
  layer WORD[WORD] = Linear(WORD, WORD = WORD)
  param WORD: f32[WORD, n] = normal(WORD = 1)
  forward(WORD: [WORD], b: [n]) -> [WORD], [n * WORD] {
    WORD = WORD(WORD, WORD = n) |> WORD
    a, WORD = WORD.WORD + WORD[WORD = 0] * WORD.WORD(WORD - 1)
    return WORD if not WORD else WORD
  }
}
operator WORD(WORD: [WORD], WORD: int) -> [WORD] {
  whole WORD, WORD
  inside WORD
  linear (WORD, b)
  flops 2 * WORD
  keeps WORD, WORD
  python "ops.py": WORD
}
source WORD(path: str) -> (WORD: [WORD]) {
  python "data.py": WORD
}
optimizer WORD(WORD: float) {
  needs WORD matrices
  state WORD like WORD
}
strategy WORD {
  mesh dp = 2 * WORD, WORD = 2
  split b, WORD, WORD.WORD over WORD
  split b over (dp, WORD?) sizes (WORD, 2)
  stages over WORD {
    0: WORD, WORD.WORD[0..4]
    WORD - 1: WORD
  }
  zero 3 over (dp, WORD), WORD
  zero 3 over WORD
  microbatches 2 * WORD
  at WORD.WORD[*]: recompute all but WORD
  at b, WORD {
    place on WORD
    [WORD@WORD, b@(dp, WORD)] +WORD ^(dp, WORD)
  }
  at WORD: shard ((WORD, 1), ((dp, WORD), 2)) -> ((WORD, _))
  attend in WORD
}
train {
  WORD = WORD(WORD: f32[WORD] < WORD, WORD = 1)
  WORD at WORD.*WORD, WORD = WORD
  freeze at WORD
  a, WORD = WORD
  metric WORD = WORD
}
"""


def as_names(word: str) -> str:
    """A program in which a word is a name of every kind, in all lines where the parser takes it for one."""
    lines = _AS_NAMES.replace("WORD", word)
    file, sink = Source("t.shard", lines), Sink()
    parse(file, sink)
    wrong = {found.primary.span.line for found in sink.found if found.primary}
    return "".join(line for at, line in enumerate(lines.splitlines(keepends=True), 1) if at not in wrong)


@dataclass(frozen=True)
class Marked:
    """Characters of a text, and what they are."""

    start: int
    end: int
    role: str

    def fits(self, scope: str) -> bool:
        """Whether a scope fits what it is; an element type may be an argument."""
        wanted = FIT.get(self.role, ("variable", _TYPES))
        return scope.startswith(wanted)


def texts() -> dict[str, str]:
    """The programs of the repository, and the blocks of its pages."""
    files = [path for place in ("examples", "stdlib", "starts") for path in sorted((ROOT / place).rglob("*.shard"))]
    found = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}
    for page in (ROOT / "README.md", *sorted((ROOT / "specs").rglob("*.md"))):
        for line, language, _, text in mdtest.fences(page.read_text("utf-8")):
            found |= {f"{page.name}:{line}": text} if language == "shard" else {}
    return found


def marked(text: str) -> list[Marked]:
    """What the names and the words of a text are, in order."""
    words: list[Marked] = []
    shift = Automaton.shift

    def recorded(self: Automaton, state: int, kind: str, token: tuple[str, int, int]) -> None:
        if kind in tables().keywords.values():
            words.append(Marked(token[1], token[2], WORD))
        shift(self, state, kind, token)

    with mock.patch.object(Automaton, "shift", recorded):
        file = parse(Source("t.shard", text), Sink())
    found = {(each.start, each.end): each for each in (*words, *_names(file.items, ""))}
    return sorted(found.values(), key=lambda each: each.start)


def _names(node: Any, role: str) -> Iterator[Marked]:
    if isinstance(node, tuple):
        for each in node:
            yield from _names(each, role)
    elif isinstance(node, ast.Name):
        yield Marked(node.span.start, node.span.end, role)
    elif isinstance(node, ast.Segment):
        named = re.search(r"\w+", node.name)
        yield from [Marked(node.span.start + named.start(), node.span.start + named.end(), "Segment")] if named else []
    elif isinstance(node, ast.Attribute) and role in ("Call.callee", "Pipe.right"):
        yield from (*_names(node.value, "Attribute.value"), *_names(node.name, role))
    elif isinstance(node, ast.Index) and role == "Pipe.right":
        yield from (*_names(node.value, role), *_names(node.index, "Index.index"))
    elif isinstance(node, ast.Setting) and node.keyword == "freeze":
        yield from (*_names(node.name, "Setting.name"), *_names(node.at, ""))
    elif isinstance(node, ast.Keyword) and role == "Pick.places":
        yield from (*_names(node.name, role), *_names(node.value, "Keyword.value"))
    elif hasattr(node, "__dataclass_fields__") and not isinstance(node, Span | Source):
        for field in fields(node):
            inner = f"{type(node).__name__}.{field.name}"
            callee = role == "Layer.value" and inner == "Call.callee"
            yield from _names(getattr(node, field.name), "Layer callee" if callee else inner)
