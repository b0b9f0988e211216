"""Runs the LALR(1) tables over tokens and makes the tree bottom-up.

A plain loop, so deep input costs memory, not stack.

On a token that no rule allows it asks `recover` for the next step. Which functions make the nodes
is left to build.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source, Span, TextPart
from shardlang.syntax import ast
from shardlang.syntax.build import TreeBuilder
from shardlang.syntax.literals import number, string
from shardlang.syntax.tables import KEPT, RESERVED, Production, Tables
from shardlang.syntax.tokens import Token, begins_item

# Levels of nodes within one another. Later passes recurse, a few frames a level, and Python allows
# 1,000 frames.
DEEPEST = 150


# Reports the mistake at a token (True: it nests too deep), and brings the stacks to a state that
# can go on; the next token.
Recover = Callable[["Automaton", Token, bool], Token | None]


class Automaton:
    """The stacks of a parse: states; of each symbol its value, offsets and depth of nodes."""

    def __init__(self, tables: Tables, source: Source | TextPart, sink: Sink, start: str) -> None:
        self.tables = tables
        self.source = source
        self.sink = sink
        self.states = [tables.starts[start]]
        self.end_state = tables.ends[start]
        self.values: list[Any] = [None]
        self.begin = source.begin
        self.starts: list[int] = [self.begin]
        self.ends: list[int] = [self.begin]
        self.depths: list[int] = [0]
        self.previous: Token = (" ", 0, 0)
        self.stop = len(source.text)  # where the text ends that was parsed
        self.made_by = TreeBuilder(sink).actions

    def run(self, tokens: Iterator[Token], recover: Recover) -> Any:
        """The value of the start rule."""
        actions, states, handed_on, chains = self.tables.actions, self.states, self.tables.handed_on, self.tables.chains
        keywords = set(self.tables.keywords.values()).difference(RESERVED)
        token: Token | None = next(tokens)
        while token is not None:
            kind = token[0]
            state = states[-1]
            step = actions[state].get(kind)
            if step is None and kind in keywords and not begins_item(self.source.text, token):
                kind = "NAME"
                step = actions[state].get(kind)
            if step is None:
                token = recover(self, token, False)
            elif step < 0:
                if handed_on[-1 - step]:
                    at = states[-2], state, token[0]
                    states[-1], lists = chains[at] if at in chains else self._handed_on(step, at)
                    for _ in range(lists):
                        self.values[-1] = [self.values[-1]]
                elif not self.reduce(-1 - step):
                    token = recover(self, token, True)
                elif states[-1] == self.end_state:
                    self.stop = token[1]
                    return self.values[-1]
            else:
                self.shift(step, kind, token)
                token = next(tokens)
        return None

    def _handed_on(self, step: int | None, at: tuple[int, int, str]) -> tuple[int, int]:
        """The state in place of the last one after rules in a row that hand their only symbol on,
        and how many of them make a list of it. step: of the first of them; at: the state before
        it, it, and the kind of the next token."""
        tables, (before, state, kind), lists = self.tables, at, 0
        while step is not None and step < 0 and tables.handed_on[-1 - step]:
            production = tables.productions[-1 - step]
            lists += production.action == "*" and not production.kept[0][1]
            state = tables.gotos[before][production.target]
            step = tables.actions[state].get(kind)
        tables.chains[at] = state, lists
        return state, lists

    def shift(self, state: int, kind: str, token: Token) -> None:
        _, start, end = token
        value: Any = None
        if kind in KEPT:
            value = Span(self.source, start - self.begin, end - self.begin)
            if kind == "NAME":
                value = ast.Name(self.source.text[start:end], span=value)
            elif kind == "NUMBER":
                value = number(value, self.sink)
            elif kind == "STRING":
                value = string(value, self.sink)
        self.states.append(state)
        self.values.append(value)
        self.starts.append(start)
        self.ends.append(end)
        self.depths.append(0)
        self.previous = token

    def cut(self, count: int) -> None:
        """Drop the last `count` symbols."""
        if count:
            for stack in (self.states, self.values, self.starts, self.ends, self.depths):
                del stack[-count:]

    def reduce(self, number: int) -> bool:
        """Replace the symbols of a rule by its value. False, nothing done, if it nests too deep."""
        production = self.tables.productions[number]
        action = self.made_by.get(production.action)
        size = production.size
        states, values, starts, ends, depths = self.states, self.values, self.starts, self.ends, self.depths
        first = len(values) - size
        depth = depths[-1] if size == 1 else max(depths[first:], default=0)
        if action is not None:
            depth += 1
            if depth > DEEPEST:
                return False
        start, end = starts[first] if size else ends[-1], ends[-1]
        if production.plain:
            children = [values[first + place] for place, _ in production.kept]
        else:
            children = _spliced(production, values[first:], action is None)
        if action is not None:
            value = action(children, Span(self.source, start - self.begin, end - self.begin))
        else:
            value = children if production.action == "*" else children[0]
        if size:
            del states[first:], values[first:], starts[first:], ends[first:], depths[first:]
        states.append(self.tables.gotos[states[-1]][production.target])
        values.append(value)
        starts.append(start)
        ends.append(end)
        depths.append(depth)
        return True


def _spliced(production: Production, values: Sequence[Any], joined: bool) -> list[Any]:
    """The children of a rule some of which are lists; joined: the first list may take the rest."""
    children: list[Any] = []
    for place, spliced in production.kept:
        if not spliced:
            children.append(values[place])
        elif children or not joined:
            children.extend(values[place])
        else:
            children = values[place]
    return children
