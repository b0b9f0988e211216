"""The hardware that a file describes, and whether a plan fits it: a device's memory against what a
rank keeps there.

The first `cluster` of the file counts, else the first `device` that it declares or imports. Speeds
are used by `shardlang/cost/`."""

from __future__ import annotations

import json
from functools import partial

from shardlang.check.program import Program
from shardlang.diagnostics.diagnostic import Sink
from shardlang.display import size
from shardlang.files import Files
from shardlang.graph.graph import Kind
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.bytes.memory import held_bytes, memory
from shardlang.plan.bytes.peak.report import lacks, moment, parts
from shardlang.plan.bytes.peak.step import step_peaks
from shardlang.plan.bytes.reserved.footprint import Footprint, footprint
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.records import dataclass, remembered
from shardlang.source import Source, Span
from shardlang.syntax import ast

# So that too much never reads as enough.
rounded_up = partial(size, up=True)


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


def device(program: Program) -> Device | None:
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
    return Device(chosen.name.text, int(memory), span, compute, reserved, expandable, group, _node(program))


def _node(program: Program) -> int:
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
    return footprint(plan, has.memory, has.reserved, has.expandable, has.group, has.node)


def check_memory(plan: Plan, sink: Sink) -> None:
    """SH450 if a rank holds more on its device than that has at any time of a step: names the
    largest parameter."""
    has = device(plan.program)
    if has is None:
        return
    peak = max(step_peaks(plan), key=lambda each: each.bytes)
    took = taken(plan)
    if peak.bytes <= has.memory if took is None else took.fits:
        return
    kept = memory(plan)
    largest = max(
        (p for p in plan.params.values() if p.value not in plan.memory_of), key=lambda p: sum(held_bytes(plan, p)),
        default=None,
    )  # fmt: skip
    more = f", besides {lacking}" if (lacking := lacks(plan)) else ""
    most = f"a rank holds {rounded_up(peak.bytes)} on its device at its peak{more}"
    pieces = f", for which torch takes {rounded_up(took.reserved)}" if took is not None else ""
    left = f", of which {rounded_up(has.reserved)} are reserved" if has.reserved else ""
    if took is not None and took.nccl:
        left += f" and NCCL takes {rounded_up(took.nccl)} for {took.groups} group{'s' * (took.groups > 1)} of ranks"
    message = f"{most}{pieces}, and `{has.name}` has {rounded_up(has.memory)}{left}"
    if largest is None or sum(held_bytes(plan, largest)) < kept.activations:
        sink.report(
            "SH450", message, has.span, f"in {moment(plan, peak)}: {parts(peak)}",
            help="a smaller batch, `microbatches 4`, or `at LAYER: recompute` (or `place saved on host`) keeps fewer",
        )  # fmt: skip
        return
    value = plan.graph.values[largest.value]
    table = is_table(plan, largest)
    offers = [f"keep it in host memory: `at {value.path}: place on host`"]
    if not table:
        offers.insert(0, "shard it over the ranks: `zero 3 over AXIS`, or `split DIM over AXIS`")
    sink.report(
        "SH450", f"{message}; `{value.path}` takes most", value.span,
        f"{_parts(plan, largest)} on each rank", labels=[(has.span, "the device's memory")], help=tuple(offers),
    )  # fmt: skip


def is_table(plan: Plan, param: ParamPlan) -> bool:
    readers = [op for op in plan.graph.ops if param.value in op.operands]
    tables = all(REGISTRY[op.operator].table is not None for op in readers)
    return plan.graph.values[param.value].kind is Kind.PARAM and tables


def _parts(plan: Plan, param: ParamPlan) -> str:
    """`500 GB, with gradient and optimizer state 1.50 TB`."""
    held = held_bytes(plan, param)
    if not held.gradient and not held.optimizer:
        return rounded_up(held.itself + held.copy)
    return f"{rounded_up(held.itself)}, with gradient and optimizer state {rounded_up(sum(held))}"
