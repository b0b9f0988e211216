"""Trains a program on the CPU and on the pretended device, in a process of its own: `python -m tests.device.run JOB`.

Tests call `trained`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm
from tests.end_to_end.curves import ROOT, RunOf


@dataclass(frozen=True)
class OnBoth:
    """The steps' figures on the CPU and on the device, and what each rank's device did."""

    cpu: list[dict[str, Any]]
    device: list[dict[str, Any]]
    counts: list[dict[str, Any]]

    def figures(self, name: str = "loss") -> tuple[list[float], list[float]]:
        """One figure of each step, on the CPU and on the device."""
        return [step[name] for step in self.cpu], [step[name] for step in self.device]


def trained(
    text: str, runs: Sequence[RunOf], folder: Path, base: Path | None = None,
    settings: Mapping[str, str] | None = None, peak: int = 0,
) -> dict[RunOf, OnBoth]:  # fmt: skip
    """Trains the program `text` twice a run; paths in the program are relative to `base`, by default `folder`.
    settings: as of `--set`. peak: what the device says that it has held at most."""
    job = {
        "text": text, "runs": [[run.strategy, run.ranks] for run in runs], "folder": str(folder),
        "base": str(base or folder), "settings": settings, "peak": peak,
    }  # fmt: skip
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "tests.device.run", str(file)]
    done = warm.run(command, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return {run: _read(folder / run.name, run.ranks) for run in runs}


def _read(folder: Path, ranks: int) -> OnBoth:
    def steps(kind: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (folder / f"{kind}.jsonl").read_text().splitlines()]
        return [line for line in lines if "step" in line and "loss" in line]

    counts = [json.loads((folder / f"counts-{rank}.json").read_text()) for rank in range(ranks)]
    return OnBoth(steps("cpu"), steps("pretended"), counts)


def main(job_file: str) -> int:
    """Compiles and launches each run of a job on both kinds; the first exit code that is not 0."""
    # Where torch takes several elements at once, the last few of a tensor are rounded otherwise than the others; the
    # device cuts what it updates otherwise than the CPU.
    os.environ["ATEN_CPU_CAPABILITY"] = "default"
    import torch

    from shardlang.runtime.comm.mesh import world
    from shardlang.runtime.comm.record import AHEAD, record
    from shardlang.runtime.data.dataset import Dataset
    from shardlang.runtime.launch.devices import DeviceChoice
    from shardlang.runtime.launch.launcher import launch_program, read_program
    from shardlang.runtime.logs import Log
    from shardlang.runtime.program import RunProgram
    from shardlang.runtime.step.train import TrainingRun
    from tests.device import pretended
    from tests.emit.sources import emitted_files

    # The pretended device has no fused attention, whose sums have another order.
    torch.backends.cuda.enable_flash_sdp(False)
    job = json.loads(Path(job_file).read_text())
    pretended.register(job["peak"])

    def counted(program: RunProgram, data: Mapping[str, Dataset], log: Log, _: Path | None) -> None:
        run, notes = TrainingRun(program, data, log), list[str]()
        log.note = notes.append  # type: ignore[method-assign]
        before = len(pretended.counts.groups)
        run.train()
        found = {**vars(pretended.counts), "groups_before": before, "steps": run.step, "notes": notes}
        found["ahead"] = bool(record.words[AHEAD])
        text = json.dumps(found)
        run.save(folder / f"weights-{world.device.type}.safetensors")
        found = {**json.loads(text), "most_groups": pretended.counts.most_groups}
        (folder / f"counts-{world.rank}.json").write_text(json.dumps(found))

    for run in (RunOf(*run) for run in job["runs"]):
        folder = Path(job["folder"]) / run.name
        folder.mkdir()
        for name, text in emitted_files(job["text"], run.ranks, run.strategy or None, settings=job["settings"]).items():
            (folder / name).write_text(text)
        for kind in ("cpu", pretended.NAME):
            program = read_program(folder / "main.py")
            program.base = Path(job["base"])
            program.overwrite = True  # of the run before
            code = launch_program(
                program, folder / "main.py", run.ranks, DeviceChoice(kind), folder / f"logs-{kind}",
                folder / f"{kind}.jsonl", None, counted,
            )  # fmt: skip
            if code != 0:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
