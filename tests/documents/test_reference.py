"""The reference is what the declarations say, and tells of all of them; `shardc explain` prints its parts."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

import pytest

from shardlang.check.files.imports import LIBRARIES
from shardlang.check.train.frozen import FREEZE
from shardlang.check.train.hardware import SETTINGS as HARDWARE
from shardlang.check.train.settings import SETTINGS
from shardlang.cli import reference
from shardlang.cli.library import libraries
from shardlang.cli.main import run
from shardlang.cli.options import PATH
from shardlang.diagnostics import explain_pages
from shardlang.diagnostics.diagnostic import Sink
from shardlang.ops.declaration import REGISTRY
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse
from shardlang.syntax.tables import tables
from shardlang.syntax.words import CLAUSES, ITEMS, MEMBERS, RULES, Word
from tests.check.checked import checked
from tests.documents.bless import COMMAND, REFERENCE, SPECS, page, settings
from tests.documents.test_prose import prose
from tests.mdtest import blocks


def test_the_page_is_up_to_date() -> None:
    assert REFERENCE.read_text("utf-8") == page(), "run `python -m tests.documents.bless`"


def test_the_page_has_all_that_can_be_called() -> None:
    headings = [line[4:] for line in REFERENCE.read_text("utf-8").splitlines() if line.startswith("### ")]
    assert headings == reference.names()
    assert {name for name, operator in REGISTRY.items() if not operator.internal} < set(headings)


@pytest.mark.parametrize(("word", "said"), [
    ("matmul", "- `k` may be split: each rank then has a part of a sum, and the result is pending."),
    ("matmul", "left @ right, or matmul(left, right)"),
    ("softmax", "- `d` may be split: the ranks then exchange statistics, not the values."),
    ("cumsum", "- `seq` may not be split."),
    ("relu", "- Pending operands are summed first."),
    ("conv2d", "conv2d(x, weight, bias = none, stride = (1, 1), padding = (0, 0), dilation = (1, 1), groups = 1)"),
    ("adamw", "adamw(lr: number, betas = (0.9, 0.999), eps = 1e-8, weight_decay = 0.01)"),
    ("csv", 'csv(field: type, ..., path: str, header: bool = none, delimiter = ",", shuffle = true,'),
    ("digits", "Fields: `image: [batch, 64]`, `label: i64[batch] < 10`."),
    ("warmup_cosine", "(1 + cos(pi (s - k) / (n - k))) / 2"),
    ("normal", "normal(std = 1)"),
    ("constant", "Every element is `value`."),
    ("zero", "    zero 3 over dp\n"),
    ("microbatches", "without, this is gradient accumulation"),
    ("checkpoint", 'checkpoint = every(100, keep = 3, to = "checkpoints")'),
    ("clip", "It is a setting of `train`"),
    ("split", "    split heads, ffn, vocab over mp\n"),
    ("schedule", "setting of the learning rate is `lr_schedule`"),
    ("memory", "    memory = 80GB\n"),
    ("latency", "The time of one hop to another node.\n\nIt is a setting of a `cluster`"),
    ("freeze", "keep their initial values"),
    ("Linear", "    use std.nn: Linear\n    Linear(in: dim, out: dim, bias: bool = true)\n"
               "      param weight: [out, in] = kaiming_uniform(in)\n"),
    ("Linear", "y = x weight' + bias, over the last dim."),
    ("Attention", "    use std.llama: Attention\n"),
    ("GPT2", "heads: dim = 12,\n        layers: int = 12"),
    ("std.llama.Block", "### Block\n\n    use std.llama: Block\n"),
    ("set", "The learning rate of each step"),
    ("std.nn", "It has `Linear`, `Conv2d`"),
    ("h100_pod", "--cluster std.clusters.h100_pod"),
])  # fmt: skip
def test_explain_tells_of_a_name(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", word]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("word", "said"), [
    ("matmull", "there is nothing called `matmull` to explain; did you mean `matmul`?"),
    ("adamW", "did you mean `adamw`?"),
    ("SHOW", "there is nothing called `SHOW`"),
    ("transfer", "there is nothing called `transfer`"),
    ("zzzzzz", "`shardc explain` lists all"),
    ("transpose", "to explain; `x.transpose(1, 2)` is `rearrange(x -> [batch, d, seq])` here"),
    ("checkpoints", "did you mean `checkpoint`?"),
    ("std.nm", "did you mean `std.nn`?"),
])  # fmt: skip
def test_an_unknown_name_gets_the_nearest(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", word]) == 2
    assert said in capsys.readouterr().err


# Where a word of each table may stand.
FRAMES = {
    "ITEMS": ["{}"],
    "MEMBERS": ["model M {{\n{}\n}}", "{}"],
    "RULES": ["strategy s {{\n{}\n}}"],
    "CLAUSES": ["operator f(x: [n]) -> [n] {{\n{}\n}}", "optimizer f(lr: float) {{\n{}\n}}"],
    "TRAIN": ["train {{\n{}\n}}"],
    "HARDWARE": ["device d {{\n{}\n}}"],
}
TABLES = {
    "ITEMS": ITEMS, "MEMBERS": MEMBERS, "RULES": RULES, "CLAUSES": CLAUSES, "TRAIN": {**SETTINGS, **FREEZE},
    "HARDWARE": {word: Word(f"{word} = {q.example}", q.doc) for of in HARDWARE.values() for word, q in of.items()},
}  # fmt: skip


def test_every_word_of_the_language_has_a_text() -> None:
    ours = {word for name in ("ITEMS", "MEMBERS", "RULES", "CLAUSES") for word in TABLES[name]}
    assert ours <= set(tables().keywords) <= ours | {"metric"}
    assert {word for table in TABLES.values() for word in table} < set(reference.names())


def parses(text: str) -> bool:
    sink = Sink()
    parse(Source("form", f"{text}\n"), sink)
    return not sink.found


@pytest.mark.parametrize(("table", "word"), [(name, word) for name, table in TABLES.items() for word in table])
def test_a_word_is_shown_where_it_may_stand(table: str, word: str) -> None:
    form = TABLES[table][word].form
    assert re.search(rf"\b{word}\b", form)
    assert any(parses(frame.format(form)) for frame in FRAMES[table])


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_has_a_text_of_each_thing(library: str) -> None:
    all, has = libraries()[library]
    texts = {name: shipped.doc.partition("\n")[0] for name, shipped in has.items()}
    assert has and {name for name, text in texts.items() if not re.match(r"[A-Za-z].*[a-z.,]", text)} == set()
    assert re.match("[A-Z]", all.doc)


@pytest.mark.parametrize("name", dict.fromkeys(reference.names()))
def test_what_the_list_says_of_a_name_is_a_whole_sentence(name: str) -> None:
    said, entry = reference.summary(name), " ".join(reference.entry(name).split())
    assert re.search(r"[^ .,]\.$", said) and re.search(rf"{re.escape(said[:-1])}[.:]( |$)", entry)


def test_pages_of_common_mistakes_show_a_repaired_program() -> None:
    repaired = [
        code
        for code, path in explain_pages.pages().items()
        for before, block in pairwise(blocks(path.read_text("utf-8")))
        if before.expected and not block.expected and "\nRepaired: " in path.read_text("utf-8")
    ]
    said = [code for code in explain_pages.pages() if "\nRepaired: " in explain_pages.page(code)]
    assert len(said) >= 30 and set(said) <= set(repaired)


def test_the_page_of_the_command_has_all_that_can_be_set(capsys: pytest.CaptureFixture[str]) -> None:
    written = COMMAND.read_text("utf-8")
    assert written == settings(written), "run `python -m tests.documents.bless`"
    assert run(["explain", "set"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for typed, said in reference.settable():
        assert f"| `{typed}` | {said} |" in written and f"- `{typed}`: {said}" in shown


SET = """\
dim batch = 8

model Net(d: dim = 64) {
  param w: [d] = ones()

  forward(image: [batch, 1, 28, 28]) -> [batch, 1, 28, 28] {
    return image * mean(w)
  }
}

train {
  model = Net()
  data = mnist("data/mnist", batch = batch)
  eval = mnist("data/mnist", split = "test", batch = batch)
  y = model(image)
  loss = mean(square(y)) + 0.0 * mean(cast(label, f32))
  optimizer = adamw(lr = 3e-4)
  checkpoint = every(5)
  epochs = 1
}

strategy three_d {
  mesh dp = auto, mp = 2
  split batch over dp
}
"""


@pytest.mark.parametrize("typed", [typed for typed, _ in reference.settable()])
def test_an_example_of_what_can_be_set_can_be_typed(typed: str) -> None:
    (word,) = shlex.split(typed)
    path, _, value = word.partition("=")
    assert PATH.fullmatch(path)
    assert checked(SET, {path: value}).messages == []


def test_a_page_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    for word in ("SH304", "csv", "softmax", "Linear", "std.nn", "set"):
        assert run(["explain", word]) == 0
        shown = capsys.readouterr().out
        assert all(len(line) <= 60 for number, line in prose(shown)), word
        monkeypatch.undo()
        assert run(["explain", word]) == 0
        assert shown.split() == capsys.readouterr().out.split()
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "60")


def test_the_list_has_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    listed = [line.partition("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(listed) == len(set(listed))
    assert set(reference.names()) < set(listed)


def test_the_pages_that_a_word_is_said_to_have_speak_of_it() -> None:
    """In their code: a word may be one of the language of every day."""
    for heading, said, declared in reference.sections():
        pages = [(SPECS / page).read_text("utf-8") for page in re.findall(r"`(\w+\.md)`", said)]
        code = " ".join(re.findall(r"(?s)```.*?```|`[^`]+`", "\n".join(pages)))
        assert not pages or [word for word in declared if not re.search(rf"\b{word}\b", code)] == [], heading
