"""Each name of a text has a role and a declaration, the one that the checker means: with another name there, and
wherever it is used, a program says the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.words.names import NameTable
from shardlang.editor.words.rename import covered, definition, references, rename
from shardlang.editor.words.scopes import NameRole
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.parse import parse
from shardlang.syntax.tables import tables
from shardlang.syntax.tokens import TokenStream
from tests.editor import texts

_FRESH = "fresh_name"
# What the language declares, or nothing.
_OF_LANGUAGE = {
    NameRole.ARGUMENT, NameRole.SETTING, NameRole.WORD, NameRole.TYPE, NameRole.SELECTOR, NameRole.OPERATOR,
    NameRole.FUNCTION, NameRole.FIGURE, NameRole.SOURCE, NameRole.SCHEDULE, NameRole.OPTIMIZER, NameRole.START,
}  # fmt: skip


def _sources() -> list[Source]:
    return [*texts.files(), *texts.pages()]


def _told(source: Source) -> list[str]:
    """The codes of all that check tells of a program."""
    sink = Sink()
    program = driver.check_source(source, sink)
    if program is not None and not sink.failed:
        driver.check_strategies(program, None, None, sink)
    return [diagnostic.code for diagnostic in sink.found]


def _written(text: str, places: Sequence[Span], new: str) -> str:
    for place in sorted(places, key=lambda place: -place.start):
        text = text[: place.start] + new + text[place.end :]
    return text


def test_each_name_has_a_role() -> None:
    for source in _sources():
        sink = Sink()
        tree, uses = parse(source, sink), texts.table(source).uses
        tokens = [] if sink.failed else [token for token in TokenStream(source, tables()) if token[0] == "NAME"]
        within = {at for use in uses for at in range(use.span.start, use.span.end)}
        assert not [source.text[start:end] for _, start, end in tokens if start not in within]
        names = [node.span for node in ast.nodes_of(tree.items) if isinstance(node, ast.Name)]
        assert not [name.place() for name in names if within.isdisjoint(range(name.start, name.end))]


def test_in_a_program_without_mistakes_each_name_is_declared() -> None:
    sound = [source for source in _sources() if "train {" in source.text and not _told(source)]
    assert len(sound) > 50
    for source in sound:
        uses = texts.table(source).uses
        assert not [u.span.place() for u in uses if u.declared is None and u.role not in _OF_LANGUAGE]


# --- other names -----------------------------------------------------------------

# Dims of the result of a convolution, which have the names that the library gives them: `height` in
# an arrow means such a dim, and not that of the file.
_TAKEN_FROM_OPERANDS = {("unet.shard", "height"), ("unet.shard", "width")}


def _renamed(source: Source, step: int) -> tuple[int, list[str]]:
    """How many names of a program got another one, and which of them changed what check tells, or did not come back."""
    table, wrong, count = texts.table(source), [], 0
    for use in [use for use in table.uses if use.declares][::step]:
        places = rename(table, use.span.start, _FRESH)
        if isinstance(places, str) or (source.name.rpartition("/")[2], use.span.text) in _TAKEN_FROM_OPERANDS:
            continue
        text, count = _written(source.text, places, _FRESH), count + 1
        back = rename(texts.program(text, source.name), min(place.start for place in places), use.span.text)
        if isinstance(back, str) and "word of the language" not in back and "already" not in back:
            wrong.append(f"{use.span.place()}: {back}")
        if not isinstance(back, str) and _written(text, back, use.span.text) != source.text:
            wrong.append(f"{use.span.place()}: another text")
        if _told(Source(source.name, text)):
            wrong.append(f"{use.span.place()}: check tells of {use.span.text}")
    return count, wrong


@pytest.mark.parametrize("path", texts.EXAMPLES, ids=lambda path: path.stem)
def test_an_example_with_another_name_is_the_same(path: object) -> None:
    source = next(source for source in texts.files() if source.name == str(path))
    count, wrong = _renamed(source, 3)
    assert count and not wrong


def test_a_program_of_a_page_with_another_name_is_the_same() -> None:
    found = [_renamed(source, 7) for source in texts.pages() if "train {" in source.text and not _told(source)]
    assert sum(count for count, _ in found) > 80
    assert not [each for _, wrong in found for each in wrong]


_NET = """use std.nn: Linear

dim batch = 8, d = 4

model Block(d: dim, gate: bool = true) {
  layer up = Linear(d, d)
  if gate {
    param gate: [d] = ones()

    forward(x: [batch, d]) -> [batch, d] {
      h = up(x) * gate
      return h
    }
  } else {
    forward(x: [batch, d]) -> [batch, d] {
      h = up(x)
      return h
    }
  }
}

model Net(d: dim = 4, ffn: dim = 8) {
  layer blocks[2] = Block(d)
  layer wide = Linear(d, ffn)

  forward(x: [batch, d]) -> [batch, ffn] {
    y = x |> blocks
    return wide(y)
  }
}

strategy s {
  mesh dp = auto, mp = 2
  split batch over dp
  split ffn, blocks.d over mp
  at blocks[0].h, wide: [batch@dp, ...]
  at blocks[*].up.weight: place on host
}

train {
  model = Net(ffn = 16)
  data = random(x: [batch, d], label: [batch, d])
  out = model(x)
  loss = mean(out) + mean(label) + 0 * sum(model.y) + 0 * sum(model.blocks[0].gate)
  optimizer at **.gate = adamw(lr = 1e-3)
  optimizer = adamw(lr = 1e-3)
  epochs = 1
}
"""


def _net() -> NameTable:
    return texts.program(_NET)


def _at(words: str) -> int:
    """The offset of the name after the last blank or bracket of some words, which stand there once."""
    assert _NET.count(words) == 1
    return _NET.index(words) + len(words) - 1


@pytest.mark.parametrize(
    ("words", "declared"),
    [
        ("layer up = Linear", "std.nn:4:7"),
        ("up = Linear(d", "program.shard:5:13"),
        ("if gate", "program.shard:5:21"),
        ("up(x) * gate", "program.shard:8:11"),
        ("      h = up(x)\n      return h", "program.shard:11:7"),
        ("forward(x: [batch, d]) -> [batch, ffn", "program.shard:22:23"),
        ("x |> blocks", "program.shard:23:9"),
        ("split batch over dp", "program.shard:33:8"),
        ("split ffn", "program.shard:22:23"),
        ("split ffn, blocks.d", "program.shard:5:13"),
        ("at blocks[0].h", "program.shard:11:7"),
        ("wide: [batch", "program.shard:3:5"),
        ("blocks[*].up.weight", "std.nn:5:9"),
        ("Net(ffn", "program.shard:22:23"),
        ("out = model", "program.shard:41:3"),
        ("model(x", "program.shard:42:17"),
        ("mean(out", "program.shard:43:3"),
        ("sum(model.y", "program.shard:27:5"),
        ("model.blocks[0].gate", "program.shard:8:11"),
        ("at **.gate", "program.shard:8:11"),
        ("use std.nn", "std.nn:1:1"),
    ],
)
def test_the_declaration_of_a_name(words: str, declared: str) -> None:
    found = definition(_net(), _at(words))
    assert found is not None and found.place() == declared


def test_a_field_of_the_language_is_declared_where_its_source_is_called() -> None:
    table = texts.program("train {\n  data = digits(batch = 8)\n  a = label\n}\n")
    found = definition(table, table.source.text.index("label"))
    assert found is not None and found.text == "digits"


def test_an_operator_is_called_where_a_formal_has_its_name() -> None:
    text, offset = texts.at(
        "model M(dropout: float) {\n  forward(x: [n]) -> [n] {\n    return ^dropout(x, p = dropout)\n  }\n}\n"
    )
    table = texts.program(text)
    assert definition(table, offset) is None
    assert [place.start for place in references(table, text.index("dropout"))] == [8, text.rindex("dropout")]


def test_a_name_in_parentheses_has_its_own_place() -> None:
    table = texts.program("dim a = 2, b = ( # of a\n (a) ) * a\n")
    assert [(use.span.text, use.span.start) for use in table.uses] == [("a", 4), ("b", 11), ("a", 26), ("a", 33)]


def test_references_are_all_places_of_a_name() -> None:
    lines = [place.line for place in references(_net(), _at("layer wide"))]
    assert lines == [24, 28, 36]
    assert [place.line for place in references(_net(), _at("model Block(d"))] == [5, 6, 6, 8, 10, 10, 15, 15, 35]


def test_a_selector_covers_layers_and_parameters_of_the_file() -> None:
    assert [place.text for place in covered(_net(), _at("at blocks[0].h"))] == ["h"]
    assert [place.text for place in covered(_net(), _at("at **.gate"))] == ["gate"]
    text = _NET.replace("blocks[*].up.weight", "blocks")
    table = texts.program(text)
    assert [place.text for place in covered(table, text.index("at blocks: place") + 4)] == ["up", "gate", "blocks"]
    assert covered(table, 0) == ()


_REFUSED = [
    ("up = Linear(d", "over", "`over` is a word of the language: take another name."),
    ("up = Linear(d", "relu", "`relu` is a word of the language: take another name."),
    ("up = Linear(d", "2d", "`2d` is no name: a name is made of letters, digits and `_`, and begins with no digit."),
    ("up = Linear(d", "h", "`h` is a value already (program.shard:11:7)."),
    ("layer up = Linear", "Dense", "`Linear` is of the library `std.nn`, which stays as it is."),
    ("out = model", "net", "`model` is a setting of `train`, and keeps its name."),
    ("sum", "total", "`sum` is of the language, so it cannot be renamed."),
    ("param gate", "open", "The selector `**.ga*` would name other things (program.shard:45:16)."),
    ("split batch over dp", "mp", "`mp` is an axis already (program.shard:33:19)."),
    ("mesh dp = auto, mp", "dp", "`dp` is an axis already (program.shard:33:8)."),
    ("use std.nn", "std", "`std.nn` is the name of a file or a library: it is changed where the file lies."),
]


@pytest.mark.parametrize(("words", "new", "why"), _REFUSED)
def test_a_name_that_cannot_be_given(words: str, new: str, why: str) -> None:
    text = _NET.replace("sum(model.y)", "mean(model.y)").replace("sum(model.b", "mean(model.b")
    text = text.replace("mean(out)", "sum(out)").replace("at **.gate", "at **.ga*")
    assert rename(texts.program(text), text.index(words) + len(words) - 1, new) == why


def test_names_that_something_outside_knows_stay() -> None:
    operator = 'operator ^twice(x: [n]) -> [n] {\n  linear x\n  flops n\n  python "ops.py": twice\n}\n'
    text, offset = texts.at(operator)
    verified = "`twice` is verified under this name: rename it by hand, and run `shardc verify` again."
    assert rename(texts.program(text), offset, "double") == verified
    python = "`x` is known to the Python function of `twice`, so it keeps its name."
    assert rename(texts.program(text), text.index("x:"), "y") == python
    text, offset = texts.at('train {\n  data = numpy("a.npz", ^x: [8, 4])\n  y = x\n}\n')
    assert (
        rename(texts.program(text), offset, "z") == "`x` is the name that `numpy` looks for in its file, so it stays."
    )
    text, offset = texts.at("train {\n  data = digits(batch = 8)\n  a = ^label\n}\n")
    assert rename(texts.program(text), offset, "z") == "`label` is a field that `digits` gives under this name."
    assert rename(_net(), 0, "z") == "There is no name here."


def test_a_name_of_another_file_is_renamed_in_both(tmp_path: object) -> None:
    folder = str(tmp_path)
    layers = Source(f"{folder}/layers.shard", "model Block(d: dim) {\n  param w: [d] = ones()\n}\n")
    text = 'use "./layers.shard": Block\n\nmodel Net {\n  layer b = Block(4, d = 2)\n}\n'
    with open(layers.name, "w", encoding="utf-8") as file:
        file.write(layers.text)
    program, other = texts.program(text, f"{folder}/net.shard"), texts.table(layers)
    refused = "`Block` is declared in another file: rename it there."
    assert rename(program, text.index("Block"), "Part") == refused
    found = rename(program, text.index("Block"), "Part", [other])
    assert not isinstance(found, str)
    assert sorted((place.source.name.rpartition("/")[2], place.line) for place in found) == [
        ("layers.shard", 1), ("net.shard", 1), ("net.shard", 4),
    ]  # fmt: skip
    assert rename(other, layers.text.index("Block"), "Part", [program]) != refused


# --- texts with mistakes -----------------------------------------------------------


def test_what_is_left_of_a_text_has_its_names() -> None:
    """Each prefix of an example has a table, and the names of its whole statements."""
    text = texts.TRANSFORMER.read_text("utf-8")
    for end in range(0, len(text), 23):
        table = texts.program(text[:end])
        assert all(use.span.end <= end for use in table.uses)
        for offset in (end, end // 2):
            definition(table, offset), references(table, offset), covered(table, offset), rename(table, offset, _FRESH)
    broken = texts.program(text.replace("memory = src_embed(source)", "memory = = src_embed(source"))
    assert "decoder" in [use.span.text for use in broken.uses if use.declares]


def test_circles_of_imports_end(tmp_path: object) -> None:
    folder = str(tmp_path)
    for one, other in (("a", "b"), ("b", "a")):
        with open(f"{folder}/{one}.shard", "w", encoding="utf-8") as file:
            file.write(f'use "./{other}.shard": M{other}\nmodel M{one} {{\n  layer x = M{other}()\n}}\n')
    with open(f"{folder}/a.shard", encoding="utf-8") as file:
        table = texts.program(
            file.read() + "train {\n  model = Ma()\n  optimizer at **.x.x = sgd(lr = 1)\n}\n", f"{folder}/a.shard"
        )
    assert [use.role for use in table.uses if use.span.text == "Mb"] == [NameRole.MODEL, NameRole.MODEL]
    assert covered(table, table.source.text.index("**")) == ()


def test_deep_expressions_have_names() -> None:
    table = texts.program(f"dim a = 1, b = {'(' * 140}a{')' * 140} + {'-' * 140}a\n")
    assert [use.span.text for use in table.uses] == ["a", "b", "a", "a"]
