"""The grammar, its tables, the mistakes, and the formatter, held against one another."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.diagnostics.diagnostic import Sink
from shardlang.format.format import format_file
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.mistakes import MISTAKES, Mistake
from shardlang.syntax.parse import parse, parse_expression
from tests.syntax.bless import GRAMMAR, made
from tests.syntax.comments import comments

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [*sorted((ROOT / "examples").glob("*.shard")), *sorted((ROOT / "stdlib").glob("*.shard"))]
TEXTS = [path.read_text("utf-8") for path in PROGRAMS]


def read(text: str) -> tuple[ast.File, Sink]:
    sink = Sink()
    return parse(Source("t.shard", text), sink), sink


def shape(node: Any) -> Any:
    """A tree without its spans."""
    if isinstance(node, tuple):
        return tuple(shape(n) for n in node)
    if hasattr(node, "__dataclass_fields__") and not isinstance(node, Span | Source):
        parts = (getattr(node, f.name) for f in fields(node))
        return (type(node).__name__, *(shape(p) for p in parts if not isinstance(p, Span | Source)))
    return node


def test_what_is_made_from_the_grammar_is_that_of_the_grammar() -> None:
    texts = made(GRAMMAR.read_text("utf-8"))
    assert len(texts) == 3
    for place, text in texts.items():
        assert place.read_text("utf-8") == text, f"{place.name}: python -m tests.syntax.bless"


@pytest.mark.parametrize("text", TEXTS, ids=[p.name for p in PROGRAMS])
def test_programs_parse_and_are_formatted(text: str) -> None:
    file, sink = read(text)
    assert not sink.found
    assert format_file(file) == text


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: f"{m.code} {m.example[:20]!r}")
def test_each_mistake_once(mistake: Mistake) -> None:
    _, sink = read(mistake.example)
    assert [d.code for d in sink.found] == [mistake.code]
    assert sink.found[0].help


def test_four_mistakes_are_four_diagnostics() -> None:
    file, sink = read(
        "dim a = 4 +\nmodel M {\n  layer b = = 3\n}\ntrain {\n  loss = f(3\n  epochs = 1\n  clip = 1 2\n}\n"
    )
    assert [d.code for d in sink.found] == ["SH109", "SH101", "SH103", "SH119"]
    assert len(file.items) == 2


@pytest.mark.parametrize(
    "text", ["(" * 5000, "f(" * 5000 + ")" * 5000, "-" * 5000 + "1", "+".join("a" * 5000), "9" * 10**5]
)
def test_hostile_expressions_end_in_a_diagnostic(text: str) -> None:
    sink = Sink()
    parse_expression(Source("t", text), sink)
    assert sink.failed


@given(st.sampled_from(TEXTS or ["dim a = 1\n"]), st.data())
@settings(max_examples=60, deadline=None)
def test_mutations_never_crash_and_formatting_is_stable(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    size = data.draw(st.integers(0, 12))
    put = data.draw(
        st.sampled_from(["", " ", "\n", "\n\n\n", "(", "}", "# c\n", "|>", "\0", "\u202e", "=", '"', "\r\n", "a"])
    )
    file, sink = read(text[:start] + put + text[start + size :])
    if sink.failed:
        return
    once = format_file(file)
    again, sink = read(once)
    assert not sink.found
    assert shape(again.items) == shape(file.items)
    assert comments(again.source) == comments(file.source)
    assert format_file(again) == once


@pytest.mark.parametrize(
    ("text", "value"), [("527395.264kB", 527_395_264), ("1.1kB", 1100), ("1.5B", 1.5), ("3b/s", 0.375), ("0.07GB", 7e7)]
)
def test_a_size_that_is_whole_in_decimals_is_whole(text: str, value: float) -> None:
    sink = Sink()
    found = parse_expression(Source("number.shard", text), sink)
    assert isinstance(found, ast.Number) and not sink.found
    assert (found.value, type(found.value)) == (value, float if value % 1 else int)


@pytest.mark.parametrize("depth", [150, 160, 450, 1_000])
def test_blocks_that_nest_too_deep_are_one_mistake(depth: int) -> None:
    _, sink = read("model M {\n" + "  if true {\n" * depth + "  dim a = 1\n" + "  }\n" * depth + "}\n")
    assert [d.code for d in sink.found] == ["SH108"]


@pytest.mark.parametrize(
    "block",
    [
        "  if a {\n    dim b = 1\n  } else 5\n",
        "  forward(x: [d]) {\n    return x\n  } 5\n",
        "  if a {\n  } if b {\n  }\n",
    ],
)
def test_a_mistake_after_a_block_leaves_the_block_closed(block: str) -> None:
    file, sink = read(f"model M {{\n{block}  dim c = 2\n}}\ndim d = 3\n")
    assert [d.code for d in sink.found][1:] == []
    assert len(file.items) == 2


def test_a_string_that_is_closed_is_never_called_open() -> None:
    _, sink = read('strategy s {\n  split batch over "dp"\n}\n')
    assert [(d.code, d.message) for d in sink.found] == [("SH101", '`"dp"` is not allowed here; expected a name')]
