"""Generated pairs on real gloo ranks: the emitted program's losses, evaluations and weights against one rank's."""

from __future__ import annotations

import json
import math
import re
import shutil
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from safetensors.torch import load_file

from shardlang.interpret.meaning.elements import in_type
from shardlang.interpret.meaning.undecided import SMALLEST_SCALE
from shardlang.interpret.verify.one_device import FURTHER
from shardlang.plan.plan import Plan
from shardlang.types.dim import LOW
from tests.generated import roads
from tests.generated.cases import AGREED, CRASHED, ILL, WRONG, Outcome, case
from tests.generated.worlds import World
from tests.interpret.verify_plan import without_index

TOLERANCE = 1e-9
# The distance of neighbours in f32, and a scale: figures of a run in bf16 are sums in f32 of numbers of about 1.
UNIT, PART = 2.0**-23, 1.0
RANKS = (2, 4, 6, 8)
# Seeds of the draws by which one rank's weights move.
DRAWS = (1, 2, 3)
# A file beside a run that ended for a number that is none: it says which.
ENDED = "ended"
# Figures that are numbers wherever a run goes on.
FINITE = r"step \d+: (loss|grad_norm)"


@dataclass
class Real:
    """Worlds of ranks by their number, and a folder for what they run."""

    folder: Path
    worlds: dict[int, World] = field(default_factory=dict)

    def case(self, seed: int, precision: str = "f64") -> Outcome:
        """The pair of a seed, on 2, 4, 6 or 8 ranks by turns; refused as ever, or agreed also on real ranks."""
        outcome = case(seed, RANKS[seed % len(RANKS)], precision)
        return outcome if outcome.kind != AGREED else self.judged(outcome, outcome.ranks)

    def judged(self, outcome: Outcome, ranks: int) -> Outcome:
        """A pair that agrees on simulated ranks, run on real ones: held against its program without any strategy,
        against what `--simulate` reports, and against one device as `shardc verify` watches it.
        """
        try:
            differs, largest, moved = self._differs(outcome, ranks)
        except roads.NotPlanned:
            return replace(outcome, features=outcome.features | {f"not planned on real ranks ({ranks})"})
        except roads.Failed as failure:
            return replace(outcome, kind=CRASHED, detail=str(failure))
        except Exception:
            return replace(outcome, kind=CRASHED, detail=traceback.format_exc())
        kind, largest = WRONG if differs else ILL if moved else AGREED, max(largest, outcome.largest)
        if not differs:
            shutil.rmtree(self.folder / str(outcome.seed))
        return replace(outcome, kind=kind, detail=differs or moved, largest=largest)

    def _differs(self, outcome: Outcome, ranks: int) -> tuple[str, float, str]:
        """What differs, the largest relative difference, and what differs by no more than rounding moves one rank."""
        ties, text = bool(outcome.ties), roads.without_eval(outcome.text, ranks)
        folder = self.folder / str(outcome.seed)
        plan, whole, moved = roads.planned(text, ranks), roads.planned(roads.alone(text), 1), ""
        many, alone = folder / "many", folder / "alone"
        refused = self._refused(whole, alone)
        if refused != (theirs := self._refused(plan, many)):
            return f"one rank: {refused or 'no error'}; {ranks} ranks: {theirs or 'no error'}", 0.0, ""
        if refused:
            return "", 0.0, ""
        late = "" if "not_finite = skip" in text else self._late(many) or self._late(alone)
        if late:
            return late, 0.0, ""
        ends = {at.name: (at / ENDED).read_text() for at in (many, alone) if (at / ENDED).exists()}
        if ends:
            return self._ended(ends, text, ranks, folder / "simulated"), 0.0, ""
        assert plan.program.training is not None
        # `--simulate` computes in f32 what is to run in bf16: there is nothing to hold it against.
        low = plan.program.training.precision in LOW
        differs, largest = compared(many, alone, ties, self._room(whole, alone, ties) if low else {})
        if differs and not low and self._ill_conditioned(whole, many, alone, ties):
            differs, moved = "", differs
        elif not differs and not low and ranks > 1:
            differs, _ = compared(roads.simulated(text, ranks, folder / "simulated"), many, ties)
            differs = differs and f"simulated, {differs}"
        if not differs:
            plan = in_type(plan, "f64")
            differs = roads.watched(plan, self._run(plan, folder / "watched", roads.STEPS) / "main.py")
        return differs, largest, moved

    def _ended(self, ends: dict[str, str], text: str, ranks: int, folder: Path) -> str:
        """What differs where a run has ended for a number that is none: all end at the same step for the same."""
        try:
            roads.simulated(text, ranks, folder)
        except roads.Failed as failure:
            ends["simulated"] = _end(str(failure))
        there = [ends.get(name, "nothing") for name in ("many", "alone", "simulated")]
        return "" if len({*there}) == 1 else "on {} ranks {}, on one {}, simulated {}".format(ranks, *there)

    def _late(self, folder: Path) -> str:
        """From which step a run went on whose loss or gradients were no numbers."""
        wrong = (name for name, x in _figures(folder) if math.isnan(x) and re.fullmatch(FINITE, name))
        return next((f"{folder.name} goes on from {name}, which is no number" for name in wrong), "")

    def _ill_conditioned(self, whole: Plan, many: Path, alone: Path, ties: bool) -> bool:
        """Whether all that differs moves at least half as far on one rank when each number of its first weights moves
        by a unit in the last place, in one of three draws.
        """
        found = [_errors(self._run(whole, alone.with_name(f"moved{d}"), moved=d), alone, ties) for d in DRAWS]
        furthest = [max(e.error for e in errors) for errors in zip(*found, strict=True)]
        wrong = zip(_errors(many, alone, ties), furthest, strict=True)
        return all(far >= e.error / 2 for e, far in wrong if not e.error <= TOLERANCE)

    def _room(self, whole: Plan, alone: Path, ties: bool) -> dict[str, float]:
        """How far rounding in bf16 moves each figure and weight of one rank at most, times `FURTHER`: from what it has
        in f64, and from what it has with first weights that are a unit of bf16 away.

        The same figure of all steps is one: a draw may move a single number by little.
        """
        others = [self._run(in_type(whole, "f64"), alone.with_name("exact"))]
        others += [self._run(whole, alone.with_name(f"moved{d}"), moved=d) for d in DRAWS]
        room: dict[str, float] = {}
        for error in (e for other in others for e in _errors(other, alone, ties, PART)):
            room[error.of] = max(room.get(error.of, FURTHER * UNIT), FURTHER * error.error)
        return room

    def _refused(self, plan: Plan, folder: Path) -> str:
        """Runs a plan; the error of an index that is no place, "" where it has none."""
        try:
            self._run(plan, folder)
        except roads.Failed as failure:
            found = re.search(r"error\[SH519\]: .*", str(failure), re.DOTALL)
            if found is None:
                raise
            return re.sub(r"\.shard:\d+", "", without_index(found[0]))  # of which one text lacks the strategy
        return ""

    def _run(self, plan: Plan, folder: Path, watched: int = 0, moved: int = 0) -> Path:
        main = roads.written(roads.emitted(plan), folder)
        failed = self.worlds.setdefault(plan.ranks, World(plan.ranks)).run(main, watched, moved)
        if failed and (end := _end(failed)):
            (folder / ENDED).write_text(end)
        elif failed:
            raise roads.Failed(f"on {plan.ranks} ranks: {failed}")
        return folder

    def close(self) -> None:
        for world in self.worlds.values():
            world.close()


def _end(failed: str) -> str:
    """What a message says is not finite, and in which step; "" where it says something else."""
    found = re.search(r"SH506\W+the (loss|gradients) .*? at step (\d+)", failed)
    return f"the {found[1]} at step {found[2]}" if found is not None else ""


@dataclass(frozen=True)
class Error:
    """A relative difference, of which figure or weights it is, and what it is in words."""

    error: float
    of: str
    said: str


def compared(
    many: Path, alone: Path, ties: bool = False, room: Mapping[str, float] = MappingProxyType({})
) -> tuple[str, float]:
    """What differs first, and the largest relative difference: figures of each step, evaluations, weights.

    ties: rounding decides a metric, so that of the figures the losses alone are compared. room: how far apart figures
    and weights may be, by name, where it is not TOLERANCE.
    """
    errors = _errors(many, alone, ties, PART if room else SMALLEST_SCALE)
    first = next((e for e in errors if not e.error <= room.get(e.of, TOLERANCE)), None)
    return (first.said, first.error) if first is not None else ("", max((e.error for e in errors), default=0.0))


def _errors(many: Path, alone: Path, ties: bool, least: float = SMALLEST_SCALE) -> list[Error]:
    """Every difference, in order. NaN equals NaN. least: figures below it are held to that scale."""
    found = []
    for (name, mine), (other, theirs) in zip(_figures(many), _figures(alone), strict=True):
        assert name == other, (name, other)
        if ties and not name.endswith("loss"):
            continue
        same = math.isnan(mine) and math.isnan(theirs)
        error = 0.0 if same else abs(mine - theirs) / max(abs(theirs), least)
        found.append(Error(error, name.partition(": ")[2], f"{name} is {mine!r}, and {theirs!r} on one rank"))
    weights, whole = (load_file(folder / "weights.safetensors") for folder in (many, alone))
    assert set(weights) == set(whole)
    for name, wanted in whole.items():
        error = float((weights[name] - wanted).abs().max()) / max(float(wanted.abs().max()), SMALLEST_SCALE)
        said = f"the weights `{name}` differ by {error:.3g} of their magnitude after the last step"
        found.append(Error(error, name, said))
    return found


def _figures(folder: Path) -> list[tuple[str, float]]:
    """All figures of a run in order, named by step and what they are."""
    found = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        place = f"step {record['step']}" if "step" in record else f"epoch {record['epoch']}"
        figures = {name: x for name, x in record.items() if name not in ("step", "epoch", "step_ms")}
        found += [(f"{place}: {name}", math.nan if x is None else float(x)) for name, x in figures.items()]
    return found
