"""The hardware that a file describes, and what of a device's memory a plan takes.

The first `cluster` of the file counts, else the first `device` that it declares or imports. Speeds
are used by `shardlang/cost/`."""

from __future__ import annotations

import json

from shardlang.check.program import CheckedProgram
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.reserved.footprint import Footprint, beside_tensors, footprint
from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.graph import Kind
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.sources.files import Files
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast

# From this part of a device's memory on, torch's allocator decides whether a rank's tensors fit.
# Its expandable segments were 1 to 3 % larger than they in the plans of `examples/tuned`; others
# may be larger by any part.
CLOSE = 0.9


@dataclass(frozen=True, slots=True)
class Device:
    """The device of a rank: its name, its memory in bytes, where that is said; how many operations
    of 16 bits it computes a second (0: not said); reserved: bytes that its context and libraries
    take (0: not said); expandable: whether torch's allocator has expandable segments, by the
    profile; group: bytes that NCCL takes for a group of ranks (0: not said); node: the devices of
    a node (0: not said)."""

    name: str
    memory: int
    span: Span
    compute: int = 0
    reserved: int = 0
    expandable: bool = False
    group: int = 0
    node: int = 0


def device(program: CheckedProgram) -> Device | None:
    """The device that a program is planned for; None if the file names none, or no memory."""
    chosen = program.machine.device if program.machine is not None else None
    if chosen is None:
        return None
    said = {s.name.text: (s.value.value, s.span) for s in chosen.settings if isinstance(s.value, ast.Number)}
    if "memory" not in said:
        return None
    memory, span = said["memory"]
    compute, reserved, group = (int(said.get(name, (0,))[0]) for name in ("compute", "reserved", "communicator"))
    expandable = reserved > 0 and _expandable(chosen)
    return Device(
        chosen.name.text, int(memory), span, compute=compute, reserved=reserved, expandable=expandable, group=group,
        node=node_devices(program),
    )  # fmt: skip


def node_devices(program: CheckedProgram) -> int:
    """The devices of a node of the cluster; 0 where none is described."""
    cluster = program.machine.cluster if program.machine is not None else None
    settings = cluster.settings if cluster is not None else ()
    said = (s.value.value for s in settings if s.name.text == "devices" and isinstance(s.value, ast.Number))
    return int(next(said, 0))


def _expandable(chosen: ast.Hardware) -> bool:
    """The setting of the device's profile. One that cannot be read is told where its times are
    needed (SH242)."""
    named = next((s.value for s in chosen.settings if s.name.text == "profile"), None)
    source = Files().load(named.span.source.name, named.value, True) if isinstance(named, ast.String) else None
    try:
        found = json.loads(source.text) if isinstance(source, Source) else {}
    except (ValueError, RecursionError):
        return True
    return not isinstance(found, dict) or found.get("expandable_segments", True) is True


@remembered
def taken(plan: Plan) -> Footprint | None:
    """The memory of a device that the fullest rank takes, where the file says what contexts and
    libraries take of it."""
    has = device(plan.program)
    if has is None or not has.reserved:
        return None
    held = _held(plan, has)
    found = _close(plan) or [_footprint(plan, has, held.index(max(held)))]
    return max(found, key=lambda each: each.device)


@remembered
def _close(plan: Plan) -> list[Footprint]:
    """The memory of a device as torch's allocator has it, of the coordinates for which that may
    decide: those whose tensors nearly fill it, and of the fullest if they are too many, or have
    segments that do not grow."""
    has = device(plan.program)
    if has is None or not has.reserved:
        return []
    held, enough = _held(plan, has), CLOSE * has.memory
    most = held.index(max(held)) if not has.expandable or max(held) > enough else -1
    close = (at for at, size in enumerate(held) if at == most or enough < size <= has.memory)
    return [_footprint(plan, has, at) for at in close]


def _footprint(plan: Plan, has: Device, at: int) -> Footprint:
    return footprint(plan, has.memory, has.reserved, has.expandable, has.group, has.node, at)


def _held(plan: Plan, has: Device) -> list[int]:
    """The bytes of tensors at the peak and of what is beside them, of each coordinate."""
    beside = beside_tensors(plan, has.reserved, has.group, has.node) if has.reserved else [0] * len(step_peaks(plan))
    return [peak.bytes + more for peak, more in zip(step_peaks(plan), beside, strict=True)]


def fits(plan: Plan, memory: int) -> bool:
    """Whether every rank has room in so many bytes of a device."""
    has = device(plan.program)
    return max(_held(plan, has) if has is not None else needed(plan)) <= memory and max(needed(plan)) <= memory


@remembered
def needed(plan: Plan) -> tuple[int, ...]:
    """The bytes of a device that a rank needs, by its coordinate along the axis of the stages: what
    it holds at its peak; where the file says what contexts and libraries take, with these and NCCL,
    and as torch's allocator has it where that decides."""
    has = device(plan.program)
    if has is None:
        return tuple(peak.bytes for peak in step_peaks(plan))
    found = dict(enumerate(_held(plan, has))) | {each.coordinate: each.device for each in _close(plan)}
    return tuple(found.values())


def is_table(plan: Plan, param: ParamPlan) -> bool:
    readers = [op for op in plan.graph.ops if param.value in op.operands]
    tables = all(REGISTRY[op.operator].table is not None for op in readers)
    return plan.graph.values[param.value].kind is Kind.PARAM and tables
