"""Hints, texts and lenses of examples, as one reads them; hints fit their room in every program."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.editor.hints import ROOM
from shardlang.editor.kept import Kept
from shardlang.editor.open_file import OpenFile
from shardlang.editor.planned import page, ranks_of, shown, shown_in_library
from shardlang.editor.shown import ShownFigures, ShownLayouts
from shardlang.editor.text import TextEdit
from shardlang.sources.source import Source

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.shard"))


def told(path: Path, strategy: str | None = None, ranks: int | None = None) -> OpenFile:
    file = OpenFile(str(path), path.read_text("utf-8"), strategy, ranks)
    file.check()
    assert file.program is not None and file.checked is not None
    for each in shown(file.program, file.checked.tree, strategy, ranks):
        file.take(each)
    return file


def behind_lines(file: OpenFile) -> dict[str, str]:
    """The hints by the text of their line."""
    found: dict[str, str] = {}
    for hint in file.hints:
        line = file.text[: hint.at].rpartition("\n")[2].strip()
        found[line] = " ~ ".join(filter(None, (found.get(line), hint.text)))
    return found


def test_hints_of_the_transformer() -> None:
    assert behind_lines(told(ROOT / "examples/transformer.shard", "three_d", 8)) == {
        "memory = src_embed(source) |> encoder": "batch@dp, src@mp ~ 79.7 MB over mp, ..",
        "states = tgt_embed(target) |> decoder(memory)": "batch@dp, tgt@mp ~ 117 MB over mp, ..",
        "return head(states)": "batch@dp, vocab@mp",
        "loss = cross_entropy(logits, label, ignore_index = 0)": "+dp ~ 12.3 kB over mp, ..",
    }


def test_a_lens_says_what_a_strategy_costs() -> None:
    lines = {lens.strategy: (lens.text, lens.chosen) for lens in told(ROOT / "examples/digits.shard", "both", 8).lenses}
    assert lines["both"] == ("8 ranks (dp 4, mp 2): 81.2 kB at the peak, 29.8 kB sent a step", True)
    assert lines["sharded"] == ("8 ranks (dp 8): 106 kB at the peak, 72.7 kB sent a step", False)


def test_a_statement_tells_its_layout_what_is_sent_and_which_rules_decide() -> None:
    file = told(ROOT / "examples/digits.shard", "both", 8)
    _, text = file.planned_text(file.text.index("h = up(image)")) or ((0, 0), "")
    assert text == (
        "`f32[batch@dp, hidden@mp]`\n\nA rank holds 16 x 64, 4.10 kB\n\n"
        "Decided by `split batch over dp` (line 31), `split hidden over mp` (line 32)"
    )


def test_a_layer_tells_its_memory_and_an_axis_its_groups() -> None:
    layouts = told(ROOT / "examples/digits.shard", "both", 8).layouts
    assert layouts is not None
    assert layouts.layers["Digits", "up"] == (
        "`up`\n\nA rank holds of it: parameters 16.7 kB, gradients 16.7 kB, optimizer 16.7 kB\n\n"
        "A step sends for it:\n- all-reduce over dp: 25.0 kB backward"
    )
    assert layouts.axes["mp"] == "Axis `mp`: 2 ranks in each of 4 groups\n\n{0, 1} {2, 3} {4, 5} {6, 7}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_hints_of_a_line_fit_their_room(path: Path) -> None:
    file = told(path)
    lines = Counter[int]()
    for hint in file.hints:
        lines[file.text.count("\n", 0, hint.at)] += len(hint.text)
    assert max(lines.values()) <= ROOM
    assert all(lens.text not in ("", "..") for lens in file.lenses) and file.mistakes == []


def test_hints_and_lenses_move_with_edits_and_outlive_mistakes() -> None:
    path = ROOT / "examples/digits.shard"
    file = told(path, "both", 8)
    before = behind_lines(file)
    file.change(TextEdit(0, 0, "dimm wrong = 4\n\n"))
    file.check()
    assert file.program is None and [mistake.code for mistake in file.mistakes] == ["SH101"]
    assert behind_lines(file) == before
    assert [file.text[lens.at :].partition(" ")[0] for lens in file.lenses] == [lens.strategy for lens in file.lenses]
    file.change(TextEdit(0, len("dimm wrong = 4\n\n"), ""))
    file.check()
    assert file.mistakes == [] and behind_lines(file) == before


def test_a_mistake_of_the_plan_is_shown_where_it_is_and_goes_with_its_text() -> None:
    path = ROOT / "examples/digits.shard"
    file = OpenFile(str(path), path.read_text("utf-8").replace("dp = auto, mp = 2", "dp = 4, mp = 2"), "both", 16)
    file.check()
    assert file.program is not None and file.checked is not None and file.mistakes == []
    for each in shown(file.program, file.checked.tree, "both", 16):
        file.take(each)
    (mistake,) = file.mistakes
    assert mistake.code == "SH303" and file.text[mistake.start : mistake.end].startswith("mesh dp = 4")
    assert [fix.title for fix in mistake.fixes] == ["make `dp` 8", "make `mp` 4"]
    file.change(TextEdit(0, 0, "# "))
    assert file.mistakes[0].start == mistake.start + 2


def test_the_page_shows_what_an_editor_shows() -> None:
    page = (ROOT / "specs/editors.md").read_text("utf-8")
    text = page.partition("```shard ranks=8\n")[2].partition("```")[0]
    file = OpenFile("a.shard", text, None, 8)
    file.check()
    assert file.program is not None and file.checked is not None
    for each in shown(file.program, file.checked.tree, None, 8):
        file.take(each)
    found: dict[int, list[str]] = {}
    for at, told in [*((hint.at, hint.text) for hint in file.hints), *((lens.at, lens.text) for lens in file.lenses)]:
        found.setdefault(text.count("\n", 0, at) + 1, []).append(told)
    lines = text.splitlines()
    rows = [f"{row:2} | {lines[row - 1]:40} {'  '.join(texts)}" for row, texts in sorted(found.items())]
    assert page.partition("```text\n")[2].partition("```")[0].splitlines() == rows


def test_layouts_come_first_and_memory_after() -> None:
    path = ROOT / "examples/digits.shard"
    checked = Kept().check(Source(str(path), path.read_text("utf-8")))
    assert checked.program is not None
    kinds = [type(each) for each in shown(checked.program, checked.tree, None, 8)]
    assert kinds == [ShownLayouts, ShownFigures, ShownLayouts, ShownFigures, ShownFigures, ShownFigures]


@pytest.mark.parametrize(("mesh", "ranks"), [("a = 2, b = 3", 6), ("a = auto, b = 2", 8), ("a = 16, b = auto", 16)])
def test_ranks_are_those_of_the_mesh(mesh: str, ranks: int) -> None:
    text = (ROOT / "examples/digits.shard").read_text("utf-8").replace("mesh dp = auto, mp = 2", f"mesh {mesh}")
    checked = Kept().check(Source("a.shard", text.replace("over dp", "over a").replace("over mp", "over b")))
    strategy = next(each for each in checked.tree.strategies if each.name.text == "both")
    program = Kept().check(Source("a.shard", (ROOT / "examples/digits.shard").read_text("utf-8"))).program
    assert program is not None and ranks_of(program, strategy) == ranks


def test_a_fault_of_ours_is_told_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise InternalError("a value has no layout")

    path = ROOT / "examples/digits.shard"
    monkeypatch.setattr("shardlang.editor.planned.statements", fails)
    assert [mistake.code for mistake in told(path).mistakes] == ["SH900"]
    monkeypatch.setattr(Kept, "check", fails)
    file = OpenFile(str(path), path.read_text("utf-8"))
    file.check()
    assert [(mistake.code, mistake.start) for mistake in file.mistakes] == [("SH900", 0)]
    monkeypatch.undo()
    file.check()
    assert file.mistakes == []


def test_a_fault_of_ours_is_told_wherever_a_plan_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    file = OpenFile("a.shard", (ROOT / "examples/digits.shard").read_text("utf-8"))
    file.check()
    assert file.program is not None and file.checked is not None

    def fail(*_: object, **__: object) -> None:
        raise KeyError("lost <it>")

    monkeypatch.setattr("shardlang.driver.plan_program", fail)
    (told,) = page(file.program, None, 8)
    assert told is not None and "a fault of shardc" in told and "lost &lt;it&gt;" in told
    monkeypatch.setattr("shardlang.editor.planned.statements", fail)
    for found in (
        shown(file.program, file.checked.tree, None, 8),
        shown_in_library(file.program, None, 8, file.checked.tree, "std.nn", ("Digits", "up")),
    ):
        (figures,) = found
        assert isinstance(figures, ShownFigures) and [each.code for each in figures.mistakes] == ["SH900"]
