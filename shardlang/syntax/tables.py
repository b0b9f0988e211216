"""shardlang/syntax/tables.json -> the parser's tables.

They are made from grammars/shard.lark, with lark, by `python -m tests.syntax.bless`; a test
compares the file with the grammar. build.py interprets the rules; automaton.py parses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from shardlang.records import dataclass

PLACE = Path(__file__).with_name("tables.json")
END = "$END"
RESERVED = ("IF", "ELSE", "RETURN", "AND", "OR", "NOT", "TRUE", "FALSE")
# Terminals whose tokens the tree needs; of all others only the place matters.
KEPT = frozenset((
    "NAME", "NUMBER", "STRING", "PARAM", "STATE", "DEVICE", "CLUSTER", "AUTO", "BALANCED", "UNEVEN", "QUESTION",
    "SAVED",
    "NOT", "AND", "OR", "PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "REMAINDER", "MATMUL", "POWER", "CARET",
    "EQUAL", "UNEQUAL", "LESS", "LESS_EQUAL", "MORE", "MORE_EQUAL",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Production:
    """One rule of the grammar: its symbols are replaced by `target`.

    `action` names the function of build.py; empty: the only child goes up as it is; "*": a list,
    spliced into its parent. `kept`: which symbols are children, as (place among the symbols,
    whether its value is a list to splice)."""

    target: str
    size: int
    action: str
    kept: tuple[tuple[int, bool], ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """`actions[state][terminal]`: a state to shift to, or -1 - n to reduce by `productions[n]`."""

    productions: tuple[Production, ...]
    actions: tuple[dict[str, int], ...]
    gotos: tuple[dict[str, int], ...]
    starts: dict[str, int]
    ends: dict[str, int]
    keywords: dict[str, str]
    symbols: dict[str, str]
    pattern: re.Pattern[str]


@cache
def tables() -> Tables:
    """The tables as shipped in the package."""
    return _read(json.loads(PLACE.read_text("utf-8")))


def _read(data: dict[str, Any]) -> Tables:
    productions = (Production(t, n, a, tuple((i, bool(s)) for i, s in kept)) for t, n, a, kept in data["productions"])
    return Tables(
        tuple(productions), tuple(_rows(data["actions"])), tuple(_rows(data["gotos"])), data["starts"], data["ends"],
        data["keywords"], data["symbols"],
        re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in data["patterns"])),
    )  # fmt: skip


def _rows(rows: list[Any]) -> Iterator[dict[str, int]]:
    """Rows as dicts; a row given as a number is the same as that earlier row."""
    made: list[dict[str, int]] = []
    for row in rows:
        made.append(made[row] if isinstance(row, int) else row)
        yield made[-1]
