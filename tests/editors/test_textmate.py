"""The TextMate grammar in VS Code's own engine: each name and each word of a program has a scope that fits it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from shardlang.syntax.highlight import ShardLexer, token_of
from tests.editors.cached import modules, program, required
from tests.syntax.bless import COLOURS
from tests.syntax.roles import WORD, as_names, marked, texts
from tests.syntax.test_colours import WORDS

ENGINE = {"vscode-oniguruma": "2.0.1", "vscode-textmate": "9.3.2"}
Scopes = dict[str, dict[int, str]]


def scopes(programs: Mapping[str, str]) -> Scopes:
    """The scope of each character of each program."""
    command = [
        program("node", missing=required),
        str(Path(__file__).with_name("tokens.js")),
        str(modules(ENGINE)),
        str(COLOURS),
    ]
    done = subprocess.run(command, input=json.dumps(programs), capture_output=True, text=True, check=True)
    found: Scopes = {name: {} for name in programs}
    begins = {name: _line_starts(text) for name, text in programs.items()}
    for name, line, start, end, scope in map(json.loads, done.stdout.splitlines()):
        first = begins[name][line]
        found[name] |= dict.fromkeys(range(first + start, first + end), scope)
    return found


def _line_starts(text: str) -> list[int]:
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    return starts


@pytest.fixture(scope="module")
def of_texts() -> Scopes:
    return scopes(texts())


def test_names_have_scopes_of_what_they_are(of_texts: Scopes) -> None:
    names, wrong = Counter[str](), Counter[str]()
    for name, text in texts().items():
        for each in marked(text):
            names[each.role] += 1
            wrong[each.role] += not all(each.fits(of_texts[name][place]) for place in range(each.start, each.end))
    assert names.total() > 10_000 and len(names) > 40
    assert wrong[WORD] == 0
    assert {role: count for role, count in wrong.items() if count > names[role] / 100} == {}


def test_everything_but_spaces_has_a_scope(of_texts: Scopes) -> None:
    bare = {
        (name, text[place])
        for name, text in texts().items()
        for place, scope in of_texts[name].items()
        if not scope and place < len(text) and not text[place].isspace()
    }
    assert bare == set()


def test_a_word_of_a_rule_may_be_any_name() -> None:
    programs = {word: as_names(word) for word in WORDS}
    found = scopes(programs)
    wrong = [
        (word, each.role, programs[word][each.start : each.end], found[word][each.start])
        for word in WORDS
        for each in marked(programs[word])
        if not each.fits(found[word][each.start])
    ]
    assert wrong == []


def test_lexer_and_grammar_give_the_same_colours(of_texts: Scopes) -> None:
    """Pygments reads the same rules with Python's patterns."""
    for name, text in texts().items():
        for start, token, value in ShardLexer().get_tokens_unprocessed(text):
            there = {token_of(of_texts[name][start + at]) for at, sign in enumerate(value) if not sign.isspace()}
            assert there <= {token}, (name, value, there, token)
