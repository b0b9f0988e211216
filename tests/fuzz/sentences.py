"""Random texts by the grammar: token streams that any rule allows, so that what is wrong is wrong in what it means."""

from __future__ import annotations

import random

from shardlang.syntax.tables import END, Tables, tables
from tests.fuzz.words import ABSURD, NAMES, NUMBERS, OPERATORS, word

# What ends things, tried first when a sentence is long or deep enough.
CLOSERS = (END, "_NL", "RBRACE", "RPAR", "RSQB", "ASSIGN", "COLON", "NAME", "NUMBER", "LBRACE", "LPAR", "LSQB")
DEEP = 40  # states on the stack
ITEMS = ("USE", "DIM", "MODEL", "FN", "STRATEGY", "TRAIN", "DEVICE", "CLUSTER")


def sentence(rng: random.Random, length: int) -> str:
    """A text that parses, of about `length` tokens; a walk through the states of the parser."""
    table = tables()
    texts = _texts(table)
    stack = [table.starts["start"]]
    parts: list[str] = []
    while len(parts) < length + 400:
        kind = _chosen(rng, table, stack, len(parts) >= length, not parts)
        if kind == END:
            break
        parts.append(_text(rng, kind, texts))
    return " ".join(parts)


def tokens(rng: random.Random, length: int) -> str:
    """Any tokens at all."""
    return rng.choice((" ", " ", "")).join(word(rng) for _ in range(length))


def _texts(table: Tables) -> dict[str, str]:
    return {kind: text for text, kind in (table.symbols | table.keywords).items()}


def _chosen(rng: random.Random, table: Tables, stack: list[int], ending: bool, first: bool) -> str:
    """A terminal that may stand next; the stack goes on by it."""
    row = table.actions[stack[-1]]
    if ending or (len(stack) > DEEP and rng.random() < 0.7):
        kinds = [kind for kind in CLOSERS if kind in row and (ending or kind != END)] or list(row)
    else:
        kinds = [kind for kind in row if kind != END] or list(row)
        rng.shuffle(kinds)
        # Blocks are where the language is: they are left rarely, and names are commoner than brackets.
        kinds.sort(key=lambda kind: kind in ("RBRACE", "LPAR", "LSQB", "PIPE") and rng.random() < 0.5)
        # Statements are short.
        kinds.sort(key=lambda kind: kind not in ("_NL", "RPAR", "RSQB") or rng.random() < 0.6)
    for kind in kinds:
        trial = list(stack)
        if _shifted(table, trial, kind):
            stack[:] = trial
            return kind
    return END


def _shifted(table: Tables, stack: list[int], kind: str) -> bool:
    """Reduces, then shifts a terminal. False where a reduction shows that it may not stand there (LALR is lax)."""
    while True:
        step = table.actions[stack[-1]].get(kind)
        if step is None:
            return False
        if step >= 0:
            stack.append(step)
            return True
        production = table.productions[-1 - step]
        if production.size:
            del stack[-production.size :]
        target = table.gotos[stack[-1]].get(production.target)
        if target is None:
            return False
        stack.append(target)
        if stack[-1] == table.ends["start"]:
            return True


def _text(rng: random.Random, kind: str, texts: dict[str, str]) -> str:
    match kind:
        case "NAME":
            return rng.choice(OPERATORS) if rng.random() < 0.15 else rng.choice(NAMES)
        case "NUMBER":
            plain = [n for n in ABSURD if n.isdecimal()]
            return rng.choice(plain) if rng.random() < 0.01 else rng.choice(NUMBERS)
        case "STRING":
            return rng.choice(('"gpipe"', '"./b.shard"', '""', '"a\\n"', '"data/*.bin"'))
        case "_NL":
            return rng.choice(("\n", "\n", "\n\n", "# c\n", "\r\n"))
        case _:
            return texts[kind]
