"""The messages between stages -> whether each has its receive, of the same types, and none of them
waits for ever.

Each coordinate of the stages' axis goes through its actions once, as all its ranks do. A send waits
for nobody; messages of a pair of coordinates come in the order in which they were sent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.facts.actions import Action
from shardlang.frozen.records import dataclass
from shardlang.matched.lines import ActionRow, Items, lines_of
from shardlang.matched.report import report

Message = tuple[int, bool, int]  # the stage that receives, whether it is a value, the microbatch


def prove_types(stages: Sequence[Items], sink: Sink) -> None:
    """Reports a value that the next stage receives as another type (SH463). stages: the messages
    of each."""
    for at in range(len(stages) - 1):
        sent = [line for line in lines_of(stages[at]) if line.what.startswith("send")]
        received = [line for line in lines_of(stages[at + 1]) if line.what.startswith("receive")]
        for number, (one, other) in enumerate(zip_longest(sent, received)):
            if one is None or other is None or one.given != other.given:
                said = "; ".join(line.said if line is not None else "nothing" for line in (one, other))
                places = [
                    (one.span if one else None, "it is sent here"),
                    (other.span if other else None, "it is received here"),
                ]
                report(sink, "SH463", f"stages {at} and {at + 1} differ in value {number}: {said}", places)


@dataclass(frozen=True)
class Routes:
    """Which messages the actions of a program need and send. forward: the stages that receive
    values; backward: those that send gradients back."""

    rows: Sequence[Sequence[Action]]
    forward: frozenset[int]
    backward: frozenset[int]

    def needs(self, action: Action) -> Message | None:
        """The message that an action waits for."""
        if action.forward:
            return (action.stage, True, action.microbatch) if action.stage in self.forward else None
        comes = action.to_inputs and action.stage + 1 in self.backward
        return (action.stage, False, action.microbatch) if comes else None

    def sends(self, action: Action) -> Message | None:
        """The message that an action sends."""
        if action.forward:
            return (action.stage + 1, True, action.microbatch) if action.stage + 1 in self.forward else None
        goes = action.to_inputs and action.stage in self.backward
        return (action.stage - 1, False, action.microbatch) if goes else None


def prove_order(stages: Sequence[Items], schedule: Sequence[ActionRow], sink: Sink) -> None:
    """Reports a receive that waits for ever, and a message that nobody takes (SH464)."""
    received = [[line for line in lines_of(items) if line.what.startswith("receive")] for items in stages]
    forward = frozenset(at for at, lines in enumerate(received) if lines)
    backward = frozenset(at for at, lines in enumerate(received) if any(line.gradient for line in lines))
    routes = Routes([row.actions for row in schedule], forward, backward)
    waiting, left = _run(routes)
    spans = {action: row.span for row in schedule for action in row.actions}
    for action in waiting:
        message = routes.needs(action)
        sender = next((a for row in routes.rows for a in row if routes.sends(a) == message), None)
        fact = f"which `{sender}` sends, that waits itself" if sender is not None else "which nothing sends"
        places = [(spans[action], "this row"), (spans[sender] if sender is not None else None, "and this one")]
        report(sink, "SH464", f"`{action}` waits for ever for a message {fact}", places)
    for sender in () if waiting else left:
        places = [(spans[sender], "this row")]
        report(sink, "SH464", f"nothing receives the message that `{sender}` sends", places)


def _run(routes: Routes) -> tuple[list[Action], list[Action]]:
    """The first action of each coordinate that waits for ever; the actions whose messages nobody
    has taken."""
    sent: dict[Message, Action] = {}
    at, moved = [0] * len(routes.rows), True
    while moved:
        moved = False
        for coordinate, row in enumerate(routes.rows):
            while at[coordinate] < len(row):
                action = row[at[coordinate]]
                need = routes.needs(action)
                if need is not None and need not in sent:
                    break
                if need is not None:
                    del sent[need]
                if (made := routes.sends(action)) is not None:
                    sent[made] = action
                at[coordinate] += 1
                moved = True
    waiting = [row[place] for row, place in zip(routes.rows, at, strict=True) if place < len(row)]
    return waiting, list(sent.values())
