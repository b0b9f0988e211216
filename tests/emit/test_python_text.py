"""Whatever a text holds, Python reads it back as that text, or as a comment: never as code."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.ops.python_text import comment, docstring, emitted, literal
from tests.emit.sources import main_file, parsed

# What ends a line for one reader of Python or another, ends a literal, hides or reorders what is shown.
HOSTILE = [
    *map(chr, range(0x20)), "\x7f", "\x85", "\xa0", "\xad", "\u061c", "\u200b", "\u200e", "\u200f", "\u2028", "\u2029",
    *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\ufeff", "\udc80", "\ud800", "\U000e0001",
    '"', "'", '"""', "'''", "\\", "\\\n", "\\N{DIGIT ONE}", "{", "}", "{{", "%s", "#", "(", ")", "[", "]",
    "\r\n", "import os", "__import__('os')", "mesh.dp", "math.", "torch.", " ", "x",
]  # fmt: skip
texts = st.lists(st.one_of(st.sampled_from(HOSTILE), st.characters()), max_size=12).map("".join)


def _value(text: str) -> object:
    (statement,) = parsed(text).body
    assert isinstance(statement, ast.Expr)
    return ast.literal_eval(statement.value)


def _is_shown_alike(text: str) -> None:
    """The same lines to the tokenizer, `str.splitlines` and the parser; nothing that an editor would not show."""
    assert text.replace("\n", "").isprintable()
    assert text.splitlines() == text.removesuffix("\n").split("\n")


@settings(deadline=None)
@given(texts)
def test_a_literal_is_the_text_and_nothing_else(text: str) -> None:
    written = literal(text)
    _is_shown_alike(written)
    assert _value(written) == text
    assert next(tokenize.generate_tokens(io.StringIO(written).readline)).type == tokenize.STRING


@settings(deadline=None)
@given(texts)
def test_a_comment_is_one_line_that_python_passes_over(text: str) -> None:
    written = comment(text)
    _is_shown_alike(written)
    assert "\n" not in written
    assert ast.dump(parsed(f"x = 1  {written}\n{written}\ny = 2\n")) == ast.dump(ast.parse("x = 1\ny = 2\n"))
    assert len(comment(text, 40)) <= 40


@settings(deadline=None)
@given(texts, texts)
@example('a"""b', "\\")
@example("", 'c"')
def test_a_docstring_is_one_string(first: str, second: str) -> None:
    written = docstring(first, second)
    _is_shown_alike(written)
    (statement,) = parsed(written).body
    assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


plain = texts | st.integers() | st.booleans() | st.none()


@settings(deadline=None)
@given(st.recursive(plain, lambda x: st.tuples(x, x) | st.dictionaries(texts, x)))
def test_values_are_read_back(value: object) -> None:
    assert _value(literal(value)) == value


def test_what_is_no_literal_is_our_fault() -> None:
    with pytest.raises(InternalError, match="Path"):
        literal(Path("x"))


@pytest.mark.parametrize("character", ["\r", "\x00", "\x0c", "\x85", "\u2028", "\u202e"])
def test_a_file_with_a_stray_character_is_our_fault(character: str) -> None:
    with pytest.raises(InternalError, match=f"U\\+{ord(character):04X}"):
        emitted(f"x = 1  # {character}\n")


def test_the_path_of_an_import_is_never_code(tmp_path: Path) -> None:
    """The path is cited where a function of that file is called."""
    path = "./lib\n__import__('os').system('touch PWNED')  #.shard"
    file = tmp_path / path
    file.write_text("fn act(x: [n, m]) -> [n, m] {\n  y = relu(x)\n  return y\n}\n")
    text = (
        "use \"./lib\\n__import__('os').system('touch PWNED')  #.shard\": act\n"
        "dim batch = 8, d = 4, e = 4\n"
        "model Net {\n  param w: [d, e] = normal(0.1)\n"
        "  forward(x: [batch, d]) -> [batch, e] {\n    return act(x @ w)\n  }\n}\n"
        "train {\n  model = Net()\n  data = random(x: [batch, d], batches = 2)\n  loss = mean(model(x))\n"
        "  optimizer = sgd(lr = 0.1)\n  steps = 2\n}\n"
    )
    made = main_file(text, 1, name=str(tmp_path / "main.shard"))
    assert "lib<U+000A>__import__" in made
    calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(made)) if isinstance(n, ast.Call)]
    assert "__import__('os').system" not in calls
