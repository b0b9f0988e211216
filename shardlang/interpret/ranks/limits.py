"""Whether simulated ranks fit into this machine's memory, before any is made."""

from __future__ import annotations

from pathlib import Path

import torch

from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.memory import memory
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.step.parameters import held_bytes, local_bytes
from shardlang.step.saved_activations import made_bytes
from shardlang.terminal.display import size

# A value, the gradient at it, and one more while both are compared or made: nothing is given up
# before backward ends.
_ACTIVATIONS = 3
# What one device, with which they are compared, has of a parameter: it before and after, its
# gradient, and state.
_DEVICE = 5
# What glibc takes for what is asked for, where tensors of all sizes come and go (1.25 to 1.6 were
# measured), and a process without ranks: 300 MB with torch 2.13 for the CPU alone, 670 MB with 2.14
# and its libraries for CUDA.
_ALLOCATED, _PROCESS, _WITH_CUDA = 1.6, 400_000_000, 700_000_000


def needed(plan: Plan) -> int:
    """Bytes that one step of all ranks takes, about."""
    held = sum(_held(plan, param) for param in plan.params.values())
    values = plan.ranks * _ACTIVATIONS * max(made_bytes(plan), memory(plan).activations)
    return int(_ALLOCATED * (held + values)) + (_WITH_CUDA if torch.backends.cuda.is_built() else _PROCESS)


def _held(plan: Plan, param: ParamPlan) -> int:
    """The memory for a parameter on all ranks: what is stored before and after the step, or the
    gradient before its reduction in place of the one after; the optimizer's state; the reduced
    gradient, which ranks of one sum share. The gradient of a table is made whole here, and under
    ZeRO too what operators read. One device beside them has as much, once."""
    itself, _, gradient, optimizer = held_bytes(plan, param)
    mesh = plan.meshes[param.stored.mesh]
    whole = _DEVICE * plan.graph.values[param.value].type.bytes
    if not gradient:
        return whole + mesh.size * itself
    read = local_bytes(plan, param)
    reduced = read // mesh.degree(param.reduce_axes)
    return whole + mesh.size * (max(2 * itself, itself + read * (2 if param.zero else 1)) + optimizer + reduced)


def available() -> int:
    """Bytes that are free without swapping, as Linux reports, within the limit of a container."""
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
    fact = f"{plan.ranks} simulated ranks need about {size(wanted)} of memory, and {size(there)} are free"
    help = "simulate fewer ranks, or smaller sizes: `--set batch=32`, say; no strategy depends on them"
    sink.report("SH511", fact, None, help=help)
    return False
