"""The translator of examples/transformer.shard under each of its strategies and each schedule, on 1 to 8 real ranks.

    python -m tests.end_to_end.translator [--only NAME,...] [--steps 20] [--precision f32,f64]

Sizes are cut as by `--set`; the schedule and the stages by rewriting the program's text. Each curve is held against
that of one rank: to 1e-5 in float32, to 1e-9 in float64. The first loss must be within 0.3 of ln(vocab) (what the head
makes of normalised states at the start is worth 0.14), and on real sentence pairs the loss must fall. Real pairs are
read from ../shared/programs/data; without them, made ones. One line a run, as it is known; ends with 1 where a line
does not hold.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests.end_to_end.curves import ROOT
from tests.generated.worlds import World

EXAMPLE = ROOT / "examples" / "transformer.shard"
REAL = ROOT.parent / "shared" / "programs" / "data" / "fr_en.txt"
PAIRS, VOCAB, STEPS = 2000, 512, 20
SIZES = {
    "batch": "16", "src": "16", "tgt": "16", "model.vocab": str(VOCAB), "model.d": "32", "model.heads": "8",
    "model.ffn": "64", "model.layers": "2", "model.max_len": "16",
}  # fmt: skip
TOLERANCE = {"f32": 1e-5, "f64": 1e-9}
STAGES = re.compile(r"stages over pp \{.*?\n  \}", re.DOTALL)
LINES = {
    1: {0: "src_embed, tgt_embed, encoder", 1: "decoder, head"},
    2: {
        0: "src_embed, tgt_embed, encoder.blocks[0]", 1: "encoder.blocks[1], encoder.norm", 2: "decoder.blocks[0]",
        3: "decoder.blocks[1], decoder.norm, head",
    },
}  # fmt: skip
# Each schedule with the number of stages on a coordinate.
SCHEDULES = (
    ("gpipe", 1), ("1f1b", 1), ("zero_bubble", 1), ("interleaved_1f1b", 2), ("zero_bubble", 2), ("zbv", 2),
    ("dualpipe_v", 2),
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """A strategy on a number of ranks, with axes that are set; of three_d the schedule and the stages a coordinate."""

    strategy: str
    ranks: int
    axes: Mapping[str, int] = field(default_factory=dict)
    schedule: str = ""
    virtual: int = 1

    @property
    def name(self) -> str:
        axes = "".join(f" {axis}={size}" for axis, size in self.axes.items())
        return f"{self.strategy}{axes} {self.schedule}".rstrip() + (f" virtual={self.virtual}" * (self.virtual > 1))

    def text(self, steps: int) -> str:
        """The program, with the schedule and the stages of this run."""
        text = _replaced(EXAMPLE.read_text(), "epochs = 1", f"steps = {steps}")
        if not self.schedule:
            return text
        lines = "\n".join(f"    {stage}: {layers}" for stage, layers in LINES[self.virtual].items())
        virtual = f", virtual = {self.virtual}" * (self.virtual > 1)
        text = _replaced(text, 'schedule "1f1b"', f'schedule "{self.schedule}"')
        return STAGES.sub(f"stages over pp{virtual} {{\n{lines}\n  }}", text)

    def overrides(self, precision: str) -> dict[str, str]:
        axes = {f"{self.strategy}.{axis}": str(size) for axis, size in self.axes.items()}
        return SIZES | axes | {"train.precision": precision}


ALONE = Run("data_parallel", 1)


def _replaced(text: str, old: str, new: str) -> str:
    assert old in text, old
    return text.replace(old, new)


def runs(counts: Sequence[int]) -> Iterator[Run]:
    """All on so many ranks: each schedule on one mesh (mp 2 from 4 ranks on), the example's own on the others too."""
    for ranks in counts:
        yield Run("model_parallel", ranks)
        if ranks > 1:
            yield Run("data_parallel", ranks)
        for mp in (1, 2, 4):
            if 2 * mp <= ranks:
                schedules = SCHEDULES if mp == min(2, ranks // 2) else [("1f1b", 1)]
                yield from (Run("three_d", ranks, {"mp": mp}, *schedule) for schedule in schedules)


@dataclass(frozen=True)
class Judged:
    """A run's losses, and how far they are from one rank's at most."""

    losses: list[float]
    difference: float


@dataclass
class Bench:
    """Worlds of ranks that stay, a folder, and the pairs that all runs read."""

    folder: Path
    pairs: str
    steps: int = STEPS
    worlds: dict[int, World] = field(default_factory=dict)
    alone: dict[str, list[float]] = field(default_factory=dict)
    count: int = 0

    def losses(self, run: Run, precision: str) -> list[float]:
        """Of each step. RuntimeError where the program is refused or a rank fails."""
        self.count += 1
        folder = self.folder / str(self.count)
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "fr_en.txt").write_text(self.pairs)
        for name, text in emitted(run, precision, self.steps).items():
            (folder / name).write_text(text)
        failed = self.worlds.setdefault(run.ranks, World(run.ranks)).run(folder / "main.py")
        if failed:
            raise RuntimeError(failed)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    def judged(self, run: Run, precision: str) -> Judged:
        if precision not in self.alone:
            self.alone[precision] = self.losses(ALONE, precision)
        mine, wanted = self.losses(run, precision), self.alone[precision]
        assert len(mine) == len(wanted) == self.steps
        return Judged(mine, max(abs(a - b) / abs(b) for a, b in zip(mine, wanted, strict=True)))

    def close(self) -> None:
        for world in self.worlds.values():
            world.close()


def emitted(run: Run, precision: str, steps: int) -> Mapping[str, str]:
    """The files of a run, by the road that `shardc compile` takes."""
    sink = Sink()
    program = driver.check_source(Source("transformer.shard", run.text(steps)), sink, run.overrides(precision))
    plan = driver.plan_program(program, run.strategy, run.ranks, sink) if program is not None else None
    files = driver.emit_plan(plan, sink) if plan is not None else None
    if files is None:
        raise RuntimeError(f"refused: {[d.message for d in sink.found]}")
    return files


def real_pairs() -> str | None:
    """The first of the real pairs, where they are."""
    return "".join(REAL.open(encoding="utf-8").readlines()[:PAIRS]) if REAL.exists() else None


def made_pairs(count: int = 400) -> str:
    """Pairs of sentences, the second one the first in other words, of Zipf's frequencies and several lengths."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        words = [int(30 / (1 + 29 * draw.random())) + draw.randrange(20) for _ in range(draw.randrange(3, 20))]
        rows.append(" ".join(f"mot{w}" for w in words) + "\t" + " ".join(f"word{w}" for w in words) + "\n")
    return "".join(rows)


def wrong(judged: Judged, precision: str, falls: bool) -> str:
    """What a curve does not hold, or ""."""
    first, last = (sum(part) / len(part) for part in (judged.losses[:5], judged.losses[-5:]))
    if not judged.difference <= TOLERANCE[precision]:
        return "DIFFERS"
    if abs(judged.losses[0] - math.log(VOCAB)) > 0.3:
        return f"BEGINS AT {judged.losses[0]:.3f}"
    return "DOES NOT FALL" if falls and not last < first else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="runs whose name holds one of these")
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--precision", default="f32,f64")
    given = parser.parse_args(arguments)
    only, counts = given.only.split(","), [int(n) for n in given.ranks.split(",")]
    chosen = [run for run in runs(counts) if any(name in run.name for name in only)]
    pairs = real_pairs()
    print("the first real pairs" if pairs else f"made pairs: {REAL} is not there", flush=True)
    print(f"{'strategy':42} ranks   precision  first   last    difference", flush=True)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), pairs or made_pairs(), given.steps)
        try:
            for run in chosen:
                for precision in given.precision.split(","):
                    failed += _told(bench, run, precision, falls=pairs is not None)
        finally:
            bench.close()
    print(f"{len(chosen) * len(given.precision.split(',')) - failed} hold, {failed} do not")
    return 1 if failed or not chosen else 0


def _told(bench: Bench, run: Run, precision: str, falls: bool) -> bool:
    """Prints a run's line; whether something does not hold."""
    begun, line = time.monotonic(), f"{run.name:42} {run.ranks:5}   {precision:9}"
    try:
        judged = bench.judged(run, precision)
    except RuntimeError as failure:
        print(f"{line}  FAILED {failure}", flush=True)
        return True
    found = wrong(judged, precision, falls)
    seconds = time.monotonic() - begun
    ends = f"{judged.losses[0]:.4f}  {judged.losses[-1]:.4f}"
    print(f"{line}  {ends}  {judged.difference:8.1e}  {seconds:5.1f} s  {found}", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
