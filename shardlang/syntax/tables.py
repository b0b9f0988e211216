"""shardlang/syntax/tables.json -> the parser's tables.

They are made from grammars/shard.lark, with lark, by `python -m tests.syntax.bless`; a test
compares the file with the grammar. build.py interprets the rules; automaton.py parses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Any

from shardlang.frozen.records import dataclass

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
    whether its value is a list to splice). plain: none is."""

    target: str
    size: int
    action: str
    kept: tuple[tuple[int, bool], ...]
    plain: bool


@dataclass(frozen=True, slots=True)
class Tables:
    """`actions[state][terminal]`: a state to shift to, or -1 - n to reduce by `productions[n]`.

    handed_on: of each production whether it hands its only symbol on, at most as a list of one.
    They are most of all reductions. chains: the state after a row of them that a parse has met, and
    how many make a list, by the state before, the first state and the next token. points: the
    states reached by a newline or an opening brace, and the first: there a statement may begin. And
    those reached by a closing brace."""

    productions: tuple[Production, ...]
    actions: tuple[dict[str, int], ...]
    gotos: tuple[dict[str, int], ...]
    starts: dict[str, int]
    ends: dict[str, int]
    keywords: dict[str, str]
    symbols: dict[str, str]
    pattern: re.Pattern[str]
    handed_on: tuple[bool, ...]
    points: dict[int, str]
    chains: dict[tuple[int, int, str], tuple[int, int]] = field(default_factory=dict)


@cache
def tables() -> Tables:
    """The tables as shipped in the package."""
    return _read(json.loads(PLACE.read_text("utf-8")))


def _read(data: dict[str, Any]) -> Tables:
    productions, actions = tuple([_production(*row) for row in data["productions"]]), tuple(_rows(data["actions"]))
    return Tables(
        productions, actions, tuple(_rows(data["gotos"])), starts=data["starts"],
        ends=data["ends"],
        keywords=data["keywords"], symbols=data["symbols"],
        pattern=re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in data["patterns"])),
        handed_on=tuple([p.action in ("", "*") and p.size == len(p.kept) == 1 for p in productions]),
        points=_block_points(data["starts"], actions),
    )  # fmt: skip


def _block_points(starts: dict[str, int], actions: tuple[dict[str, int], ...]) -> dict[int, str]:
    points = {state: "start" for state in starts.values()}
    for row in actions:
        for symbol in ("_NL", "LBRACE", "RBRACE"):
            if row.get(symbol, -1) >= 0:
                points[row[symbol]] = symbol
    return points


def _production(target: str, size: int, action: str, kept: list[tuple[int, int]]) -> Production:
    places = tuple([(at, bool(spliced)) for at, spliced in kept])
    return Production(target, size, action, places, not any([spliced for _, spliced in places]))


def _rows(rows: list[Any]) -> Iterator[dict[str, int]]:
    """Rows as dicts; a row given as a number is the same as that earlier row."""
    made: list[dict[str, int]] = []
    for row in rows:
        made.append(made[row] if isinstance(row, int) else row)
        yield made[-1]
