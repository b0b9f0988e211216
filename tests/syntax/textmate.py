"""What lines may hold (lines.py) -> grammars/shard.tmLanguage.json, of which the lexer for Pygments is made too.

A word of a rule is a keyword where a line may begin with it and as far as that line goes; after what must be a name it
is a name. So a sign and the name after it are matched together. Patterns are those of Oniguruma and of Python alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from shardlang.facts.dtypes import DTYPES
from shardlang.syntax.tables import RESERVED
from shardlang.syntax.tokens import ITEM
from tests.syntax.lines import Line, Lines

Rule = dict[str, Any]

DECLARATION, KEYWORD, OPERATOR = "keyword.declaration", "keyword.other", "keyword.operator"
AXIS, DIM, LAYER = "support.class.component.axis", "variable.other.constant.dim", "variable.other.declaration.layer"
FUNCTION, MODEL, SETTING = "entity.name.function", "entity.name.type.model", "variable.other.property.setting"
SELECTOR, CHOICE, VALUE = "variable.other.selector", "support.constant.choice", "variable.other.readwrite"
# The scope of a name that stands in a line, by the rule of the grammar that has it there; a word before the rule
# makes an exception for the line of that word.
NAMES = {
    "path": "entity.name.namespace", "use": "entity.name.type", "dim_entry": DIM,
    "model": MODEL, "function": FUNCTION, "operator": FUNCTION, "source": FUNCTION, "own_schedule": FUNCTION,
    "optimizer": FUNCTION, "python": FUNCTION, "strategy": "entity.name.type.strategy",
    "hardware": "entity.name.type.hardware", "level": "entity.name.type.hardware",
    "layer": LAYER, "tensor": "variable.other.declaration.tensor", "remembers": "variable.other.declaration.tensor",
    "whole": DIM, "inside": DIM, "dim_path": DIM, "keeps": VALUE, "linear axes": VALUE,
    "mesh_axis": AXIS, "axis_use": AXIS, "axes": AXIS, "shard_entry": AXIS, "stages": AXIS,
    "zero": CHOICE, "recompute": CHOICE, "attend": CHOICE, "place": CHOICE, "needs": CHOICE, "setting": SETTING,
}  # fmt: skip
# Blocks of `name = value`, and the block whose lines say of each stage what it has.
SETTINGS, STAGES = ("settings", "facts", "level_facts"), "stage_entries"

N, S = r"[A-Za-z_]\w*", r"[ \t]*"
# Where a line of a block may begin: also after its brace, and after the selectors of `at`.
START = rf"(?:^|(?<=[:{{])){S}"
# Nothing goes on past a new item in column 0, and but for blocks nothing past a brace.
NEXT_ITEM = rf"^(?={ITEM.pattern})"
STOP = rf"(?=[{{}}])|{NEXT_ITEM}"
NAMED, LISTED = rf"(?={S}=(?!=))", rf"(?=(?:{S},{S}{N})*{S}=(?!=))"
PUNCTUATION = "()[]{},:."
# What may follow a word of a line, or not.
FURTHER = rf"(?:{S}{{}})?"
NUMBER = r"\b([0-9][0-9_]*(?:\.[0-9][0-9_]*)?(?:[eE][+-]?[0-9][0-9_]*)?)([A-Za-z_]\w*(?:/s\b)?)?"
DTYPE, QUOTED, ARGUMENT = "storage.type", "string.quoted.double", "variable.parameter.argument"
# Terminals that are no signs.
_NO_SIGNS = ("NAME", "NUMBER", "STRING", "_NL", "CONTINUATION", "SPACE", "COMMENT")


def write(grammar: str) -> str:
    """The text of the TextMate grammar: a line for each of its rules."""
    made = build(Lines(grammar))
    rules = ",\n".join(f"{json.dumps(name)}: {json.dumps(rule)}" for name, rule in made.pop("repository").items())
    parts = "".join(f"{json.dumps(key)}: {json.dumps(value)},\n" for key, value in made.items())
    return f'{{{parts}"repository": {{\n{rules}\n}}}}\n'


def build(lines: Lines) -> Rule:
    """The TextMate grammar."""
    of_settings = [line for line in lines.begun_in(*SETTINGS) if line.block not in SETTINGS]
    others = [line for line in lines.begun_in(*lines.blocks().difference(SETTINGS)) if line.word != "at"]
    opening = [line for line in others if line.block in SETTINGS]
    declaring = {line.word for line in lines.begun_in("start", "members", *SETTINGS)}
    declaring -= {line.word for line in lines.begun_in("rules")}
    begun = [line for line in others if line not in opening]
    repository = dict(_values(lines))
    for line in (*begun, *of_settings):
        repository.update(_line(line, DECLARATION if line.word in declaring else KEYWORD))
    words = [line.word for line in lines.begun_in(*lines.blocks()) if line.block in SETTINGS]
    repository.update(_blocks(words, of_settings))
    patterns = [_include("comment"), _include("settings"), _include("at"), *_includes(begun)]
    patterns += [_match(N + LISTED, "variable.other.assignment"), _include("expression")]
    return {
        "name": "Shard", "scopeName": "source.shard", "fileTypes": ["shard"], "patterns": patterns,
        "repository": repository,
    }  # fmt: skip


def _includes(lines: Sequence[Line]) -> list[Rule]:
    return [_include(f"line-{line.word}") for line in lines]


def _include(name: str) -> Rule:
    return {"include": f"#{name}"}


def _captures(scopes: Sequence[str]) -> Rule:
    return {str(number): {"name": f"{scope}.shard"} for number, scope in enumerate(scopes, 1)}


def _match(pattern: str, *scopes: str) -> Rule:
    """A rule that gives the match a scope, or its groups one each."""
    if re.compile(pattern).groups == 0:
        return {"match": pattern, "name": f"{scopes[0]}.shard"}
    return {"match": pattern, "captures": _captures(scopes)}


def _between(begin: str, end: str, patterns: Sequence[Rule], scopes: Sequence[str] = ("punctuation",)) -> Rule:
    """A rule for all between two patterns; scopes: of the groups of `begin`."""
    ends = {"end": end, "endCaptures": {"0": {"name": "punctuation.shard"}}}
    return {"begin": begin, "beginCaptures": _captures(scopes), **ends, "patterns": list(patterns)}


# --- lines --------------------------------------------------------------------


def _line(line: Line, scope: str) -> Iterator[tuple[str, Rule]]:
    """The rule of a line, and that of names in brackets in it."""
    patterns = [_include("comment"), _include("string")]
    for label, pieces in line.after.items():
        if any(piece.kind == "names" for piece in pieces):
            name = f"names-{line.word}"
            patterns.append(_include(name))
            yield name, _names(line, label)
    for label in line.after:
        pattern, scopes = _follows(line, label)
        if pattern and label and label not in (line.word, *line.words):
            sign = "punctuation" if label in PUNCTUATION else OPERATOR
            patterns.append(_match(rf"({re.escape(label)}){S}{pattern}", sign, *scopes))
    pattern, scopes = _follows(line, "", S + "{}")
    patterns += [_match(pattern.replace(S, "", 1), *scopes)] if pattern else []
    patterns += [_include(STAGES)] if line.block == STAGES else []
    pattern, scopes = _follows(line, line.word, FURTHER)
    yield f"line-{line.word}", _between(
        rf"{START}({line.word})\b(?!{S}(?:,|=(?!=))){pattern}",
        rf"$|(?=\}})|{NEXT_ITEM}" if line.block == STAGES else rf"$|{STOP}",
        [*patterns, _include("expression")], [scope, *scopes],
    )  # fmt: skip


def _names(line: Line, label: str) -> Rule:
    """Names in brackets, after a word within the line or anywhere in it."""
    (rule,) = {piece.text for piece in line.after[label] if piece.kind == "names"}
    within = label in line.words
    return _between(
        rf"\b({label})\b{S}(\()" if within else r"(\()", rf"\)|{STOP}",
        [_include(f"names-{line.word}"), _match(N, scope_of(line, rule)), _include("basic")],
        [KEYWORD, "punctuation"] if within else ["punctuation"],
    )  # fmt: skip


def _follows(line: Line, label: str, form: str = "{}") -> tuple[str, list[str]]:
    """A pattern for the words and the names that may follow something in a line, with what follows these words; a
    keyword wherever it may stand. `form` has a place for it. Empty if there are none."""
    pieces = line.after.get(label, ())
    options, scopes = [], []
    for word in sorted(piece.text for piece in pieces if piece.kind == "word"):
        more, inner = _follows(line, word, FURTHER)
        options.append(rf"({word})\b{more}")
        scopes += [KEYWORD, *inner]
    named = {scope_of(line, piece.text) for piece in pieces if piece.kind == "name"}
    options += [rf"({N})" for _ in named]
    return form.format(f"(?:{'|'.join(options)})") if options else "", [*scopes, *named]


def scope_of(line: Line, rule: str) -> str:
    """The scope of names that a rule has in a line."""
    return NAMES.get(f"{line.word} {rule}") or NAMES[rule]


# --- blocks, selectors, types, expressions -------------------------------------


def _blocks(words: Sequence[str], of_settings: Sequence[Line]) -> Iterator[tuple[str, Rule]]:
    """Blocks of settings, the stages of a strategy, and selectors."""
    inside = [_include("comment"), _include("settings"), *_includes(of_settings), _include("setting-at")]
    inside += [_match(N + LISTED, SETTING), _include("expression")]
    begin = rf"{START}({'|'.join(words)})\b(?:[ \t]+({N}))?{S}(\{{)"
    yield "settings", _between(begin, rf"\}}|{NEXT_ITEM}", inside, (DECLARATION, NAMES["hardware"], "punctuation"))
    selectors = [_include("comment"), _match(N, SELECTOR), _include("basic")]
    follow = r"(?=[ \t]+[A-Za-z_*])"
    yield "at", _between(rf"{START}(at)\b{follow}", rf":|$|{STOP}", selectors, (KEYWORD,))
    begin = rf"{START}({N})[ \t]+(at)\b{follow}"
    yield "setting-at", _between(begin, rf"(?==)|$|{STOP}", selectors, (SETTING, KEYWORD))
    yield "selectors", _between("(:)", rf"$|{STOP}", selectors)
    entries = [_include("selectors"), _include("expression")]
    yield STAGES, _between(r"(\{)", rf"\}}|{NEXT_ITEM}", entries)


def _values(lines: Lines) -> Iterator[tuple[str, Rule]]:
    """What stands in lines: comments, strings, numbers, signs, types and expressions."""
    signs = [
        text for name, text in lines.patterns.items() if name not in _NO_SIGNS and text not in lines.words.values()
    ]
    operators = sorted({sign for sign in signs if sign not in PUNCTUATION}, key=lambda sign: (-len(sign), sign))
    comments = [_match("##.*", "comment.line.documentation"), _match("#.*", "comment.line.number-sign")]
    yield "comment", {"patterns": comments}
    escape, text = _match(r"\\.", "constant.character.escape"), _match(r'[^"\\\r\n]+', QUOTED)
    yield (
        "string",
        {**_between('(")', '"|$', [escape, text], (QUOTED,)), "endCaptures": {"0": {"name": f"{QUOTED}.shard"}}},
    )
    yield "basic", {"patterns": [
        _include("comment"), _include("string"), _match(NUMBER, "constant.numeric", "keyword.other.unit"),
        _match("|".join(map(re.escape, operators)), OPERATOR), _match(f"[{re.escape(PUNCTUATION)}]", "punctuation"),
    ]}  # fmt: skip
    yield from _types()
    yield from _expressions()


def _types() -> Iterator[tuple[str, Rule]]:
    """Types: brackets that follow no value. After them axes may come, with `+` or `^`."""
    dtypes = rf"(?:{'|'.join(DTYPES)})\b"
    yield "axes", _between(r"(\()", rf"\)|{STOP}", [_match(N, AXIS), _include("basic")])
    dims = [_match(rf"(@){S}({N})", OPERATOR, AXIS), _include("axes"), _match(N, DIM), _include("basic")]
    yield "dims", _between(r"(\[)", rf"\]|{STOP}", dims)
    suffix = _match(rf"([+^]){S}({N})", OPERATOR, AXIS)
    yield "type", {
        "begin": rf"(?<![\w)\]])(?=(?:{dtypes}{S})?\[)", "end": rf"(?<=[\])\w])(?!{S}[+^\[])|{STOP}",
        "patterns": [_match(rf"\b{dtypes}", DTYPE), _include("dims"), suffix, _include("axes"), _include("basic")],
    }  # fmt: skip


def _expressions() -> Iterator[tuple[str, Rule]]:
    """Expressions, with what is called, arguments, and formals of models and functions."""
    named = [_include("comment"), _match(rf"(:){S}({N})\b(?!{S}\[)", "punctuation", DTYPE)]
    formals = [_match(N + NAMED, ARGUMENT), _match(rf"{N}(?={S}:)", "variable.parameter.formal")]
    yield "parentheses", _between(r"(\()", rf"\)|{STOP}", [*named, *formals, _include("expression")])
    yield "brackets", _between(r"(\[)", rf"\]|{STOP}", [_match(N + NAMED, DIM), _include("expression")])
    reserved = [word.lower() for word in RESERVED]
    words = [_match(rf"\b(?:{'|'.join(reserved[:-2])})\b", "keyword.control")]
    words += [_match(rf"\b(?:{'|'.join(reserved[-2:])})\b", "constant.language")]
    words += [_match(rf"\b(?:{'|'.join(DTYPES)})\b(?!{S}\()", DTYPE)]
    attribute, called = rf"(?<!\.)(\.){S}({N})", rf"(?={S}\()"
    names = [
        _match(rf"(\|>){S}({N})", OPERATOR, FUNCTION), _match(attribute + called, "punctuation", FUNCTION),
        _match(attribute, "punctuation", "variable.other.property"), _match(rf"[A-Z]\w*{called}", MODEL),
        _match(N + called, FUNCTION), _match(N, VALUE),
    ]  # fmt: skip
    values = [_include(name) for name in ("comment", "string", "type", "parentheses", "brackets")]
    yield "expression", {"patterns": [*values, *words, *names, _include("basic")]}
