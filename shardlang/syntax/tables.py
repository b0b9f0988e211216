"""Turns grammars/shard.lark into the parser's tables, kept as shardlang/syntax/tables.json, and
reads them back.

Building the tables takes lark some 300 ms, reading them a few: so `shardc` never imports lark.
After a change of the grammar run `python -m shardlang.syntax.tables`; a test compares the file with
the grammar. build.py interprets the rules; automaton.py parses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from shardlang.records import dataclass
from shardlang.resources import folder

PLACE = Path(__file__).with_name("tables.json")
STARTS = ("start", "expression_only")
END = "$END"
RESERVED = ("IF", "ELSE", "RETURN", "AND", "OR", "NOT", "TRUE", "FALSE")
# Terminals whose tokens the tree needs; of all others only the place matters.
KEPT = frozenset((
    "NAME", "NUMBER", "STRING", "PARAM", "STATE", "DEVICE", "CLUSTER", "AUTO", "BALANCED", "UNEVEN", "QUESTION",
    "NOT", "AND", "OR", "PLUS", "MINUS", "STAR", "SLASH", "MATMUL", "POWER", "CARET", "EQUAL", "UNEQUAL", "LESS",
    "LESS_EQUAL", "MORE", "MORE_EQUAL",
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


def grammar_path() -> Path:
    """grammars/shard.lark, beside the package if installed, or one folder up in a checkout."""
    return folder("grammars") / "shard.lark"


def build(grammar: str) -> str:
    """The text of tables.json for a grammar. Raises lark's GrammarError where it is not LALR(1)."""
    import lark

    made = lark.Lark(grammar, parser="lalr", start=list(STARTS), maybe_placeholders=False)
    table = made.parser.parser._parse_table
    # Numbers that depend on the grammar alone: lark's own differ from run to run.
    rules = sorted(made.rules, key=str)
    numbers = {rule: n for n, rule in enumerate(rules)}
    terminals = {t.name for t in made.terminals} | {END}
    order = _reached(table)
    actions: list[dict[str, int]] = []
    gotos: list[dict[str, int]] = []
    for state in order:
        row = table.states[state]
        actions.append({})
        gotos.append({})
        for name in sorted(row):
            kind, argument = row[name]
            number = -1 - numbers[argument] if kind.name == "Reduce" else order[argument]
            (actions if name in terminals else gotos)[-1][name] = number
    data = {
        "productions": [_production(rule) for rule in rules],
        "actions": _shared(actions),
        "gotos": _shared(gotos),
        "starts": {start: order[table.start_states[start]] for start in STARTS},
        "ends": {start: order[table.end_states[start]] for start in STARTS},
        **_terminals(made.terminals),
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in data.items())
    return "{" + ",\n".join(lines) + "}\n"


def _reached(table: Any) -> dict[Any, int]:
    """The number of each state, in a walk from the start states by the names of symbols."""
    order = {table.start_states[start]: n for n, start in enumerate(STARTS)}
    waiting = list(order)
    for state in waiting:
        for name in sorted(table.states[state]):
            kind, target = table.states[state][name]
            if kind.name == "Shift" and target not in order:
                order[target] = len(order)
                waiting.append(target)
    return order


def _shared(rows: list[dict[str, int]]) -> list[Any]:
    first: dict[str, int] = {}
    out: list[Any] = []
    for number, row in enumerate(rows):
        earlier = first.setdefault(json.dumps(row), number)
        out.append(row if earlier == number else earlier)
    return out


def _is_list(name: str) -> bool:
    return name.startswith("_")


def _production(rule: Any) -> list[Any]:
    """[target, size, action, kept] of a rule of lark's."""
    kept = [
        [place, int(not symbol.is_term and _is_list(symbol.name))]
        for place, symbol in enumerate(rule.expansion)
        if not symbol.is_term or (symbol.name in KEPT and not symbol.filter_out)
    ]
    action = rule.alias or rule.origin.name
    if _is_list(rule.origin.name):
        action = "*"
    elif rule.options.expand1 and not rule.alias and len(kept) == 1:
        action = ""
    return [str(rule.origin.name), len(rule.expansion), str(action), kept]


def _terminals(terminals: list[Any]) -> dict[str, Any]:
    """Words, fixed symbols, and the patterns in the order in which they are to be tried."""
    words, symbols, patterns = {}, {}, []
    for terminal in terminals:
        text = terminal.pattern.value
        if terminal.pattern.type == "re":
            patterns.append([terminal.name, text])
        elif text.isidentifier():
            words[text] = terminal.name
        else:
            symbols[text] = terminal.name
    patterns.sort(key=lambda entry: ("NAME", "SPACE", "NUMBER").index(entry[0]) if entry[0] in _FIRST else 9)
    longest = sorted(symbols, key=lambda text: (-len(text), text))
    patterns.append(["SYMBOL", "|".join(re.escape(text) for text in longest)])
    return {"keywords": words, "symbols": symbols, "patterns": patterns}


# The commonest first; no two of the patterns match at one place, but _NL and CONTINUATION exclude
# each other.
_FIRST = ("NAME", "SPACE", "NUMBER")


if __name__ == "__main__":
    PLACE.write_text(build(grammar_path().read_text("utf-8")), "utf-8")
