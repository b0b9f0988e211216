"""`device h100 { .. }` and `cluster pod { .. }`: settings held against what planning reads of them.

Reports unknown settings and quantities of the wrong kind; using them is left to the planner. A
cluster and its device together are a `Machine`, wherever they were declared."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from shardlang.check.context import Context
from shardlang.check.declared import require_once
from shardlang.check.program import Machine
from shardlang.check.values import UNKNOWN, FileScope, HardwareDecl
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.hints.nearest import offer
from shardlang.syntax import ast


@dataclass(frozen=True, slots=True)
class Quantity:
    """A setting of hardware. kind: what its value must be. example: such a value. doc: what it
    says."""

    kind: str
    example: str
    doc: str


SETTINGS: Mapping[str, Mapping[str, Quantity]] = {
    "device": {
        "memory": Quantity("a size", "80GB", "The memory of the device. A plan that needs more is an error (SH450)."),
        "reserved": Quantity("a size", "1.4GB", "What the device's context and libraries take of its memory."),
        "communicator": Quantity("a size", "544MB", "What NCCL takes of the memory for one group of ranks. Without it "
                                 "the numbers of `hardware.md` count."),
        "compute": Quantity("a compute rate", "989TFLOP/s", "Dense operations a second in 16 bits."),
        "compute_f32": Quantity("a compute rate", "67TFLOP/s",
                                "Operations a second in 32 bits. Without it that is a sixteenth of `compute`."),
        "compute_f8": Quantity("a compute rate", "1979TFLOP/s",
                               "Operations a second in 8 bits. Without it that is `compute`."),
        "bandwidth": Quantity("a data rate", "3350GB/s", "The bandwidth of the device's memory."),
        "link": Quantity("a data rate", "900GB/s",
                         "The rate to the other devices of its node, both directions together."),
        "latency": Quantity("a time", "5us", "The time of one hop over a link."),
        "profile": Quantity("a file's name", '"h100.profile.json"', "A file of measured times beside the program, as "
                            "`shardc calibrate` writes it. What it has comes before what the data sheet says."),
    },
    "cluster": {
        "nodes": Quantity("a count", "64", "How many nodes there are. Without it there are as many as it takes."),
        "devices": Quantity("a count", "8", "How many devices a node has."),
        "device": Quantity("a device", "h100", "The device that it is made of."),
        "network": Quantity("a data rate", "400Gb/s", "The rate of each device to other nodes, in one direction."),
        "latency": Quantity("a time", "5us", "The time of one hop to another node."),
    },
    "level": {
        "ranks": Quantity("a count", "3072", "How many ranks a block of whole nodes has."),
        "oversubscription": Quantity("a ratio of at least 1", "7", "Among the ranks of the block a device has this "
                                     "part of its rate, one in seven, when all send at once."),
    },
}  # fmt: skip


def machines(scope: FileScope, context: Context) -> dict[str, Machine]:
    """All hardware that a file declares or imports, by its name there, checked."""
    found = {name: decl for name, decl in scope.names.items() if isinstance(decl, HardwareDecl)}
    return {name: _machine(decl, context) for name, decl in found.items()}


def _machine(decl: HardwareDecl, context: Context) -> Machine:
    _check(decl, context)
    if decl.node.keyword == "device":
        return Machine(decl.node)
    named = {s.name.text: s.value for s in decl.node.settings}.get("device")
    device = decl.file.find(named.text) if isinstance(named, ast.Name) else None
    if not isinstance(device, HardwareDecl) or device.node.keyword != "device":
        return Machine(None, decl.node)
    _check(device, context)
    return Machine(device.node, decl.node)


def _check(decl: HardwareDecl, context: Context) -> None:
    """Report what is wrong with the settings of one declaration, and with its levels."""
    for node in (decl.node, *decl.node.levels):
        require_once([s.name for s in node.settings], "`{}` is set twice", "keep one of them", context.sink)
        for setting in node.settings:
            _setting(node, setting, decl.file, context.sink)
    if decl.node.levels:
        _levels(decl.node, context.sink)


def _setting(item: ast.Hardware, setting: ast.Setting, scope: FileScope, sink: Sink) -> None:
    name, known = setting.name.text, SETTINGS[item.keyword]
    if name not in known:
        help = offer(name, known, f"it has {', '.join(f'`{n}`' for n in known)}")
        fact = f"a {item.keyword} has no setting `{name}`"
        return sink.report("SH239", fact, setting.name.span, "unknown setting", help=help)
    if isinstance(setting.value, ast.Name) and known[name].kind == "a device" and not scope.find(setting.value.text):
        asked, span = setting.value.text, setting.value.span
        there = [n for n, d in scope.names.items() if isinstance(d, HardwareDecl) and d.node.keyword == "device"]
        help = offer(asked, there, f"declare `device {asked}`, or import it: `use std.clusters: {asked}`")
        return sink.report("SH239", f"there is no device `{asked}` here", span, "unknown device", help=help)
    if not _is(setting.value, known[name].kind, scope):
        fact = f"`{name}` of {item.keyword} `{item.name.text}` must be {known[name].kind}"
        sink.report("SH239", fact, setting.value.span, help=f"write `{name} = {known[name].example}`, say")


def _levels(item: ast.Hardware, sink: Sink) -> None:
    """Each level has whole nodes, and more ranks than the level inside of it."""
    if item.keyword == "device":
        fact = f"device `{item.name.text}` has a level"
        help = "levels are of the network: write them in the `cluster`"
        return sink.report("SH239", fact, item.levels[0].name.span, help=help)
    require_once([level.name for level in item.levels], "level `{}` is declared twice", "rename one of them", sink)
    counted = [(level, _count(level, "ranks")) for level in item.levels]
    for level, ranks in counted:
        devices = _count(item, "devices")
        if ranks is None:
            fact, help = f"level `{level.name.text}` does not say how many ranks it has", "write `ranks = 3072`, say"
            sink.report("SH239", fact, level.name.span, help=help)
        elif devices and ranks % devices:
            fact = f"level `{level.name.text}` has {ranks} ranks, and a node has {devices}: it must have whole nodes"
            less = max(devices, ranks - ranks % devices)
            sink.report("SH239", fact, level.name.span, help=f"`ranks = {less}`, or `ranks = {less + devices}`")
    for (inner, few), (outer, many) in pairwise(counted):
        if few and many and many <= few:
            fact = f"level `{outer.name.text}` has {many} ranks, and `{inner.name.text}` inside of it {few}"
            sink.report("SH239", fact, outer.name.span, help="write the levels innermost first")


def _count(item: ast.Hardware, name: str) -> int | None:
    found = {s.name.text: s.value for s in item.settings}.get(name)
    return int(found.value) if isinstance(found, ast.Number) and not found.unit else None


def _is(value: ast.Expr, wanted: str, scope: FileScope) -> bool:
    """Whether an expression is a quantity of that kind."""
    if isinstance(value, ast.Name):
        found = scope.find(value.text)
        is_device = isinstance(found, HardwareDecl) and found.node.keyword == "device"
        return wanted == "a device" and (is_device or found is UNKNOWN)
    if isinstance(value, ast.String):
        return wanted == "a file's name"
    if not isinstance(value, ast.Number) or value.value <= 0:
        return False
    if not value.unit and wanted.startswith("a ratio"):
        return value.value >= 1
    return wanted == unit_kind(value)


def unit_kind(value: ast.Number) -> str:
    unit = value.unit
    if not unit:
        return "a count" if isinstance(value.value, int) else ""
    if "FLOP" in unit:
        return "a compute rate"
    if unit.endswith("/s"):
        return "a data rate"
    return "a size" if unit.endswith("B") else "a time"
