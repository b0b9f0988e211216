"""What is kept of an open file gives the answer of a fresh check, whatever is edited."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.editor.kept import Kept
from shardlang.editor.open_file import OpenFile
from shardlang.editor.text import TextEdit
from shardlang.sources.source import Source
from tests.editor import texts
from tests.editors import edits

TRANSFORMER = texts.TRANSFORMER.read_text("utf-8")


@pytest.mark.parametrize("seed", range(4))
def test_edits_of_any_file(seed: int) -> None:
    clean = 0
    for file, _ in edits.edited_files(60, seed):
        clean += file.program is not None
        edits.require_kept(file, clean % 12 == 1)


@pytest.mark.parametrize("name", ["transformer", "llama", "digits"])
def test_edits_of_an_example(name: str) -> None:
    chosen = [source for source in texts.files() if Path(source.name).stem == name]
    for file, _ in edits.edited_files(25, 1, chosen):
        edits.require_kept(file, plans=False)


def test_prefixes_have_an_answer() -> None:
    assert edits.require_answers(23) > 70


def both(*lines: str) -> None:
    """Texts one after the other in one open file."""
    kept = Kept()
    for text in lines:
        source = Source("a.shard", text)
        edits.require_same(kept.check(source), edits.fresh(source))


def test_a_program_is_kept_while_a_strategy_changes_and_moves_with_lines_before_it() -> None:
    kept = Kept()
    first = kept.check(Source("a.shard", TRANSFORMER)).program
    longer = TRANSFORMER.replace("  split batch over dp\n", "  split batch over dp\n\n\n", 1)
    second = kept.check(Source("a.shard", longer))
    assert first is not None and second.program is not None
    assert second.program.graph is first.graph
    edits.require_same(second, edits.fresh(Source("a.shard", longer)))


def test_an_imported_file_that_changes_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "b.shard").write_text("dim wide = 4\n")
    name, text = str(tmp_path / "a.shard"), 'use "./b.shard": wide\n\ndim twice = 2 * wide\n'
    kept = Kept()
    assert not kept.check(Source(name, text)).found
    (tmp_path / "b.shard").write_text("dim wider = 4\n")
    assert [each.code for each in kept.check(Source(name, text)).found] == ["SH202"]
    (tmp_path / "b.shard").unlink()
    assert [each.code for each in kept.check(Source(name, text)).found] == ["SH203"]


def test_a_mistake_that_names_a_line_is_told_anew() -> None:
    model = (
        "model Net(d: dim) {\n  layer a = Linear(d, d)\n  forward(x: [batch, d]) -> [batch, d] {\n"
        "    return a(x)\n  }\n}\n"
    )
    strategy = "strategy s {\n  mesh dp = auto\n  split batch over dp\n}\n"
    both(*(f"use std.nn: Linear\ndim batch = 4\n{strategy}{gap}{model}{train}" for gap in ("", "\n\n") for train in (
        "", "train {\n  model = Net(4)\n}\n", "train {\n  modle = Net(4)\n}\n",
    )))  # fmt: skip


def test_a_name_that_may_be_a_setting_depends_on_the_whole_text() -> None:
    text = "use std.nn: Linear\n\ntrain {\n  epoch = 3\n}\n\nstrategy s {\n  mesh dp = auto\n}\n"
    both(text, text.replace("strategy s", "strategy epoch"), text)


def test_open_items_take_what_follows_and_give_it_back() -> None:
    text = "model A {\n  param w: [4] = ones()\ndim a = 3\n}\n\ndim b = 4\n\nstrategy s {\n  mesh dp = auto\n}\n"
    both(text, text.replace("}\n\ndim", "\n\ndim"), text.replace("model A {", "model A"), text)


def test_memory_is_flat_over_edits() -> None:
    """Twice as many objects after many edits would be a leak."""
    import gc

    file = OpenFile("a.shard", (texts.ROOT / "examples/digits.shard").read_text("utf-8"))
    at = file.text.index("split hidden")

    def rounds(count: int) -> int:
        for _ in range(count):
            for each in (TextEdit(at, at, "x"), TextEdit(at, at + 1, ""), TextEdit(0, 0, "dim"), TextEdit(0, 3, "")):
                file.change(each)
                file.check()
            file.hints  # noqa: B018
        gc.collect()
        return len(gc.get_objects())

    few = rounds(5)
    assert rounds(30) < few * 1.02


def test_models_that_are_fine_by_themselves_are_told_of_as_in_a_fresh_check() -> None:
    """A model that another one runs is checked by itself only where that one is not fine."""
    head = "use std.nn: Linear\ndim batch = 8, d = 4\n"
    outer = (
        "model Outer {\n  layer a = Inner(d)\n  forward(x: [batch, d]) -> [batch, d] {\n    return a(x)\n  }\n}\n"
        "fn twice(x: [batch, d]) -> [batch, d] {\n  return x + OTHER\n}\n"
    )
    inner = (
        "model Inner(n: dim) {\n  layer up = Linear(n, 4)\n  forward(x: [batch, n]) -> [batch, n] {\n"
        "    return up(x) + x\n  }\n}\n"
    )
    trains = (
        "train {\n  model = Outer()\n  data = rando(x: [batch, d])\n}\n", "train {\n  modl = Outer()\n}\n",
        "train {\n  model = Outer()\n  y = zzz\n}\n", "train {\n  model = Inner(4)\n  precision = bf16\n}\n", "",
    )  # fmt: skip
    for other in ("x", "zzz"):
        items = head + outer.replace("OTHER", other) + inner
        both(*(items + train for train in (*trains, *reversed(trains))))
        both(*(items.replace("up(x) + x", "up(x) + y") + train for train in (*trains, *reversed(trains))))
