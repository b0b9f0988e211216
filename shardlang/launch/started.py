"""Which rank of a run this process is, read from what its launcher left in the environment.

torchrun says it by RANK and WORLD_SIZE. srun says it by SLURM_PROCID and SLURM_NTASKS, from which
the same variables are set here. A task of another launcher that says neither is refused: each task
would take itself for the whole run, and all would write over the same files."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import MutableMapping
from dataclasses import dataclass

from shardlang.errors import RunError

# Other launchers: its name, the number of a task, how many there are.
_OTHERS = (
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("a launcher of MPI", "PMI_RANK", "PMI_SIZE"),
    ("a launcher with PMIx", "PMIX_RANK", "PMIX_SIZE"),
)
_HELP = "torchrun --nproc-per-node N main.py, or srun -n N python main.py"
# torch's own default, and where the ports of Slurm's jobs begin.
_PORT, _JOB_PORTS = 29500, range(20000, 29500)


@dataclass(frozen=True)
class Started:
    """This process among the ranks of a run: its number, how many there are, its number and how
    many there are on its host."""

    rank: int
    size: int
    local: int
    local_size: int


def started() -> Started | None:
    """Which rank this process is; None where it was started plainly, and is to start all ranks.

    Sets torchrun's variables where srun started it. RunError where they do not fit together."""
    env = os.environ
    if "RANK" not in env and "WORLD_SIZE" not in env:
        task = _slurm_task(env)
        if task is None:
            _refuse_others(env)
            return None
        env.update(task)
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    local, local_size = _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", size)
    for name, value, end in (("RANK", rank, size), ("LOCAL_RANK", local, local_size)):
        if value >= end:
            raise RunError("SH503", f"{name} is {value} of {end} ranks, which are numbered from 0", help=_HELP)
    if size > 1:
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not env.get(name):
                raise RunError("SH503", f"{name} is not set: ranks would not find each other", help=_HELP)
        if not 0 < _number("MASTER_PORT") < 1 << 16:
            raise RunError("SH503", f"MASTER_PORT is {env['MASTER_PORT']}, which is no port", help="1 to 65535")
    return Started(rank, size, local, local_size)


def started_before() -> int:
    """How often torchrun or Slurm has started this job before, after failures."""
    return sum(int(os.environ.get(name) or 0) for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def require_alone(command: str) -> None:
    """RunError where this process is one of several tasks, and `command` would start all ranks in
    each."""
    env = os.environ
    task = _slurm_task(env)
    if task is not None:
        raise _among(command, "srun", task["RANK"], task["WORLD_SIZE"])
    if "RANK" in env and env.get("WORLD_SIZE", "1") != "1":
        raise _among(command, "torchrun", env["RANK"], env["WORLD_SIZE"])
    _refuse_others(env, command)


def _among(command: str, launcher: str, task: str, size: str) -> RunError:
    return RunError(
        "SH503", f"{command} starts all ranks itself, and {launcher} has started it as task {task} of {size}",
        help="shardc launch writes a job for several hosts; shardc compile writes a program for srun and torchrun",
    )  # fmt: skip


def _refuse_others(env: MutableMapping[str, str], command: str = "") -> None:
    for launcher, number, count in _OTHERS:
        if env.get(count, "1") != "1":
            if command:
                raise _among(command, launcher, env.get(number, "?"), env[count])
            raise RunError(
                "SH503", f"{launcher} has started {env[count]} tasks, and RANK and WORLD_SIZE are not set", help=_HELP
            )


def _number(name: str, default: int | None = None) -> int:
    """A whole number of the environment."""
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or re.fullmatch(r"[0-9]{1,9}", text) is None:
        said = "is not set" if text is None else f"is `{text}`, which is no number of ranks"
        raise RunError("SH503", f"{name} {said}", help=_HELP)
    return int(text)


def _slurm_task(env: MutableMapping[str, str]) -> dict[str, str] | None:
    """torchrun's variables for a task that srun started; None in anything else. The script of a job
    has a task's variables too, but no step."""
    if "SLURM_PROCID" not in env or ("SLURM_JOB_ID" in env and "SLURM_STEP_ID" not in env):
        return None
    size = env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS", "")
    if size in ("", "1"):
        return None
    found = {"RANK": env["SLURM_PROCID"], "WORLD_SIZE": size, "LOCAL_RANK": env.get("SLURM_LOCALID", "")}
    if not found["LOCAL_RANK"]:
        raise RunError("SH503", f"srun has started {size} tasks, and SLURM_LOCALID is not set", help=_HELP)
    here = _tasks_here(env)
    if here is not None:
        found["LOCAL_WORLD_SIZE"] = str(here)
    job, step = env.get("SLURM_JOB_ID", ""), env.get("SLURM_STEP_ID", "")
    port = _PORT
    if job.isdecimal() and step.isdecimal():
        port = _JOB_PORTS[(int(job) * 16 + int(step)) % len(_JOB_PORTS)]
    found["MASTER_PORT"] = env.get("MASTER_PORT") or str(port)
    found["MASTER_ADDR"] = env.get("MASTER_ADDR") or _first_host(env)
    return found


def _tasks_here(env: MutableMapping[str, str]) -> int | None:
    """How many tasks of a step this host has, by a list such as `3,1(x2)`; None where none is
    given."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", env.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * int(times or 1)
    node = env.get("SLURM_NODEID", "0")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


def _first_host(env: MutableMapping[str, str]) -> str:
    """The address of the host of task 0: the first of a list such as `n[1-4,9],gpu7`."""
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
    found = re.match(r"([^\[,]+)(?:\[(\d+))?", nodes)
    if env.get("SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", "1")) == "1" or found is None:
        return "127.0.0.1"
    host = found[1] + (found[2] or "")
    try:
        socket.getaddrinfo(host, None)
        return host
    except OSError:
        address = _address(host)
    if address is None:
        raise RunError(
            "SH503", f"`{host}`, the first host of the job, has no address here",
            help="MASTER_ADDR=ADDRESS srun .., the address of that host",
        )  # fmt: skip
    return address


def _address(node: str) -> str | None:
    """The address of a node as Slurm knows it; None where it does not tell."""
    try:
        shown = subprocess.run(
            ["scontrol", "--oneliner", "show", "node", node], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r"\bNodeAddr=(\S+)", shown)
    return found[1] if found else None
