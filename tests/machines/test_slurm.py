"""A real Slurm, of two nodes on this machine: a job of `shardc launch` completes, is queued again in the middle of its
run, saves and ends when its time is nearly over; bare `srun` starts ranks."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from safetensors import safe_open

from tests import waits
from tests.launch.programs import NET, ROOT
from tests.machines import slurm

PROGRAM = NET.replace("batches = 10", "batches = 100").replace("epochs = 2", "epochs = 5")
STEPS = 500
pytestmark = pytest.mark.skipif(bool(slurm.missing()), reason=f"not installed: {', '.join(slurm.missing())}")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as environment:
        path = f"{Path(sys.executable).parent}:{environment['PATH']}"
        yield {**environment, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def launched(folder: Path, env: Mapping[str, str], *options: str) -> Path:
    """The folder of a job of four ranks on the two nodes."""
    folder.mkdir()
    (folder / "net.shard").write_text(PROGRAM)
    command = ["shardc", "launch", "net.shard", "--ranks", "4", "--nodes", "2", "--to", "slurm", "-o", "job", *options]
    subprocess.run([*command, "--device", "cpu"], cwd=folder, env=env, check=True, capture_output=True)
    return folder


def submitted(folder: Path, env: Mapping[str, str]) -> str:
    command = ["sbatch", "--parsable", "job/job.sbatch"]
    done = subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def told(env: Mapping[str, str], job: str) -> dict[str, str]:
    """What Slurm knows of a job, by name."""
    command = ["scontrol", "--oneliner", "show", "job", job]
    done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    return dict(part.split("=", 1) for part in done.stdout.split() if "=" in part)


def until(env: Mapping[str, str], job: str, folder: Path, *states: str) -> dict[str, str]:
    """What Slurm knows of a job once it is in one of these states."""
    while (found := told(env, job))["JobState"] not in states:
        time.sleep(0.2)
    return found


def log(folder: Path) -> str:
    path = folder / "job" / "logs" / "job.log"
    return path.read_text() if path.exists() else ""


def saved(folder: Path) -> dict[str, str]:
    """The sha256 of each block of the last checkpoint."""
    found = {}
    for path in sorted((folder / "checkpoints" / f"step-{STEPS}").glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in file.keys():  # noqa: SIM118
                found[f"{path.name}:{name}"] = hashlib.sha256(file.get_tensor(name).tobytes()).hexdigest()
    assert found
    return found


@pytest.mark.slow
def test_a_job_that_is_queued_again_ends_as_one_that_was_not(tmp_path: Path, env: Mapping[str, str]) -> None:
    whole = launched(tmp_path / "whole", env)
    job = submitted(whole, env)
    assert until(env, job, whole, "COMPLETED", "FAILED")["JobState"] == "COMPLETED", log(whole)
    assert f"step {STEPS}/{STEPS}" in log(whole)

    broken = launched(tmp_path / "broken", env)
    job = submitted(broken, env)
    waits.until(lambda: list(broken.glob("checkpoints/step-*")))
    # As Slurm does two minutes before the job's time is over.
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], env=env, check=True)
    waits.until(lambda: told(env, job)["Restarts"] == "1" and "goes on after step" in log(broken))
    assert "saved; the job is queued again" in log(broken)
    time.sleep(random.Random(os.getpid()).random())
    subprocess.run(["scontrol", "requeue", job], env=env, check=True)
    found = until(env, job, broken, "COMPLETED", "FAILED")
    assert (found["JobState"], found["Restarts"]) == ("COMPLETED", "2"), log(broken)
    assert saved(broken) == saved(whole)


@pytest.mark.slow
def test_a_cancelled_job_is_not_queued_again(tmp_path: Path, env: Mapping[str, str]) -> None:
    folder = launched(tmp_path / "cancelled", env)
    job = submitted(folder, env)
    until(env, job, folder, "RUNNING")
    subprocess.run(["scancel", job], env=env, check=True)
    found = until(env, job, folder, "CANCELLED")
    time.sleep(2)
    assert (told(env, job)["JobState"], found["Restarts"]) == ("CANCELLED", "0")


@pytest.mark.slow
def test_bare_srun_starts_ranks(tmp_path: Path, env: Mapping[str, str]) -> None:
    folder = launched(tmp_path / "bare", env)
    command = ["srun", "-N2", "-n4", "python", "job/main.py", "--base", ".", "--device", "cpu"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count(f"step {STEPS}/{STEPS}") == 1, done
    assert saved(folder)
