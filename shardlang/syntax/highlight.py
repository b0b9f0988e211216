"""grammars/shard.tmLanguage.json, the colours of editors -> a Pygments lexer (entry point `shard`)
that gives every character the same ones.

The grammar is made from that of the language by `python -m tests.syntax.bless`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from re import Match
from typing import Any, ClassVar

from pygments.lexer import RegexLexer, include
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from shardlang.sources.resources import folder

# What Pygments calls a scope, by the scope or by what it begins with; the first that fits.
TOKENS = {
    "comment.line.documentation": Comment.Special, "comment": Comment.Single,
    "string": String.Double, "constant.character": String.Escape,
    "constant.numeric": Number, "keyword.other.unit": Number.Unit, "constant.language": Keyword.Constant,
    "keyword.declaration": Keyword.Declaration, "keyword.control": Keyword.Reserved,
    "keyword.operator": Operator, "keyword": Keyword, "storage.type": Keyword.Type, "punctuation": Punctuation,
    "entity.name.function": Name.Function, "entity.name.namespace": Name.Namespace, "entity.name.type": Name.Class,
    "support.class.component.axis": Name.Decorator, "support.constant": Name.Builtin,
    "variable.other.constant.dim": Name.Constant, "variable.other.property": Name.Property,
    "variable.other.selector": Name.Tag, "variable.other.readwrite": Name,
    "variable.parameter.argument": Name.Attribute, "variable": Name.Variable,
}  # fmt: skip


def token_of(scope: str) -> Any:
    """The token of a scope of the grammar."""
    return next((token for start, token in TOKENS.items() if scope.startswith(start)), Text)


def _states(grammar: Mapping[str, Any]) -> dict[str, list[object]]:
    """A state for each rule of the grammar, and one for a whole file."""
    rules = grammar["repository"]
    # A line break by itself: patterns find the beginning of a line with its spaces.
    spaces = (r"\n|[^\S\n]+", Text)
    states = {"root": [*_patterns(grammar["patterns"], rules), spaces]}
    for name, rule in rules.items():
        states[name] = _patterns(rule["patterns"], rules)
        if "begin" in rule:
            states[name] = [(rule["end"], _marked(rule.get("endCaptures", {})), "#pop"), *states[name], spaces]
    return states


def _patterns(patterns: list[dict[str, Any]], rules: Mapping[str, Any]) -> list[object]:
    found: list[object] = []
    for pattern in patterns:
        name = pattern.get("include", "").removeprefix("#")
        if "begin" in rules.get(name, ()):
            found.append((rules[name]["begin"], _marked(rules[name].get("beginCaptures", {})), name))
        elif name:
            found.append(include(name))
        else:
            found.append((pattern["match"], _marked(pattern.get("captures", {"0": pattern}))))
    return found


def _marked(captures: Mapping[str, Any]) -> Any:
    """The function that cuts a match into tokens: its groups, and text between them."""
    tokens = {int(number): token_of(capture["name"]) for number, capture in captures.items()}

    def mark(lexer: RegexLexer, match: Match[str]) -> Iterator[tuple[int, Any, str]]:
        at, text = match.start(), match.string
        for group, token in tokens.items():
            start, end = match.span(group)
            for kind, stop in ((Text, start), (token, end)):
                if at < stop:
                    yield at, kind, text[at:stop]
                    at = stop
        if at < match.end():
            yield at, Text, text[at : match.end()]

    return mark


class ShardLexer(RegexLexer):  # type: ignore[misc]  # pygments has no types
    """Highlights .shard files."""

    name = "Shard"
    aliases: ClassVar[list[str]] = ["shard"]
    filenames: ClassVar[list[str]] = ["*.shard"]
    url = ""
    tokens: ClassVar[dict[str, list[object]]] = _states(
        json.loads((folder("grammars") / "shard.tmLanguage.json").read_text("utf-8"))
    )
