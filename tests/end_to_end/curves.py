"""Runs a program under several strategies and rank counts, in one process of its own, and gives back the figures.

A process of its own, since ranks are forked: a fork of a process that has computed with threads may hang. Run as
`python -m tests.end_to_end.curves JOB.json`; tests call `figures`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests import warm

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RunOf:
    """One run: a strategy ("" for none) and a number of ranks."""

    strategy: str
    ranks: int

    @property
    def name(self) -> str:
        return f"{self.strategy or 'alone'}-{self.ranks}"


@dataclass(frozen=True)
class Figures:
    """What a run wrote: per step, per evaluation, and the weights it saved."""

    steps: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    weights: Path

    def curve(self, name: str = "loss") -> list[float]:
        return [step[name] for step in self.steps]


def figures(text: str, runs: Sequence[RunOf], folder: Path, base: Path | None = None) -> dict[RunOf, Figures]:
    """Trains the program `text` once a run; all files go to `folder`, paths in the program are relative to `base`."""
    job = {"text": text, "runs": [asdict(run) for run in runs], "folder": str(folder), "base": str(base or folder)}
    with tempfile.NamedTemporaryFile("w", suffix=".json", dir=folder) as file:
        json.dump(job, file)
        file.flush()
        done = warm.run([sys.executable, "-m", "tests.end_to_end.curves", file.name], cwd=ROOT, timeout=None)
    assert done.returncode == 0, done.stdout + done.stderr
    return {run: _read(folder / run.name) for run in runs}


def _read(folder: Path) -> Figures:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Figures(
        [x for x in lines if "step" in x and "loss" in x],
        [x for x in lines if "eval.loss" in x],
        folder / "weights.safetensors",
    )


def main(job_file: str) -> int:
    """Compiles and launches each run of a job; the first exit code that is not 0."""
    from shardlang.runtime.launch.launcher import launch
    from tests.emit.sources import written

    job = json.loads(Path(job_file).read_text())
    for run in (RunOf(**r) for r in job["runs"]):
        folder = Path(job["folder"]) / run.name
        file = written(folder, job["text"], run.ranks, run.strategy or None)
        code = launch(file, run.ranks, device="cpu", base=Path(job["base"]), metrics=folder / "metrics.jsonl",
                      save_weights=folder / "weights.safetensors")  # fmt: skip
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
