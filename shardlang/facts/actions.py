"""The actions of pipeline stages: their kinds, and the rows in which an emitted program lists
them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

_WORD = re.compile(r"(\d+)([FBIW])(\d+)|([()])|\*(\d+)(?:\+(\d+))?")


FORWARD, BACKWARD, TO_INPUTS, TO_PARAMETERS = KINDS = "F", "B", "I", "W"
# A forward of an evaluation, which is no action of a step.
EVALUATION = "E"


class ActionFacts(NamedTuple):
    """said: in words. order: the argument of `rt.Order` that lists what ZeRO 3 gathers in it."""

    said: str
    order: str


ACTIONS: Mapping[str, ActionFacts] = {
    FORWARD: ActionFacts("forward", "forward"),
    BACKWARD: ActionFacts("backward", "backward"),
    TO_INPUTS: ActionFacts("backward to the inputs", "inputs"),
    TO_PARAMETERS: ActionFacts("backward to the parameters", "weights"),
}


class BackwardCut(Enum):
    """The two parts of a stage's backward, for a schedule that cuts it
    (runtime/step/split_backward.py): the gradients of what the stage received are made in the first
    and those of parameters in the second (CUT), or all in the first, where anything is computed
    again, or all in the second, where no gradient goes back further."""

    CUT, ALL_FIRST, ALL_SECOND = "cut", "all first", "all second"

    def amounts_to(self, kind: str) -> str:
        """The kind of action that one of `kind` is here; "" for one that does nothing."""
        if kind not in (TO_INPUTS, TO_PARAMETERS) or self is BackwardCut.CUT:
            return kind
        return BACKWARD if (kind == TO_INPUTS) == (self is BackwardCut.ALL_FIRST) else ""


class Action(NamedTuple):
    """One action: its kind, of `stage`, on `microbatch`. Sends and receives follow from it."""

    stage: int
    kind: str
    microbatch: int

    @property
    def forward(self) -> bool:
        return self.kind == FORWARD

    @property
    def to_inputs(self) -> bool:
        """Whether it makes the gradients of what the stage has received."""
        return self.kind in (BACKWARD, TO_INPUTS)

    @property
    def to_parameters(self) -> bool:
        """Whether the gradients of parameters are whole after it."""
        return self.kind in (BACKWARD, TO_PARAMETERS)

    @property
    def half(self) -> bool:
        """Whether it is a part of a backward."""
        return self.kind in (TO_INPUTS, TO_PARAMETERS)

    @property
    def apart(self) -> bool:
        """Whether it neither receives nor sends anything: the second part of a backward."""
        return self.kind == TO_PARAMETERS

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


def alone(microbatches: int) -> tuple[Action, ...]:
    """Those of a program without stages."""
    return tuple([Action(0, kind, part) for part in range(microbatches) for kind in (FORWARD, BACKWARD)])


def listed(row: str) -> tuple[Action, ...]:
    """The actions that a row stands for. `0F0*4` is an action four times, each time one microbatch
    further, and so is `(0F4 0B0)*4`; `(0F0*2 2F0*2)*3+2` goes two further each time."""
    open_: list[list[list[Action]]] = [[]]
    for stage, kind, part, bracket, count, step in _WORD.findall(row):
        if kind:
            open_[-1].append([Action(int(stage), kind, int(part))])
        elif bracket == "(":
            open_.append([])
        elif bracket == ")":
            group = open_.pop()
            open_[-1].append([action for unit in group for action in unit])
        else:
            further = range(0, int(count) * int(step or 1), int(step or 1))
            open_[-1][-1] = [a._replace(microbatch=a.microbatch + by) for by in further for a in open_[-1][-1]]
    return tuple([action for unit in open_[0] for action in unit])
