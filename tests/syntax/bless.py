"""`python -m tests.syntax.bless`: writes anew what is made from the grammar: the parser's tables, shardlang/syntax/
tables.json, and the colours of editors.

Building the tables takes lark some 300 ms, and reading them a few: so `shardc` never imports lark.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import lark

from shardlang.syntax.tables import END, KEPT, PLACE
from tests.syntax import textmate, vim

GRAMMAR = Path(__file__).parents[2] / "grammars" / "shard.lark"
COLOURS = GRAMMAR.with_name("shard.tmLanguage.json")
VIM = GRAMMAR.parents[1] / "editors" / "vim" / "syntax" / "shard.vim"
STARTS = ("start", "expression_only")


def made(grammar: str) -> dict[Path, str]:
    """The files that are made from a grammar."""
    return {PLACE: build(grammar), COLOURS: textmate.write(grammar), VIM: vim.write(grammar)}


def build(grammar: str) -> str:
    """The text of tables.json for a grammar. Raises lark's GrammarError where it is not LALR(1)."""
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
    for place, text in made(GRAMMAR.read_text("utf-8")).items():
        place.write_text(text, "utf-8")
