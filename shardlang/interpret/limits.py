"""Whether simulated ranks fit into this machine's memory, before any is made."""

from __future__ import annotations

from pathlib import Path

from shardlang.diagnostics.diagnostic import Sink
from shardlang.plan.kept import made_bytes
from shardlang.plan.memory import memory
from shardlang.plan.plan import Plan

# What a simulated rank holds, in copies: a parameter as stored, as read, and after the step; a gradient before and
# after its reduction; a value, the gradient at it, and one more while both are compared or made.
_PARAMETERS, _GRADIENTS, _ACTIVATIONS = 3, 2, 3


def needed(plan: Plan) -> int:
    """Bytes that one step of all ranks takes, about."""
    each = memory(plan)
    held = _PARAMETERS * each.parameters + _GRADIENTS * each.gradients + each.optimizer
    # Nothing is given up before the end, whether backward reads it or not.
    return plan.ranks * (held + _ACTIVATIONS * max(made_bytes(plan), each.activations))


def available() -> int:
    """Bytes that can be had without swapping, as Linux tells it, within the limit of a container."""
    found = [1 << 62]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text().strip()
        found.extend([int(limit) - int(used)] if limit.isdigit() else [])
    except OSError:
        pass  # not in a container, or in one of an older kind
    return min(found)


def check_size(plan: Plan, sink: Sink) -> bool:
    """Reports SH511 where the ranks would not fit."""
    wanted, there = needed(plan), available()
    if wanted <= there:
        return True
    sink.report(
        "SH511",
        f"{plan.ranks} simulated ranks need about {_size(wanted)} of memory, and {_size(there)} are free",
        None,
        help="simulate fewer ranks, or smaller sizes: `--set batch=32`, say; no strategy depends on them",
    )
    return False


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
