"""A job of Slurm: a script for sbatch, and the one that srun starts on each host.

The job saves and ends two minutes before its time is over, and is queued again; it is queued again
after a failure too, as often as is asked for. Then it goes on from its newest checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardlang.disk.overwrite_guard import JOB_MARK
from shardlang.errors import RunError
from shardlang.launch.job import Job, quoted
from shardlang.launch.torchrun import START, start_script

SCRIPT = "job.sbatch"
_OPTION = re.compile(r"[a-z][a-z-]*(=[^\n\r]+)?")
# What the script itself says of the job.
_OWN = ("job-name", "nodes", "ntasks", "ntasks-per-node", "requeue", "no-requeue", "signal", "output", "open-mode")

# Further ones that say how many CPUs, and how many GPUs, it has.
_CPUS, _GPUS = ("cpus", "exclusive", "mincpus"), ("gpus", "gres")

_BODY = """\
srun --kill-on-bad-exit=1 bash {start} &
step=$!
trap 'scancel --signal=USR1 "$SLURM_JOB_ID"' USR1
code=0
while kill -0 "$step" 2>/dev/null; do
  code=0
  wait "$step" || code=$?
done
# A job that somebody has cancelled stays so.
case $(scontrol --oneliner show job "$SLURM_JOB_ID") in *" JobState=RUNNING "*) ;; *) exit "$code" ;; esac
if [ "$code" = 75 ]; then
  echo "saved; the job is queued again"
  exec scontrol requeue "$SLURM_JOB_ID"
fi
if [ "$code" != 0 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
  echo "failed with code $code; the job is queued again"
  exec scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""
_ADDRESS = 'scontrol --oneliner show node "{node}" | sed "s/.* NodeAddr=\\\\([^ ]*\\\\).*/\\\\1/"'


def files(job: Job, options: Sequence[str]) -> dict[str, str]:
    """The two scripts, by name. options: further ones for sbatch, as in `time=24:00:00`. RunError
    where one is none, or says again what the job says."""
    names = 'scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1'
    first = f"$({_ADDRESS.format(node=f'$({names})')})"
    here = f"$({_ADDRESS.format(node='$SLURMD_NODENAME')})"
    usage = [f"srun runs it on each host of the job; {SCRIPT} starts srun."]
    # Slurm itself queues the job again; torchrun would not know of the time that is left.
    port = str(job.port) if job.port is not None else "$((20000 + SLURM_JOB_ID % 9500))"
    shell = {"number": '"$SLURM_NODEID"', "first": first, "here": here, "port": port}
    start = start_script(job, usage, 0, **shell)
    return {SCRIPT: _script(job, options), START: start}


def asks(job: Job, options: Sequence[str]) -> str:
    """A sentence: the CPUs and GPUs that the job asks for on each host."""
    cpus = "CPUs as --sbatch says" if _say(options, _CPUS) else f"{job.each} CPU{'s' * (job.each > 1)}"
    if _say(options, _GPUS):
        return f"the job asks for {cpus} and GPUs as --sbatch says on each host"
    if job.gpus:
        return f"the job asks for {cpus} and {job.each} GPU{'s' * (job.each > 1)} on each host"
    more = "" if job.device == "cpu" else "; `--device cuda` asks for one a rank"
    return f"the job asks for {cpus} and no GPU on each host{more}"


def _say(options: Sequence[str], words: tuple[str, ...]) -> bool:
    return any(option.startswith(words) for option in options)


def _script(job: Job, options: Sequence[str]) -> str:
    for option in options:
        if _OPTION.fullmatch(option) is None:
            raise RunError("SH520", f"`{option}` is no option of sbatch", help="--sbatch time=24:00:00")
        if option.split("=")[0] in _OWN:
            raise RunError("SH520", f"`{option.split('=')[0]}` is set by the job itself", help="leave it out")
    log = str(job.program / "logs" / "job.log").replace("%", "%%")
    given = [
        f"job-name={job.name}", f"nodes={job.most}" if job.least == job.most else f"nodes={job.least}-{job.most}",
        "ntasks-per-node=1", "requeue", "open-mode=append", "signal=B:USR1@120", f"output={quoted([log])}",
    ]  # fmt: skip
    given += [f"cpus-per-task={job.each}"] if not _say(options, _CPUS) else []
    given += [f"gpus-per-node={job.each}"] if job.gpus and not _say(options, _GPUS) else []
    lines = ["#!/usr/bin/env bash", *(f"#SBATCH --{option}" for option in (*given, *options))]
    lines += [f"# {JOB_MARK} `{job.name}`: {job.ranks} ranks on {job.nodes} hosts.", "set -u"]
    lines += [_BODY.format(start=quoted([str(job.program / START)]), restarts=job.restarts)]
    return "\n".join(lines)
