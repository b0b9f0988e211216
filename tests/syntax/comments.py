"""A source -> the texts of its comments, in order."""

from __future__ import annotations

import re
from itertools import pairwise

from shardlang.sources.source import Source
from shardlang.syntax.tables import tables
from shardlang.syntax.tokens import NEWLINE, TokenStream


def comments(source: Source) -> list[str]:
    """The comments between the tokens of a source without mistakes."""
    tokens = [("", 0, 0), *(token for token in TokenStream(source, tables()) if token[0] != NEWLINE)]
    between = (source.text[before[2] : after[1]] for before, after in pairwise(tokens))
    return [found.rstrip() for gap in between for found in re.findall(r"#[^\n\r]*", gap)]
