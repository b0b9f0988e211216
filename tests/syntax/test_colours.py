"""The colours of the lexer, held to what each name and each word of a program is to the parser."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from pygments.token import Error

from shardlang.syntax.highlight import ShardLexer, token_of
from shardlang.syntax.tables import RESERVED, tables
from tests.syntax.bless import COLOURS
from tests.syntax.roles import WORD, Marked, as_names, marked, texts

SCOPES = set(re.findall(r'"name": "([a-z][\w.-]*)\.shard"', COLOURS.read_text("utf-8")))
TEXTS = texts()
# Names of the language that no name of a program may be.
WORDS = sorted(word for word, kind in tables().keywords.items() if kind not in RESERVED)


def misfits(text: str) -> list[tuple[str, str, str]]:
    """What has a colour that does not fit it: what it is, its text, its colour."""
    colours = {}
    for start, token, value in ShardLexer().get_tokens_unprocessed(text):
        colours |= dict.fromkeys(range(start, start + len(value)), token)
    return [
        (each.role, text[each.start : each.end], str(colours[each.start]))
        for each in marked(text)
        if {colours[place] for place in range(each.start, each.end)} - _fitting(each)
    ]


def _fitting(each: Marked) -> set[object]:
    return {token_of(scope) for scope in SCOPES if each.fits(scope)}


def test_names_have_colours_of_what_they_are() -> None:
    names = Counter(each.role for text in TEXTS.values() for each in marked(text))
    wrong = Counter(role for text in TEXTS.values() for role, *_ in misfits(text))
    assert names.total() > 10_000 and len(names) > 40
    assert wrong[WORD] == 0
    assert {role: count for role, count in wrong.items() if count > names[role] / 100} == {}


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_a_rule_may_be_any_name(word: str) -> None:
    text = as_names(word)
    roles = Counter(each.role for each in marked(text) if text[each.start : each.end] == word)
    assert roles.total() - roles[WORD] > 70 and len(roles) > 40
    assert misfits(text) == []


def test_the_lexer_marks_nothing_of_a_program_as_an_error() -> None:
    signs = "dim a = 7 % 4, b = a // 2\nfn f(x: [...]) -> [...] {\n  return x |> relu\n}\n"
    for text in (signs, *TEXTS.values()):
        tokens = list(ShardLexer().get_tokens(text))
        assert [value for token, value in tokens if token is Error] == []
        assert "".join(value for _, value in tokens).strip() == text.strip()


def test_what_is_no_sign_of_the_language_is_an_error() -> None:
    assert [value for token, value in ShardLexer().get_tokens("dim a = 4 $ 2\n") if token is Error] == ["$"]


def test_what_is_open_ends_at_the_next_item() -> None:
    """While one types, a bracket or a quote is open: what is below keeps its colours."""
    whole = "model Net {\n  layer a = Linear(d, e)\n}\n"
    for half in ("dim a = f(2\n", "train {\n  data = f(x: [a\n", 'use "abc\n', "strategy s {\n  split a over (b\n"):
        tokens = list(ShardLexer().get_tokens(half + whole))
        assert tokens[-len(list(ShardLexer().get_tokens(whole))) :] == list(ShardLexer().get_tokens(whole))


def test_every_scope_has_atoken_of() -> None:
    grammar = json.loads(COLOURS.read_text("utf-8"))
    assert grammar["scopeName"] == "source.shard" and len(SCOPES) > 25
    assert {scope for scope in SCOPES if str(token_of(scope)) == "Token.Text"} == set()
