"""A Pygments lexer for Shard (entry point `shard`); a test compares its words with the grammar."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Text

from shardlang.facts.dtypes import DTYPES
from shardlang.syntax.words import CLAUSES, ITEMS
from shardlang.syntax.words import RULES as STRATEGY_WORDS

DECLARATIONS = (*ITEMS, "layer", "param", "state", "forward", "mesh", "metric")
RULES = (*CLAUSES, *(word for word in STRATEGY_WORDS if word not in DECLARATIONS))
RESERVED = ("if", "else", "return", "and", "or", "not")
CONSTANTS = ("true", "false")


class ShardLexer(RegexLexer):  # type: ignore[misc]  # pygments has no types
    """Highlights .shard files."""

    name = "Shard"
    aliases: ClassVar[list[str]] = ["shard"]
    filenames: ClassVar[list[str]] = ["*.shard"]
    url = ""
    tokens: ClassVar[dict[str, list[object]]] = {
        "root": [
            (r"\s+", Text),
            (r"##[^\n\r]*", Comment.Special),
            (r"#[^\n\r]*", Comment.Single),
            (r'"(?:[^"\\\n]|\\[^\n])*"', String.Double),
            (r"[A-Za-z_]\w*(?=[ \t]*=(?!=))", Name.Attribute),
            (words(DECLARATIONS, prefix=r"\b", suffix=r"\b"), Keyword.Declaration),
            (words(RULES, prefix=r"\b", suffix=r"\b"), Keyword),
            (words(RESERVED, prefix=r"\b", suffix=r"\b"), Keyword.Reserved),
            (words(CONSTANTS, prefix=r"\b", suffix=r"\b"), Keyword.Constant),
            (words(DTYPES, prefix=r"\b", suffix=r"\b"), Keyword.Type),
            (r"[0-9][0-9_]*(?:\.[0-9][0-9_]*)?(?:[eE][+-]?[0-9]+)?(?:[A-Za-z]\w*(?:/s\b)?)?", Number),
            (r"[A-Za-z_]\w*", Name),
            (r"\|>|->|\*\*|\.\.\.?|==|!=|<=|>=|[-+*/%@^<>=?]", Operator),
            (r"[()\[\]{},:.]", Punctuation),
        ]
    }
