"""A Slurm cluster of two nodes on this machine: its own munged, one controller, two node daemons.

`cluster(folder)` yields the environment in which Slurm's clients talk to it. Nothing of it outlives
the block."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "sinfo")
# Within this many seconds both nodes are idle.
_START = 240.0

_CONF = """\
ClusterName=two
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
InactiveLimit=0
KillWait=5
MinJobAge=300
MessageTimeout=30
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=8 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """The programs of Slurm that this machine lacks."""
    return [name for name in NEEDED if shutil.which(name, path=_path()) is None]


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _free_ports(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    try:
        for one in taken:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in taken]
    finally:
        for one in taken:
            one.close()


@contextmanager
def cluster(folder: Path) -> Iterator[Mapping[str, str]]:
    """Two nodes, `n1` and `n2`, that run jobs; the environment for Slurm's clients."""
    host = socket.gethostname().split(".")[0]
    munge = folder / "munge"
    munge.mkdir(parents=True)
    (folder / "state").mkdir()
    key = munge / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    (folder / "slurm.conf").write_text(_CONF.format(host=host, folder=folder, ports=_free_ports(3)))
    environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(folder / "slurm.conf")}
    daemons: list[subprocess.Popen[bytes]] = []

    def start(*command: str) -> None:
        log = (folder / f"daemon-{len(daemons)}.log").open("wb")
        daemons.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder))
        log.close()

    try:
        start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}/socket",
            f"--pid-file={munge}/pid", f"--seed-file={munge}/seed", f"--log-file={munge}/log",
        )  # fmt: skip
        until = time.monotonic() + _START
        while not (munge / "socket").exists():
            _require(time.monotonic() < until, "munged has no socket", folder)
            time.sleep(0.05)
        start("slurmctld", "-D", "-c")
        start("slurmd", "-D", "-N", "n1")
        start("slurmd", "-D", "-N", "n2")
        while _idle(environment) < 2:
            _require(time.monotonic() < until, "the nodes are not idle", folder)
            time.sleep(0.2)
        yield environment
    finally:
        subprocess.run(["scancel", "--state=RUNNING", "--full"], env=environment, capture_output=True, timeout=60)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in reversed(daemons):
            try:
                daemon.wait(timeout=15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _idle(environment: Mapping[str, str]) -> int:
    shown = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format=%t"], env=environment, capture_output=True, text=True, timeout=60
    )
    return shown.stdout.split().count("idle")


def _require(held: bool, what: str, folder: Path) -> None:
    if not held:
        logs = "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in folder.glob("*.log"))
        raise RuntimeError(f"Slurm did not start: {what}\n{logs}")
