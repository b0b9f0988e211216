"""Runs programs with every value, gradient and parameter of each step written down, in a process of its own.

A process of its own, since ranks are forked. `python -m tests.models.watch JOB.json`; tests call `watched`, and `whole`
to put the blocks of the ranks together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from shardlang.interpret.ranks.coordinates import block_of
from shardlang.plan.plan import Plan
from shardlang.runtime.launch.observe import RecordedRun, StepRecord
from shardlang.types.layout import Layout
from tests import warm
from tests.end_to_end.curves import ROOT, RunOf


def watched(text: str, runs: Sequence[RunOf], steps: int, folder: Path) -> dict[RunOf, list[list[StepRecord]]]:
    """By run and step (0: as it begins) the records of all ranks. Paths in the program are relative to `folder`."""
    job = {"text": text, "runs": [[run.strategy, run.ranks] for run in runs], "steps": steps, "folder": str(folder)}
    file = folder / "job.json"
    file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "tests.models.watch", str(file)]
    done = warm.run(command, cwd=ROOT, timeout=None)
    assert done.returncode == 0, done.stdout + done.stderr
    return {run: [_records(folder / run.name, step, run.ranks) for step in range(steps + 1)] for run in runs}


def _records(folder: Path, step: int, ranks: int) -> list[StepRecord]:
    trial = RecordedRun(step, folder, frozenset())
    found = [trial.read(step, rank) for rank in range(ranks)]
    assert all(record is not None for record in found), (folder, step)
    return [record for record in found if record is not None]


def whole(plan: Plan, layout: Layout, shape: Sequence[int], parts: Sequence[Tensor]) -> Tensor:
    """The value whose blocks the ranks hold; where several hold the same, they must agree."""
    assert not layout.pending
    mesh = plan.meshes[layout.mesh]
    result = torch.full(tuple(shape), torch.nan, dtype=parts[0].dtype)
    for rank, part in enumerate(parts):
        place = tuple(slice(start, start + size) for start, size in block_of(mesh, rank, shape, layout))
        before = result[place]
        torch.testing.assert_close(part, torch.where(before.isnan(), part, before), rtol=1e-5, atol=1e-6)
        result[place] = part
    assert not result.isnan().any()
    return result


def parameters(plan: Plan, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Whole parameters (or their gradients) by path, of a plan without ZeRO."""
    found = {}
    for value in plan.graph.params:
        described = plan.graph.values[value]
        layout = plan.params[value].stored
        blocks = [part[described.path] for part in parts]
        found[described.path] = whole(plan, layout, described.type.shape, blocks)
    return found


def value(plan: Plan, path: str, records: Sequence[StepRecord]) -> Tensor:
    """The whole of a value of `forward` that has a name of its own in the emitted program."""
    (at,) = plan.graph.addresses[path]
    name = path.rpartition(".")[2]
    parts = [next(call for call in r.calls if call.function == "forward").values[name] for r in records]
    return whole(plan, plan.produced[at], plan.graph.values[at].type.shape, parts)


def main(job_file: str) -> int:
    """Watches each run of a job; the first exit code that is not 0."""
    from shardlang.runtime.launch.devices import DeviceChoice
    from shardlang.runtime.launch.launcher import launch_program, read_program
    from tests.emit.sources import main_file

    job = json.loads(Path(job_file).read_text())
    for run in (RunOf(*r) for r in job["runs"]):
        folder = Path(job["folder"]) / run.name
        folder.mkdir()
        file = folder / "main.py"
        file.write_text(main_file(job["text"], run.ranks, run.strategy or None))
        program = read_program(file)
        program.base = Path(job["folder"])
        trial = RecordedRun(job["steps"], folder, frozenset([str(file.resolve())]))
        code = launch_program(program, file, run.ranks, DeviceChoice("cpu"), folder / "logs", None, None, work=trial)
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
