"""Vim and Neovim with the files of editors/vim: colours of the words of rules and of names, and how far lines go in."""

from __future__ import annotations

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.editors.cached import program
from tests.syntax.roles import FIT, WORD, Marked, marked, texts
from tests.syntax.textmate import AXIS, DIM, FUNCTION, MODEL, SELECTOR, SETTING

FILES = Path(__file__).resolve().parents[2] / "editors" / "vim"
# Vim's groups, which all colour schemes have, by the scope of a role; a function is an identifier to it.
GROUPS = {
    AXIS: {"PreProc"}, DIM: {"Constant"}, FUNCTION: {"Identifier", "Type"}, MODEL: {"Type"}, SELECTOR: {"Underlined"},
    SETTING: {"Identifier"},
}  # fmt: skip
EDITORS = pytest.mark.parametrize("editor", ["vim", "nvim"])
# Prints the group of each place of a file, as JSON: [[line, column], ..] -> [name, ..].
ASKS = """
set nocompatible
let &runtimepath = $SHARD_FILES .. ',' .. &runtimepath
filetype plugin indent on
syntax on
execute 'edit ' .. $SHARD_PROGRAM
let found = []
for [row, column] in json_decode(join(readfile($SHARD_PLACES)))
  call add(found, synIDattr(synIDtrans(synID(row, column, 1)), 'name'))
endfor
call writefile([json_encode(found)], $SHARD_FOUND)
normal! gg=G
silent write! $SHARD_INDENTED
qall!
"""


def asked(editor: str, text: str, places: list[tuple[int, int]], folder: Path) -> tuple[list[str], str]:
    """The groups at places, and the text with the indentation of the editor."""
    files = {name: folder / name for name in ("asks.vim", "program.shard", "places", "found", "indented")}
    files["asks.vim"].write_text(ASKS, "utf-8")
    files["program.shard"].write_text(text, "utf-8")
    files["places"].write_text(json.dumps(places), "utf-8")
    known = {f"SHARD_{name.partition('.')[0].upper()}": str(path) for name, path in files.items()}
    options = ["-es", "-N"] if editor == "vim" else ["--headless"]
    command = [program(editor), *options, "-u", "NONE", "-i", "NONE", "-n", "-S", str(files["asks.vim"])]
    subprocess.run(command, env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "SHARD_FILES": str(FILES), **known},
                   stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
    return json.loads(files["found"].read_text("utf-8")), files["indented"].read_text("utf-8")


def fits(each: Marked, text: str, group: str) -> bool:
    """Whether a group fits what a name or a word is."""
    if each.role == WORD:
        return group == ("Constant" if text in ("true", "false") else "Statement")
    wanted = next(
        (groups for scope in FIT.get(each.role, ()) for start, groups in GROUPS.items() if start == scope), None
    )
    return group != "Statement" if wanted is None else group in wanted


def place(text: str, at: int) -> tuple[int, int]:
    """Line and column, counted in bytes."""
    before = text[:at]
    return before.count("\n") + 1, len(before[before.rfind("\n") + 1 :].encode()) + 1


def program_text() -> str:
    """Programs that have each kind of line."""
    found = texts()
    names = [*(f"examples/{name}.shard" for name in ("transformer", "llama", "lora")), "stdlib/clusters.shard"]
    blocks = [found[name] for name in found if name.startswith("extensions.md")]
    return "\n".join([*(found[name] for name in names), *blocks])


@EDITORS
def test_names_have_colours_of_what_they_are(editor: str, tmp_path: Path) -> None:
    text = program_text()
    here = marked(text)
    groups, _ = asked(editor, text, [place(text, each.start) for each in here], tmp_path)
    told = [(each, text[each.start : each.end], group) for each, group in zip(here, groups, strict=True)]
    wrong = [(each.role, word, group) for each, word, group in told if not fits(each, word, group)]
    assert len(told) > 500 and [each for each in wrong if each[0] == WORD] == []
    assert Counter(wrong).total() <= len(told) / 100, wrong


@EDITORS
def test_words_as_names_are_no_keywords(editor: str, tmp_path: Path) -> None:
    text = "strategy s {\n  mesh model = 2, at = auto\n  split source, place over (model, at)\n}\n"
    text += "train {\n  model = f(over = 1)\n}\n"
    words = {"mesh": "Statement", "auto": "Statement", "split": "Statement", "over": "Statement", "train": "Statement"}
    names = {"model": "PreProc", "at =": "PreProc", "source": "Constant", "place": "Constant", "f(": "Identifier"}
    places = [place(text, text.index(each)) for each in (*words, *names)]
    places += [place(text, text.rindex(each)) for each in ("model", "over")]
    groups, _ = asked(editor, text, places, tmp_path)
    assert groups == [*words.values(), *names.values(), "Identifier", "Identifier"]


@EDITORS
def test_lines_go_in_as_the_formatter_has_them(editor: str, tmp_path: Path) -> None:
    text = texts()["examples/transformer.shard"] + texts()["examples/dense_chain.shard"]
    flat = re.sub(r"^ +(?! |max_len)", "", text, flags=re.MULTILINE)
    assert flat != text
    assert asked(editor, flat, [], tmp_path)[1] == text
