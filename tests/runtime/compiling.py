"""Trains a program on ranks as it is and then compiled, in one process of its own; gives the losses of both, and what
torch.compile did: `python -m tests.runtime.compiling JOB.json`. Tests call `trained`.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm
from tests.end_to_end.curves import ROOT, RunOf


@dataclass(frozen=True)
class Both:
    """What rank 0 saw. kinds: functions of layers that were compiled, in training or in evaluation. graphs: how many
    were made of them. known: what compiled blocks call as one operator. said: warnings of the compiler.
    cited: the line of the program that each of `known` is for."""

    eager: list[float]
    compiled: list[float]
    kinds: int
    graphs: int
    breaks: int
    known: list[str]
    said: list[str]
    cited: list[str]


def trained(
    text: str, runs: Sequence[RunOf], folder: Path, backend: str = "aot_eager", base: Path | None = None,
    settings: Mapping[str, str] | None = None,
) -> dict[RunOf, Both]:  # fmt: skip
    """Trains a program twice a run. Compiled code is kept in the folder; paths in the program are relative to `base`,
    by default the folder."""
    job = {
        "text": text, "runs": [[run.strategy, run.ranks] for run in runs], "backend": backend,
        "base": str(base or folder), "settings": settings,
    }  # fmt: skip
    (folder / "job.json").write_text(json.dumps(job))
    done = warm.run(
        [sys.executable, "-m", "tests.runtime.compiling", str(folder / "job.json")], cwd=ROOT, timeout=600,
        env={**warm.os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return {run: Both(**json.loads((folder / f"{run.name}.json").read_text())) for run in runs}


def _work(program: Any, data: Any, log: Any, found: Path) -> None:
    """What a rank does."""
    from torch._dynamo.utils import counters

    from shardlang.runtime import compiled
    from shardlang.runtime.comm import traced
    from shardlang.runtime.comm.mesh import world
    from shardlang.runtime.logs import Log
    from shardlang.runtime.step.train import TrainingRun

    class Losses(Log):
        def step(self, step: int, epoch: int, figures: Any, *_: Any) -> None:
            losses[-1].append(figures["loss"])

    def counted(function: Any) -> Any:
        kinds.append(function)
        return once(function)

    kinds: list[Any] = []
    once, compiled._compiled = compiled._compiled, counted
    losses: list[list[float]] = []
    for kind in ("none", "blocks"):
        losses.append([])
        program.compile = kind
        with warnings.catch_warnings(record=True) as told:
            TrainingRun(program, data, Losses(None, None)).train()
    if world.rank == 0:
        known = [function.__name__ for function, *_ in traced._calls]
        cited = [site.decode() for *_, site in traced._calls]
        said = sorted({str(warning.message) for warning in told})
        graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
        found.write_text(json.dumps(vars(Both(*losses, len(kinds), graphs, breaks, known, said, cited))))


def main(file: Path) -> int:

    from shardlang.runtime import compiled
    from shardlang.runtime.launch.devices import DeviceChoice
    from shardlang.runtime.launch.launcher import launch_program, read_program
    from tests.emit.sources import written

    job = json.loads(file.read_text())
    compiled.Compiling.backend = job["backend"]
    if job["backend"] == "inductor":
        from torch._inductor import config, cpu_vec_isa

        # What takes most of the time, and is not what is tested: trials of vector instructions, all headers at once.
        cpu_vec_isa.valid_vec_isa_list = lambda: []
        config.cpp_cache_precompile_headers = False
    for run in (RunOf(*pair) for pair in job["runs"]):
        folder = file.parent / run.name
        main_file = written(folder, job["text"], run.ranks, run.strategy or None, settings=job["settings"])
        program, found = read_program(main_file), file.parent / f"{run.name}.json"
        program.base = Path(job["base"])
        program.overwrite = True  # of the run before
        code = launch_program(
            program, main_file, run.ranks, DeviceChoice("cpu"), folder / "logs", None, None,
            lambda *given, found=found: _work(*given[:3], found),
        )  # fmt: skip
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
