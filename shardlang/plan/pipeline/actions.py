"""Lists of actions as they run: when each begins and ends, which wait for each other, how much of
the time is idle.

Also reads them from text, one line a coordinate, as torch.distributed.pipelining writes them:
`0F0,0F1,1B0,..`, an empty cell where a coordinate waits. The caller says what a step costs."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from shardlang.facts.actions import Action
from shardlang.frozen.records import dataclass

Lines = Sequence[Sequence[Action]]
_ACTION = re.compile(r"(\d{1,6})(F|B|I|W)(\d{1,6})")
# One action takes so long where nothing better is known: backward twice the forward, its halves
# alike.
UNITS = {"F": 1, "B": 2, "I": 1, "W": 1}


@dataclass(frozen=True)
class Timeline:
    """`spans`: per coordinate and action (begin, end). stuck: per coordinate the one that waits."""

    spans: tuple[tuple[tuple[int, int], ...], ...]
    stuck: tuple[Action | None, ...]

    @cached_property
    def end(self) -> int:
        return max((span[1] for line in self.spans for span in line), default=0)

    @property
    def bubble(self) -> float:
        """The share of all coordinates' time in which nothing is computed."""
        busy = sum(end - begin for line in self.spans for begin, end in line)
        return 1 - busy / (self.end * len(self.spans)) if busy else 0.0


def text(action: Action) -> str:
    return f"{action.stage}{action.kind}{action.microbatch}"


def unit(action: Action) -> int:
    return UNITS[action.kind]


Step = tuple[str, int, int]
Done = dict[Step, int]


def _needed(action: Action, stages: int) -> tuple[Step, ...]:
    """The actions of which one, or each, must be done before: (kind, stage, microbatch)."""
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F":
        return (("F", stage - 1, microbatch),)
    if action.kind == "W":
        return (("I", stage, microbatch),)
    after = (("B", stage + 1, microbatch), ("I", stage + 1, microbatch)) if stage < stages - 1 else ()
    return ("F", stage, microbatch), *after


def _soonest(action: Action, stages: int, done: Done) -> int | None:
    """When what an action needs has ended; None where not all is done."""
    stage, microbatch = action.stage, action.microbatch
    if action.kind == "F":
        return done.get(("F", stage - 1, microbatch)) if stage else 0
    if action.kind == "W":
        return done.get(("I", stage, microbatch))
    own = done.get(("F", stage, microbatch))
    if own is None or stage >= stages - 1:
        return own
    after = done.get(("B", stage + 1, microbatch), done.get(("I", stage + 1, microbatch)))
    return None if after is None else max(own, after)


def timeline(lines: Lines, stages: int, cost: Callable[[Action], int] = unit) -> Timeline:
    """Every action as early as its coordinate and what it needs allow; sending takes no time."""
    done: Done = {}
    spans: list[list[tuple[int, int]]] = [[] for _ in lines]
    waiting: dict[Step, list[int]] = {}
    ready = deque(range(len(lines)))
    while ready:
        at = ready.popleft()
        line, found = lines[at], spans[at]
        end = found[-1][1] if found else 0
        while len(found) < len(line):
            action = line[len(found)]
            soonest = _soonest(action, stages, done)
            if soonest is None:
                for step in _needed(action, stages):
                    waiting.setdefault(step, []).append(at)
                break
            begin = max(end, soonest)
            end, step = begin + cost(action), (action.kind, action.stage, action.microbatch)
            found.append((begin, end))
            done[step] = end
            if step in waiting:
                ready.extend(waiting.pop(step))
    stuck = tuple(line[len(f)] if len(f) < len(line) else None for line, f in zip(lines, spans, strict=True))
    return Timeline(tuple(map(tuple, spans)), stuck)


def most_alive(lines: Lines) -> dict[int, int]:
    """Stage -> the most microbatches whose activations it holds at once: from F until B or W."""
    most: dict[int, int] = {}
    for line in lines:
        alive: Counter[int] = Counter()
        for action in line:
            if action.kind == "F":
                alive[action.stage] += 1
            elif action.kind in "BW":
                alive[action.stage] -= 1
            most[action.stage] = max(most.get(action.stage, 0), alive[action.stage])
    return most


@dataclass(frozen=True, slots=True)
class Slip:
    """A mistake in a file of actions: its line (from 1), what is wrong, and what to do."""

    line: int
    message: str
    help: str = ""


def read(written: str) -> tuple[tuple[tuple[Action, ...], ...], list[Slip]]:
    """The actions of a file, and what in it is no action. Empty lines at the end do not count."""
    rows = written.rstrip().splitlines()
    found: list[tuple[Action, ...]] = []
    slips: list[Slip] = []
    for number, row in enumerate(rows, 1):
        actions = []
        for cell in (c.strip() for c in row.split(",")):
            match = _ACTION.fullmatch(cell)
            if match is not None:
                actions.append(Action(int(match[1]), match[2], int(match[3])))
            elif cell:
                kinds = "F forward, B backward, I backward to the inputs, W backward to the parameters"
                offer = f"write STAGE KIND MICROBATCH, `0F0`: {kinds}"
                slips.append(Slip(number, f"`{cell[:30]}` is no action", offer))
        found.append(tuple(actions))
    return tuple(found), slips


def coordinates_of_stages(lines: Lines, stages: int) -> tuple[tuple[int, ...], list[Slip]]:
    """Stage -> the coordinate of its line; mistakes if a stage is on two lines, or on none."""
    on: dict[int, int] = {}
    slips: list[Slip] = []
    for coordinate, line in enumerate(lines):
        for stage in dict.fromkeys(a.stage for a in line):
            if stage >= stages:
                slips.append(Slip(coordinate + 1, f"there is no stage {stage}", f"the stages are 0 to {stages - 1}"))
            elif on.setdefault(stage, coordinate) != coordinate:
                slips.append(Slip(coordinate + 1, f"stage {stage} is on lines {on[stage] + 1} and {coordinate + 1}",
                                  "a stage is on one coordinate"))  # fmt: skip
    slips += [Slip(0, f"stage {s} is on no line", "each stage is on one line") for s in range(stages) if s not in on]
    return tuple(on.get(s, 0) for s in range(stages)), slips


def missing(lines: Lines, stages: int, microbatches: int) -> list[Slip]:
    """Each stage does each microbatch once forward and once backward, in one piece or in two."""
    counts = Counter(text(a) for line in lines for a in line)
    slips = []
    for line, row in enumerate(lines, 1):
        for action in dict.fromkeys(row):
            if action.microbatch >= microbatches:
                slips.append(Slip(line, f"`{text(action)}`: there is no microbatch {action.microbatch}",
                                  f"the microbatches are 0 to {microbatches - 1}"))  # fmt: skip
            elif counts[text(action)] > 1:
                slips.append(Slip(line, f"`{text(action)}` is done {counts[text(action)]} times", "do it once"))
    for stage in range(stages):
        for m in range(microbatches):
            slips += _incomplete(counts, stage, m)
    return slips


def _incomplete(counts: Mapping[str, int], stage: int, m: int) -> list[Slip]:
    kinds = "".join(k for k in "FBIW" if counts.get(f"{stage}{k}{m}"))
    if kinds in ("FB", "FIW"):
        return []
    what = f"microbatch {m} in stage {stage}"
    if "F" not in kinds:
        return [Slip(0, f"{what} has no forward", f"add `{stage}F{m}`")]
    if "B" in kinds:
        return [Slip(0, f"{what} has `B` and {' and '.join(f'`{k}`' for k in kinds[2:])}", "B is I and W in one")]
    lacks = [k for k in "IW" if k not in kinds]
    offer = f"add `{stage}B{m}`" if len(lacks) == 2 else f"add `{stage}{lacks[0]}{m}`"
    return [Slip(0, f"{what} has no {'backward' if len(lacks) == 2 else f'`{lacks[0]}`'}", offer)]
