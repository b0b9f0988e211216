"""Runs the LALR(1) tables over tokens and makes the tree bottom-up.

A plain loop, so deep input costs memory, not stack.

On a token that no rule allows it asks `recover` for the next step. Which functions make the nodes
is left to build.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from shardlang.diagnostics.diagnostic import Sink
from shardlang.source import Source, Span
from shardlang.syntax import ast
from shardlang.syntax.build import Builder
from shardlang.syntax.literals import number, string
from shardlang.syntax.tables import KEPT, RESERVED, Tables
from shardlang.syntax.tokens import Token, begins_item

# Levels of nodes within one another. Later passes recurse, a few frames a level, and Python allows
# 1,000 frames.
DEEPEST = 150


# Reports the mistake at a token (True: it nests too deep), and brings the stacks to a state that
# can go on; the next token.
Recover = Callable[["Automaton", Token, bool], Token | None]


class Automaton:
    """The stacks of a parse: states; of each symbol its value, offsets and depth of nodes."""

    def __init__(self, tables: Tables, source: Source, sink: Sink, start: str) -> None:
        self.tables = tables
        self.source = source
        self.sink = sink
        self.states = [tables.starts[start]]
        self.end_state = tables.ends[start]
        self.values: list[Any] = [None]
        self.starts: list[int] = [0]
        self.ends: list[int] = [0]
        self.depths: list[int] = [0]
        self.previous: Token = (" ", 0, 0)
        actions = Builder(sink).actions
        self.reductions = [(p, actions.get(p.action)) for p in tables.productions]
        # Of each production that hands its only symbol on, and no more: the target. They are most
        # of all reductions.
        self.handed_on = [p.target if p.action == "" and p.size == 1 else None for p in tables.productions]

    def run(self, tokens: Iterator[Token], recover: Recover) -> Any:
        """The value of the start rule."""
        actions, gotos, states, handed_on = self.tables.actions, self.tables.gotos, self.states, self.handed_on
        keywords = set(self.tables.keywords.values()).difference(RESERVED)
        token: Token | None = next(tokens)
        while token is not None:
            kind = token[0]
            row = actions[states[-1]]
            step = row.get(kind)
            if step is None and kind in keywords and not begins_item(self.source.text, token):
                kind = "NAME"
                step = row.get(kind)
            if step is None:
                token = recover(self, token, False)
            elif step < 0:
                target = handed_on[-1 - step]
                if target is not None:
                    states[-1] = gotos[states[-2]][target]
                elif not self.reduce(-1 - step):
                    token = recover(self, token, True)
                elif states[-1] == self.end_state:
                    return self.values[-1]
            else:
                self.shift(step, kind, token)
                token = next(tokens)
        return None

    def shift(self, state: int, kind: str, token: Token) -> None:
        _, start, end = token
        value: Any = None
        if kind == "NAME":
            value = ast.Name(self.source.text[start:end], span=Span(self.source, start, end))
        elif kind == "NUMBER":
            value = number(Span(self.source, start, end), self.sink)
        elif kind == "STRING":
            value = string(Span(self.source, start, end), self.sink)
        elif kind in KEPT:
            value = Span(self.source, start, end)
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
        production, action = self.reductions[number]
        size = production.size
        states, values, starts, ends, depths = self.states, self.values, self.starts, self.ends, self.depths
        first = len(values) - size
        depth = depths[-1] if size == 1 else max(depths[first:], default=0)
        if action is not None:
            depth += 1
            if depth > DEEPEST:
                return False
        value: Any
        start = starts[first] if size else ends[-1]
        end = ends[-1]
        children: list[Any] = []
        for place, spliced in production.kept:
            if not spliced:
                children.append(values[first + place])
            elif children or action is not None:
                children.extend(values[first + place])
            else:
                children = values[first + place]
        if action is not None:
            value = action(children, Span(self.source, start, end))
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
