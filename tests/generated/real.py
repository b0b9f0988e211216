"""Generated pairs on real gloo ranks: the emitted program's losses, evaluations and weights against one rank's."""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from safetensors.torch import load_file

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.interpret.compare import SMALLEST_SCALE
from shardlang.source import Source
from tests.generated.cases import AGREED, CRASHED, REFUSED, WRONG, Outcome, case
from tests.generated.worlds import World

TOLERANCE = 1e-9
RANKS = (2, 4, 6, 8)


@dataclass
class Real:
    """Worlds of ranks by their number, and a folder for what they run."""

    folder: Path
    worlds: dict[int, World] = field(default_factory=dict)

    def case(self, seed: int) -> Outcome:
        """The pair of a seed, on 2, 4, 6 or 8 ranks by turns; refused as ever, or agreed also on real ranks."""
        outcome = case(seed, RANKS[seed % len(RANKS)], "f64")
        return outcome if outcome.kind != AGREED else self.judged(outcome)

    def judged(self, outcome: Outcome) -> Outcome:
        """A pair that agrees on simulated ranks, run on real ones and on one alone."""
        outcome = _without_eval(outcome)
        try:
            many, alone = self._run(outcome, outcome.ranks), self._run(outcome, 1)
        except Failed as failure:
            return replace(outcome, kind=CRASHED, detail=str(failure))
        except Exception:
            return replace(outcome, kind=CRASHED, detail=traceback.format_exc())
        differs, largest = compared(many, alone, bool(outcome.ties))
        kind, largest = WRONG if differs else AGREED, max(largest, outcome.largest)
        return replace(outcome, kind=kind, detail=differs, largest=largest)

    def _run(self, outcome: Outcome, ranks: int) -> Path:
        folder = self.folder / f"{outcome.seed}-{ranks}"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in emitted(outcome.text, ranks).items():
            (folder / name).write_text(text)
        failed = self.worlds.setdefault(ranks, World(ranks)).run(folder / "main.py")
        if failed:
            raise Failed(f"on {ranks} ranks: {failed}")
        return folder

    def close(self) -> None:
        for world in self.worlds.values():
            world.close()


class Failed(Exception):
    """A program that real ranks could not run."""


def _without_eval(outcome: Outcome) -> Outcome:
    """A pair whose `eval` could be emitted, or without it: some losses and metrics cannot be accumulated yet."""
    if "eval = " in outcome.text:
        try:
            emitted(outcome.text, outcome.ranks)
        except Failed as failure:
            if "cannot accumulate" in str(failure):
                return replace(outcome, text=re.sub(r"\n  eval = .*", "", outcome.text))
        except Exception:
            return outcome
    return outcome


def emitted(text: str, ranks: int) -> Mapping[str, str]:
    """The files of a pair, by the road that `shardc compile` takes."""
    sink = Sink()
    program = driver.check_source(Source("generated.shard", text), sink)
    plan = driver.plan_program(program, None, ranks, sink) if program is not None else None
    files = driver.emit_plan(plan, sink) if plan is not None else None
    if files is None:
        raise Failed(f"nothing is emitted for {ranks} ranks: {[d.message for d in sink.found]}")
    return files


def compared(many: Path, alone: Path, ties: bool = False) -> tuple[str, float]:
    """What differs first, and the largest relative difference: figures of each step, evaluations, weights.

    ties: rounding decides a metric, so that of the figures the losses alone are compared.
    """
    largest = 0.0
    for (name, mine), (other, theirs) in zip(_figures(many), _figures(alone), strict=True):
        assert name == other, (name, other)
        if ties and not name.endswith("loss"):
            continue
        error = abs(mine - theirs) / max(abs(theirs), SMALLEST_SCALE)
        if math.isnan(error) or error > TOLERANCE:
            return f"{name} is {mine!r}, and {theirs!r} on one rank", error
        largest = max(largest, error)
    weights, whole = (load_file(folder / "weights.safetensors") for folder in (many, alone))
    assert set(weights) == set(whole)
    for name, wanted in whole.items():
        error = float((weights[name] - wanted).abs().max()) / max(float(wanted.abs().max()), SMALLEST_SCALE)
        if math.isnan(error) or error > TOLERANCE:
            return f"the weights `{name}` differ by {error:.3g} of their magnitude after the last step", error
        largest = max(largest, error)
    return "", largest


def _figures(folder: Path) -> list[tuple[str, float]]:
    """All figures of a run in order, named by step and what they are."""
    found = []
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        place = f"step {record['step']}" if "step" in record else f"epoch {record['epoch']}"
        skipped = ("step", "epoch", "step_ms")
        found += [(f"{place}: {name}", float(x)) for name, x in record.items() if name not in skipped]
    return found


__all__ = ["REFUSED", "Failed", "Real", "compared", "emitted"]
