"""Which rank a process is, by what launchers leave in its environment; and that two tasks of srun are one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardlang.errors import RunError
from shardlang.launch.started import Started, require_alone, started
from tests import warm
from tests.cli.process import SHARDC
from tests.runtime.test_launch import ROOT, write

JOB = {
    "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1", "SLURM_NODEID": "1", "SLURM_NNODES": "2",
    "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NODELIST": "localhost,n[07-9]",
}  # fmt: skip
PLACES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    for name in PLACES:
        monkeypatch.setenv(name, "")  # what a test sets is taken back
        monkeypatch.delenv(name)


def given(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_plainly() -> None:
    assert started() is None
    require_alone("`shardc run`")


def test_by_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4", MASTER_ADDR="a")
    given(monkeypatch, MASTER_PORT="29500")
    assert started() == Started(5, 8, 1, 4)


def test_a_task_of_srun_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **JOB)
    assert started() == Started(3, 4, 0, 1)
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("localhost", str(20000 + 17 * 16 + 2))
    with pytest.raises(RunError, match="srun has started it as task 3 of 4"):
        require_alone("`shardc run`")


def test_an_address_that_is_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **JOB, MASTER_ADDR="10.0.0.9", MASTER_PORT="1234")
    started()
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("10.0.0.9", "1234")


def test_the_script_of_a_job_and_a_step_of_one_task_are_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, **JOB)
    monkeypatch.delenv("SLURM_STEP_ID")
    assert started() is None
    given(monkeypatch, SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="1")
    assert started() is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "two", "WORLD_SIZE": "2"}, "RANK is `two`, which is no number of ranks"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is `-1`, which is no number of ranks"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 of 2 ranks, which are numbered from 0"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "99999"}, "is 99999, which is no port"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "srun has started 2 tasks, and SLURM_LOCALID is not set"),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, "mpirun has started 2 tasks, and RANK and"),
        ({"PMI_RANK": "0", "PMI_SIZE": "8"}, "a launcher of MPI has started 8 tasks"),
        ({**JOB, "SLURM_STEP_NODELIST": "nowhere.invalid,b"}, "`nowhere.invalid`, the first host of the job, has no"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], said: str
) -> None:
    given(monkeypatch, **values)
    with pytest.raises(RunError) as refused:
        started()
    assert refused.value.code == "SH503" and said in str(refused.value) and refused.value.help


@pytest.mark.slow
def test_two_tasks_of_srun_are_one_run_and_shardc_run_is_refused_in_them(tmp_path: Path) -> None:
    path = write(tmp_path, ranks=2)
    tasks = []
    for rank in range(2):
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2",
            "SLURM_LOCALID": str(rank), "MASTER_PORT": "29473",
        }  # fmt: skip
        how = {"cwd": tmp_path, "env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        tasks.append(warm.Warm([sys.executable, str(path), "--device", "cpu"], **how))
    said = [task.communicate() for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert "step" in said[0][0] and said[1][0] == ""
    program = ROOT / "examples" / "quickstart.shard"
    refused = warm.run([*SHARDC, "run", str(program), "--ranks", "2"], env=environment)
    assert refused.returncode == 2 and "srun has started it as task 1 of 2" in refused.stderr, refused
