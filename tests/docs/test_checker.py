"""What the page of programs asks of the language, here in this Python: the answers are those of the editor's modules,
at lines and columns from 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from docs.order import ROOT
from docs.page import checker
from docs.page.checker import OpenPage
from shardlang.editor.open_file import OpenFile
from shardlang.editor.planned import shown

TRANSFORMER = (ROOT / "examples" / "transformer.shard").read_text("utf-8")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenPage:
    opened = OpenPage(tmp_path)
    monkeypatch.setattr(checker, "PAGE", opened)
    return opened


def asked(text: str, **more: Any) -> str:
    return json.dumps({"text": text, "files": {}, "strategy": None, "ranks": None, **more})


def last() -> dict[str, Any]:
    found = None
    while (part := checker.planned()) is not None:
        found = json.loads(part)
    assert found is not None
    return found


def test_hints_and_figures_are_those_of_an_editor(page: OpenPage) -> None:
    file = OpenFile(str(page.folder / "program.shard"), TRANSFORMER, "three_d", 8)
    file.check()
    assert file.program is not None and file.checked is not None
    for part in shown(file.program, file.checked.tree, "three_d", 8):
        file.take(part)
    assert json.loads(checker.checked(asked(TRANSFORMER, strategy="three_d", ranks=8)))["mistakes"] == []
    found = last()
    assert [hint["text"] for hint in found["hints"]] == [hint.text for hint in file.hints]
    assert found["hints"][0]["at"][0] == 1 + TRANSFORMER[: file.hints[0].at].count("\n")
    chosen = next(one for one in found["strategies"] if one["chosen"])
    assert chosen == {"name": "three_d", "text": file.lenses[2].text, "chosen": True} and found["ranks"] == 8
    # The plans of other strategies would keep the next key waiting.
    assert [one["text"] for one in found["strategies"]][:2] == ["..", ".."]


def test_a_mistake_has_its_place_in_units_of_utf_16(page: OpenPage) -> None:
    (mistake,) = json.loads(checker.checked(asked('use "𝕏.shard": A\n')))["mistakes"]
    assert (mistake["code"], mistake["start"], mistake["end"]) == ("SH203", [1, 5], [1, 15])
    assert checker.planned() is None


def test_fixes_and_related_places_come_with_a_mistake(page: OpenPage) -> None:
    found = json.loads(checker.checked(asked(TRANSFORMER.replace("= Linear(d", "= Linaer(d"))))
    fixes = [fix for mistake in found["mistakes"] for fix in mistake["fixes"]]
    assert {"title": "write `Linear`", "edits": [{"start": [14, 16], "end": [14, 22], "text": "Linear"}]} in fixes


def test_old_hints_move_with_the_text(page: OpenPage) -> None:
    checker.checked(asked(TRANSFORMER))
    before = last()["hints"]
    text = "# one more line\n" + TRANSFORMER
    checker.checked(asked(text))
    after = json.loads(checker.checked(asked(text.replace("train {", "train {{"))))
    assert after["mistakes"]
    assert [hint["at"][0] for hint in after["hints"]] == [1 + hint["at"][0] for hint in before]


def test_what_is_told_and_offered(page: OpenPage) -> None:
    checker.checked(asked(TRANSFORMER, strategy="three_d"))
    last()
    told = json.loads(checker.pointed(17, 6))
    assert (told["start"], told["end"]) == ([17, 5], [17, 11]) and "all-gather over mp" in told["text"]
    assert json.loads(checker.pointed(2, 1)) is None
    offers = {each["label"]: each for each in json.loads(checker.offered(25, 9))}
    assert offers["batch"]["start"] == [25, 9]


def test_a_file_beside_is_imported_and_no_other_is_written(page: OpenPage) -> None:
    layer = "model Half(d: dim) {\n  forward(x: [d]) -> [d] {\n    return x * 0.5\n  }\n}\n"
    files = {"half.shard": layer, "../out.shard": layer, "a/b.shard": layer, "/tmp/x.shard": layer, "x.py": ""}
    text = 'use "./half.shard": Half\n'
    assert json.loads(checker.checked(asked(text, files=files)))["mistakes"] == []
    assert [path.name for path in page.folder.iterdir()] == ["half.shard"]
    assert not (page.folder.parent / "out.shard").exists()


def test_mistakes_of_a_plan_are_told(page: OpenPage) -> None:
    checker.checked(asked(TRANSFORMER, strategy="model_parallel", ranks=7))
    assert [mistake["code"] for mistake in last()["mistakes"]]
