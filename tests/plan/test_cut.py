"""I or R by minimum cut: equal to enumeration of all labellings, and fast."""

from __future__ import annotations

import itertools
import random
import sys
from types import FrameType

from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.plan.layouts.min_cut import CutValue, decide


def cost_of(labels: tuple[bool, ...], choices: list[CutValue]) -> int:
    total = 0
    for c in choices:
        if c.producer >= 0 and labels[c.producer]:
            continue
        total += c.high if any(labels[u] for u in c.consumers) else c.low
    return total


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, list[CutValue]]:
    operators = draw(st.integers(1, 7))
    number = st.integers(0, operators - 1)
    choices = []
    for _ in range(draw(st.integers(0, 10))):
        low = draw(st.integers(0, 9))
        producer = draw(st.integers(-1, operators - 1))
        consumers = draw(st.lists(number, max_size=3, unique=True))
        choices.append(CutValue(producer, tuple(consumers), low, low + draw(st.integers(0, 9))))
    return operators, choices


@given(problems())
@settings(max_examples=300, deadline=None)
def test_equal_to_enumeration(problem: tuple[int, list[CutValue]]) -> None:
    operators, choices = problem
    cost, labels = decide(operators, choices)
    every = list(itertools.product((False, True), repeat=operators))
    best = min(cost_of(x, choices) for x in every)
    assert cost == best == cost_of(labels, choices)
    assert sum(labels) == min(sum(x) for x in every if cost_of(x, choices) == best)


def test_nothing_at_stake_is_identical() -> None:
    assert decide(3, []) == (0, (False, False, False))


def test_the_tied_table() -> None:
    """Embedding unsplit, tanh, a head split on s that needs the table as R anyway: R all along is cheaper.

    Choices: the table (fixed; the head wants R: A = B), the embedding's result, tanh's (the head wants R).
    """
    embedding, tanh = 0, 1
    choices = [CutValue(-1, (embedding,), 433, 433), CutValue(embedding, (tanh,), 0, 288), CutValue(tanh, (), 288, 288)]
    assert decide(2, choices) == (433, (True, True))
    assert cost_of((False, False), choices) == 721


def graph(operators: int, seed: int) -> list[CutValue]:
    rng = random.Random(seed)
    choices = []
    for op in range(operators):
        consumers = tuple(sorted({min(operators - 1, op + 1 + int(rng.expovariate(0.3))) for _ in range(2)} - {op}))
        fixed = rng.random() < 0.2
        low = rng.randrange(1, 1000) if fixed else 0
        more = 0 if fixed and rng.random() < 0.5 else rng.randrange(1, 1000)
        choices.append(CutValue(op, consumers, low, low + more))
        if rng.random() < 0.4:
            choices.append(CutValue(-1, (op,), 0, rng.randrange(1, 400)))
    return choices


def lines_run(operators: int) -> int:
    """How many lines of Python the cut of so many operators runs."""
    choices = graph(operators, 0)
    lines = 0

    def count(frame: FrameType, event: str, value: object) -> object:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        cost, labels = decide(operators, choices)
    finally:
        sys.settrace(before)
    assert cost == cost_of(labels, choices)
    return lines


def test_ten_thousand_operators() -> None:
    """Ten times as many run 12.6 times as many lines: told by lines, as a loaded machine's seconds tell little."""
    assert lines_run(10_000) < 20 * lines_run(1_000)


def test_a_long_chain_needs_no_recursion() -> None:
    length = 10_000
    choices = [
        CutValue(-1, (0,), 0, 5),
        *(CutValue(i, (i + 1,), 0, 9) for i in range(length - 1)),
        CutValue(length - 1, (), 7, 7),
    ]
    assert decide(length, choices) == (5, (True,) * length)
