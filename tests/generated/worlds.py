"""Ranks that stay: forked and connected by gloo once, they run one emitted program after the other.

`World(ranks)` starts `python -m tests.generated.worlds RANKS` and talks to it in lines of JSON; a rank that fails or
hangs ends its world, and the next program gets a new one.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.warm import Warm

if TYPE_CHECKING:
    from shardlang.runtime.launch.observe import RecordedRun

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120.0


class World:
    """A number of ranks, started at the first program."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.process: Warm | None = None

    def run(self, main_file: Path, watched: int = 0, moved: int = 0) -> str:
        """Runs an emitted program; its figures and weights are beside it afterwards. What went wrong, or "".

        watched: so many steps, of which each rank writes down everything that it computes, in `watched` beside it.
        moved: where it is not 0, each number of the parameters moves by a unit in the last place of the run's
        type first, up or down as drawn from it.
        """
        if self.process is None or self.process.poll() is not None:
            self.process = Warm(
                [sys.executable, "-m", "tests.generated.worlds", str(self.ranks)], cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{watched} {moved} {main_file}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        failed = json.loads(line)["failed"] if line else f"the world of {self.ranks} ranks has ended"
        if failed:
            self.close()
        return failed

    def close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


def _rank(rank: int, ranks: int, store: str, jobs: int, results: int) -> None:
    """One rank's life: programs by name from `jobs`, what went wrong with each to `results`."""
    import torch
    import torch.distributed as dist

    from shardlang.runtime.comm import mesh

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    torch.set_num_threads(1)
    mesh.connect(rank, ranks, torch.device("cpu"), dist.FileStore(store, ranks) if ranks > 1 else None)
    with os.fdopen(jobs) as lines:
        for line in lines:
            try:
                watched, moved, main_file = line.strip().split(" ", 2)
                if int(watched):
                    _watch(Path(main_file), int(watched))
                else:
                    _run(Path(main_file), rank, int(moved))
                failed = ""
            except BaseException:
                failed = f"rank {rank}: {traceback.format_exc()}"
            os.write(results, (json.dumps({"rank": rank, "failed": failed[-4000:]}) + "\n").encode())


def _run(main_file: Path, rank: int, moved: int) -> None:
    import torch

    from shardlang.runtime.launch.launcher import read_program
    from shardlang.runtime.logs import Log
    from shardlang.runtime.program import DTYPES
    from shardlang.runtime.step.train import TrainingRun, datasets

    program = read_program(main_file)
    program.base = main_file.parent
    log, draws = Log(None, main_file.with_name("metrics.jsonl") if rank == 0 else None), torch.Generator()
    draws.manual_seed(moved)
    try:
        training = TrainingRun(program, datasets(program), log)
        for leaf in training.model.leaves.values() if moved else ():
            ways = 2 * torch.randint(2, leaf.shape, generator=draws).to(leaf.dtype) - 1
            leaf.data.mul_(1 + ways * torch.finfo(DTYPES[program.precision]).eps)
        training.train()
        training.save(main_file.with_name("weights.safetensors"))
    finally:
        log.end()


def trial(main_file: Path, steps: int) -> RecordedRun:
    """A watched run of an emitted program; its records are in `watched` beside it."""
    from shardlang.runtime.launch.observe import RecordedRun

    files = frozenset(str(p.resolve()) for p in main_file.parent.glob("*.py"))
    return RecordedRun(steps, main_file.with_name("watched"), files)


def _watch(main_file: Path, steps: int) -> None:
    from shardlang.runtime.launch.launcher import read_program
    from shardlang.runtime.logs import Log
    from shardlang.runtime.step.train import datasets

    main_file.with_name("watched").mkdir(exist_ok=True)
    program = replace(read_program(main_file), base=main_file.parent, eval=None)
    trial(main_file, steps)(program, datasets(program), Log(None, None), None)


def _fork(rank: int, ranks: int, store: str, results: int) -> tuple[int, int]:
    """A rank's process, and where it reads its programs."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        sys.stdin.close()
        try:
            _rank(rank, ranks, store, read, results)
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.close(read)
    return pid, write


def _answers(results: int, ranks: int) -> str:
    """Waits for all ranks; the first failure, or ""."""
    text, deadline = b"", time.monotonic() + LIMIT
    while text.count(b"\n") < ranks:
        if not select.select([results], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return f"{text.count(bytes([10]))} of {ranks} ranks have answered in {LIMIT:g} s; {text.decode()}"
        text += os.read(results, 65536)
        found = [json.loads(line) for line in text.split(b"\n")[:-1]]
        failed = next((x["failed"] for x in found if x["failed"]), "")
        if failed:
            return failed
    return ""


def main(ranks: int) -> None:
    """Programs by name from standard input, each on all ranks."""
    import shardlang.runtime.launch.launcher  # noqa: F401  read once, before the ranks are forked

    results, told = os.pipe()
    with tempfile.TemporaryDirectory() as folder:
        forked = [_fork(rank, ranks, f"{folder}/store", told) for rank in range(ranks)]
        for line in sys.stdin:
            for _, jobs in forked:
                os.write(jobs, line.encode())
            failed = _answers(results, ranks)
            print(json.dumps({"failed": failed}), flush=True)
            if failed:
                break
        for pid, _ in forked:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
