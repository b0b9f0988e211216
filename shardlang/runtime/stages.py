"""Pipeline stages and their schedule as an emitted program writes them down: plain data, and the
messages that follow.

facts/actions.py says how rows of actions are read, pipeline.py runs them, and messages.py sends the
messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from shardlang.facts.actions import ACTIONS, FORWARD, Action, listed
from shardlang.paths.patterns import covered, expanded
from shardlang.runtime.comm.mesh import RankMesh


@dataclass(frozen=True)
class Message:
    """The values that stage `stage` receives for a microbatch: values (`forward`), or the gradients
    of those that it sent."""

    stage: int
    forward: bool
    microbatch: int


@dataclass(frozen=True)
class Received:
    """A value that a stage receives from the one before: whole shape, and how this rank's part is
    cut from it.

    gradient: one flows back. evaluate: it is needed in an evaluation too."""

    dtype: str
    shape: tuple[int, ...]
    cut: Mapping[int, str | tuple[str, ...]] = field(default_factory=dict)
    sizes: Mapping[int, tuple[int, ...]] | None = None
    mesh: RankMesh | None = None
    gradient: bool = False
    evaluate: bool = True


@dataclass(frozen=True)
class Order:
    """The gathers of ZeRO 3, in the order of forward and, from the last to the first, of backward
    or of its two parts: paths (patterns.py) of layers or parameters, a range one layer
    after the other, and a tuple of several at once."""

    forward: Sequence[str | tuple[str, ...]] = ()
    backward: Sequence[str | tuple[str, ...]] = ()
    inputs: Sequence[str | tuple[str, ...]] = ()
    weights: Sequence[str | tuple[str, ...]] = ()

    def units(self, kind: str, paths: Sequence[str]) -> list[set[str]]:
        """Those of `paths` that come together in an action of a kind, in order."""
        given = getattr(self, ACTIONS[kind].order)
        each = [x for unit in given for x in ([unit] if isinstance(unit, tuple) else zip(expanded(unit)))]
        found = [covered(unit, paths) for unit in each]
        return found if kind == FORWARD else found[::-1]


@dataclass(frozen=True)
class Stage:
    """One stage: `forward(p, *received, *fields)` gives what it sends, in the order that the next
    stage receives it; then the loss, where the loss is; then a dict of metrics, where there are
    any, and one of sums for `conclude`. parameters: the paths (patterns.py) of the parameters,
    states and layers that it uses. `evaluate`, with the rows of the batch as a last argument, gives
    what it sends, then a dict of sums, if it has any. gathers, before_microbatch, before_step,
    conclude: as of a program."""

    forward: Callable[..., Any]
    parameters: Sequence[str] = ()
    receives: Sequence[Received] = ()
    fields: Sequence[str] = ()
    evaluate: Callable[..., Any] | None = None
    gathers: Order = field(default_factory=Order)
    before_microbatch: Callable[..., Mapping[str, Any]] | None = None
    before_step: Callable[..., Mapping[str, Any]] | None = None
    conclude: Callable[..., Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class Schedule:
    """Stages over `axis`: stage -> its coordinate; per coordinate its actions, in order."""

    axis: str
    coordinates: tuple[int, ...]
    actions: Sequence[str]

    @cached_property
    def table(self) -> tuple[tuple[Action, ...], ...]:
        """The actions of each coordinate."""
        return tuple(map(listed, self.actions))

    @property
    def splits_backward(self) -> bool:
        """Whether inputs and parameters get their gradients at different times."""
        return any(action.half for row in self.table for action in row)

    def forwards(self, microbatches: int) -> tuple[tuple[Action, ...], ...]:
        """The actions of an evaluation: a stage's turn follows that of the stage before it."""
        order = sorted(
            (stage + part, stage, part) for stage in range(len(self.coordinates)) for part in range(microbatches)
        )
        return tuple(
            tuple(Action(stage, FORWARD, part) for _, stage, part in order if self.coordinates[stage] == at)
            for at in range(len(self.actions))
        )


def sent(action: Action, stages: Sequence[Stage]) -> Message | None:
    """The values that an action sends to another stage."""
    if action.forward:
        into = action.stage + 1
        return Message(into, True, action.microbatch) if into < len(stages) and stages[into].receives else None
    if action.to_inputs and returns(stages[action.stage]):
        return Message(action.stage - 1, False, action.microbatch)
    return None


def needed(action: Action, stages: Sequence[Stage]) -> Message | None:
    """The values that an action needs."""
    if action.forward:
        return Message(action.stage, True, action.microbatch) if stages[action.stage].receives else None
    into = action.stage + 1
    if action.to_inputs and into < len(stages) and returns(stages[into]):
        return Message(action.stage, False, action.microbatch)
    return None


def returns(stage: Stage) -> bool:
    """Whether a stage sends gradients back."""
    return any(value.gradient for value in stage.receives)


def arrivals(
    table: Sequence[Sequence[Action]], stages: Sequence[Stage], coordinates: Sequence[int], here: int
) -> dict[int, list[Message]]:
    """Other coordinate -> the messages that come from it, in the order in which it sends them."""
    found: dict[int, list[Message]] = {}
    for other, row in enumerate(table):
        for message in (sent(action, stages) for action in row if other != here):
            if message is not None and coordinates[message.stage] == here:
                found.setdefault(other, []).append(message)
    return found
