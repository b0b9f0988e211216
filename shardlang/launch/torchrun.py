"""torchrun on each host: a script that all hosts run, each with its own number.

The hosts meet at the first one (rendezvous by c10d). That it is the first one is said outright: a
host whose name does not lead to itself would wait two minutes for another, and fail."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.disk.overwrite_guard import JOB_MARK
from shardlang.launch.job import Job, quoted

START = "start.sh"
# torch's own.
PORT = 29500

# The script waits for torchrun, so that it can hand on SIGUSR1. torchrun itself does not: it would
# end by that signal, or take ranks that end with code 75 for failures, and start them again. Where
# another host is done first, srun sends SIGTERM to all of this one, the `sleep` below too.
_WAITS = """\
saved=0
save() {
  saved=1
  ranks=$(pgrep -P "$agent") || return 0
  kill -USR1 $ranks 2>/dev/null || true
  while kill -0 $ranks 2>/dev/null; do sleep 0.2 || true; done
  kill -TERM "$agent" 2>/dev/null || true
}
trap save USR1
trap 'kill -TERM "$agent" 2>/dev/null || true' TERM INT
"""
_ENDS = """\
agent=$!
code=0
while kill -0 "$agent" 2>/dev/null; do
  code=0
  wait "$agent" || code=$?
done
# 75: it was asked to save and end, and may go on from there.
if [ "$saved" = 1 ] && [ "$code" != 0 ]; then exit 75; fi
exit "$code"
"""


def start_script(job: Job, usage: Sequence[str], restarts: int, **shell: str) -> str:
    """The script that starts torchrun on one host and waits for its end.

    usage: how to call it, in lines. shell: text of the shell for `number`, that of this host,
    `first` and `here`, the addresses of the first one and of this one, and `port`."""
    lines = ["#!/usr/bin/env bash", f"# {JOB_MARK} `{job.name}`: {job.ranks} ranks on {job.nodes} hosts."]
    lines += [f"# {line}".rstrip() for line in usage]
    lines += ["set -eu", *(f"{name}={text}" for name, text in shell.items())]
    lines += [f"export {name}={quoted([value])}" for name, value in job.interfaces]
    lacking = "torchrun is not on PATH: activate the environment in which shardlang is installed"
    lines += [f"command -v torchrun > /dev/null || {{ echo '{lacking}' >&2; exit 127; }}"]
    is_host = 'is_host=$([ "$number" = 0 ] && echo 1 || echo 0)'
    lines += [
        _WAITS + "(",
        "  trap '' USR1",
        "  exec torchrun \\",
        f"    --nnodes {job.nodes} --nproc-per-node {job.each} --max-restarts {restarts} \\",
        f'    --rdzv-id {job.name} --rdzv-backend c10d --rdzv-endpoint "$first:$port" \\',
        f'    --rdzv-conf "{is_host}" --local-addr "$here" \\',
        f"    {quoted(job.command)}",
        ") &",
        _ENDS,
    ]
    return "\n".join(lines)


def files(job: Job) -> dict[str, str]:
    """The script of a job whose hosts are known, by its name."""
    usage = ["Run on each host its own line:", ""]
    usage += [f"  {host}:  {line}" for host, line in lines_of(job)]
    hosts = quoted(job.hosts)
    number = '"${1:?the number of this host, from 0}"'
    here = f'$(set -- {hosts}; shift "$number"; echo "$1")'
    shell = {"number": number, "first": quoted(job.hosts[:1]), "here": here, "port": str(job.port or PORT)}
    return {START: start_script(job, usage, job.restarts, **shell)}


def lines_of(job: Job) -> list[tuple[str, str]]:
    """The hosts, each with the line to type there."""
    script = str(job.program / START)
    return [(host, quoted(["bash", script, str(number)])) for number, host in enumerate(job.hosts)]
