"""A rank of a run is killed, or stopped, at a random moment: the run goes on, and ends with the numbers of one that
nothing happened to.

A trial is one run and one signal. `forked`: the ranks of `python main.py --max-restarts`, which goes on by itself.
`apart`: ranks as torchrun starts them, each a process of its own with a store that no rank holds, all started again
with --resume once they have ended, as its agent does; they are forked from a process that has torch (tests/warm.py).
`torchrun`: under torchrun itself, whose ranks import torch at each start.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardlang.runtime.launch.reports import RankStatus, records
from tests.emit.sources import written
from tests.runtime.apart import begun
from tests.warm import ROOT, Warm

RANKS, STEPS, STALL = 2, 12, 3.0
PROGRAM = f"""
dim batch = 16, d = 256, e = 256

model Net() {{
  param up: [d, e] = normal(0.05)
  param down: [e, d] = normal(0.05)

  forward(x: [batch, d]) -> [batch, d] {{
    return relu(x @ up) @ down
  }}
}}

strategy replicas {{
  mesh dp = {RANKS}
  split batch over dp
  zero 1 over dp
}}

train {{
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 6)
  loss = mse_loss(model(x), label)
  optimizer = adamw(lr = 1e-2)
  checkpoint = every(2, keep = 2, to = "kept")
  epochs = {STEPS // 6}
}}
"""
_LIMIT = 120
OPTIONS = ("--device", "cpu", "--metrics", "m.jsonl", "--save-weights", "w.safetensors", "--log-dir", "logs")
WAYS = ("forked", "apart", "torchrun")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "1")


@dataclass(frozen=True)
class Hit:
    """The rank that the signal went to, the step that it was in, whether a checkpoint was being written, and when."""

    rank: int
    step: int
    saving: bool
    at: float


@dataclass(frozen=True)
class Outcome:
    """Of one trial. hit: None where the run was over before. wrong: what is not as it should be; "": nothing.
    seconds: from the signal to the end of all ranks, before any starts again."""

    way: str
    hit: Hit | None
    wrong: str = ""
    seconds: float = 0.0


def write(folder: Path, program: str = PROGRAM) -> None:
    written(folder, program, RANKS, "replicas", "net.shard")


def numbers(folder: Path) -> tuple[str, list[tuple[int, float]]]:
    """The sum of the final weights, and the loss of each step, in the order of the file."""
    figures = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
    sum_ = hashlib.sha256((folder / "w.safetensors").read_bytes()).hexdigest()
    return sum_, [(each["step"], each["loss"]) for each in figures]


def undisturbed(folder: Path, program: str = PROGRAM) -> tuple[str, list[tuple[int, float]]]:
    """The numbers of a run that nothing happens to."""
    folder.mkdir(parents=True)
    write(folder, program)
    code, said = done(folder)
    assert code == 0, said
    return numbers(folder)


def done(folder: Path, *more: str) -> tuple[int, str]:
    """The exit code of a run that nothing happens to, and what it said of its end."""
    run = _started("forked", folder, *more)
    _, said = _ended(run)
    return run[0].returncode, said


def trial(way: str, draw: random.Random, folder: Path, expected: object, saving: bool, stop: bool) -> Outcome:
    """One run and one signal: SIGSTOP, or SIGKILL. saving: while a checkpoint is written."""
    folder.mkdir(parents=True)
    write(folder)
    hit = None
    run = _started(way, folder, *(("--stall-timeout", str(STALL)) if stop else ()))
    try:
        hit = _hit(run, draw, folder, saving, stop)
        end, said = _ended(run)
    except subprocess.TimeoutExpired:
        return Outcome(way, hit, f"it did not end in {_LIMIT} s")
    finally:
        for process in run:
            process.kill()
    if hit is None:
        return Outcome(way, None)
    seconds = end - hit.at
    if stop:
        return Outcome(way, hit, _wrong_stop(hit, said, seconds), seconds)
    named = re.search(
        rf"error\[SH501\]: rank {hit.rank} (was killed by SIGKILL|ended without a word)\n  on \S+, ", said
    )
    if named is None or said.count("error[") != 1:
        return Outcome(way, hit, f"the end was told by: {said}", seconds)
    if way == "apart":
        run = _started(way, folder, "--resume")
        _, said = _ended(run)
    if any(process.returncode for process in run):
        return Outcome(way, hit, f"it did not go on: {said}", seconds)
    return Outcome(way, hit, "" if numbers(folder) == expected else "other numbers", seconds)


def _wrong_stop(hit: Hit, said: str, seconds: float) -> str:
    told = rf"error\[SH515\]: rank {hit.rank} has made no progress for \d+ s: its process is stopped \(SIGSTOP\)\n"
    told += r"  on \S+, (in step \d+|before the first step).*\n  its last collective: .+ over .+ for .+\n"
    if re.search(told, said) is None or said.count("error[") != 1:
        return f"the end was told by: {said}"
    return "" if seconds <= STALL + 5.0 else f"it took {seconds:.1f} s to end"


def _started(way: str, folder: Path, *more: str) -> Sequence[subprocess.Popen[str]]:
    words = ["main.py", *OPTIONS, *more]
    if way == "apart":
        return begun(RANKS, *words, folder=folder)
    command = [sys.executable, *words, "--max-restarts", "1"] if way == "forked" else [
        sys.executable, *TORCHRUN, *words, "--resume",
    ]  # fmt: skip
    given = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return [Warm(command, cwd=folder, text=True, stdout=pipe, stderr=pipe, env=given, start_new_session=True)]


def _ended(run: Sequence[subprocess.Popen[str]]) -> tuple[float, str]:
    """When all have ended, and what they said of it."""
    said = [process.communicate(timeout=_LIMIT)[1] for process in run]
    return time.monotonic(), "".join(said)


def _hit(
    run: Sequence[subprocess.Popen[str]], draw: random.Random, folder: Path, saving: bool, stop: bool
) -> Hit | None:
    """Waits for the moment, and sends the signal; None where the run is over before."""
    rank, step, delay = draw.randrange(RANKS), draw.randrange(STEPS), draw.random() * 0.004

    def come(seen: dict[int, RankStatus]) -> bool:
        if rank not in seen or seen[rank].step < step or (stop and not seen[rank].calls):
            return False
        return not saving or _draft(folder)

    while all(process.poll() is None for process in run):
        if come(records_of(folder)):
            time.sleep(delay)
            seen = records_of(folder).get(rank)
            if seen is None or seen.phase == "ended":
                return None
            try:
                os.kill(seen.pid, signal.SIGSTOP if stop else signal.SIGKILL)
            except ProcessLookupError:
                return None
            at, saved = time.monotonic(), _draft(folder)
            left = records_of(folder).get(rank)
            over = left is None or (left.pid == seen.pid and left.phase == "ended")
            return None if over else Hit(rank, seen.step, saved, at)
        time.sleep(0.0005)
    return None


def records_of(folder: Path) -> dict[int, RankStatus]:
    """All records there, of whatever start."""
    found: dict[int, RankStatus] = {}
    for rank in range(RANKS):
        found.update(records(folder / "logs", [rank], None))
    return found


def _draft(folder: Path) -> bool:
    return any((folder / "kept").glob(".step-*.part"))


def trials(
    count: int, stops: int, saves: int, folder: Path, seed: int = 0, torchrun: int = 0,
    tell: Callable[[str], None] = print,
) -> list[Outcome]:  # fmt: skip
    """Outcomes of `count` kills, at least `saves` of them during a save and half of them as torchrun starts ranks (the
    first `torchrun` by torchrun itself), and of `stops` stops. A run that was over before its signal does not count."""
    draw, expected = random.Random(seed), undisturbed(folder / "undisturbed")
    found: list[Outcome] = []
    for stop, wanted in ((False, count), (True, stops)):
        done: list[Outcome] = []
        while len(done) < wanted:
            # Where only as many are left as are to be during a save, those alone count.
            missing = 0 if stop else saves - sum(each.hit is not None and each.hit.saving for each in done)
            due = missing >= wanted - len(done)
            way = WAYS[len(done) % 2]
            if way == "apart" and not stop and len(done) < 2 * torchrun:
                way = "torchrun"
            place = folder / f"{'stop' if stop else 'kill'}-{len(done)}"
            outcome = trial(way, draw, place, expected, missing > 0, stop)
            counts = outcome.hit is not None and (outcome.hit.saving or not due)
            if outcome.wrong:
                tell(f"{place}: {outcome}")
            else:
                shutil.rmtree(place)
            if counts or outcome.wrong:
                done.append(outcome)
        found += done
    return found
