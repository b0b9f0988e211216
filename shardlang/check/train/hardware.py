"""`device h100 { .. }` and `cluster pod { .. }`: settings held against what planning reads of them.

Reports unknown settings and quantities of the wrong kind; using them is the planner's."""

from __future__ import annotations

from collections.abc import Mapping

from shardlang.check.context import Context
from shardlang.check.declared import require_once
from shardlang.check.values import UNKNOWN, FileScope, HardwareDecl
from shardlang.diagnostics.nearest import offer
from shardlang.syntax import ast

# setting -> the kind of its quantity, with an example of one.
SETTINGS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "device": {
        "memory": ("a size", "80GB"),
        "compute": ("a compute rate", "989TFLOP/s"),
        "bandwidth": ("a data rate", "3350GB/s"),
        "link": ("a data rate", "900GB/s"),
        "latency": ("a time", "5us"),
    },
    "cluster": {
        "nodes": ("a count", "64"),
        "devices": ("a count", "8"),
        "device": ("a device", "h100"),
        "network": ("a data rate", "400Gb/s"),
        "latency": ("a time", "5us"),
    },
}


def check_hardware(file: ast.File, scope: FileScope, context: Context) -> None:
    """Check all hardware that a file declares."""
    for item in file.items:
        if isinstance(item, ast.Hardware):
            names = [setting.name for setting in item.settings]
            require_once(names, "`{}` is set twice", "keep one of them", context.sink)
            for setting in item.settings:
                _setting(item, setting, scope, context)


def _setting(item: ast.Hardware, setting: ast.Setting, scope: FileScope, context: Context) -> None:
    name, known = setting.name.text, SETTINGS[item.keyword]
    if name not in known:
        help = offer(name, known, f"it has {', '.join(f'`{n}`' for n in known)}")
        fact = f"a {item.keyword} has no setting `{name}`"
        return context.sink.report("SH239", fact, setting.name.span, "unknown setting", help=help)
    wanted, example = known[name]
    if _kind(setting.value, scope) != wanted:
        fact = f"`{name}` of {item.keyword} `{item.name.text}` must be {wanted}"
        context.sink.report("SH239", fact, setting.value.span, help=f"write `{name} = {example}`, say")


def _kind(value: ast.Expr, scope: FileScope) -> str:
    """The kind of quantity of an expression; "" where it is none."""
    if isinstance(value, ast.Name):
        found = scope.find(value.text)
        is_device = isinstance(found, HardwareDecl) and found.node.keyword == "device"
        return "a device" if is_device or found is UNKNOWN else ""
    if not isinstance(value, ast.Number) or value.value <= 0:
        return ""
    unit = value.unit
    if not unit:
        return "a count" if isinstance(value.value, int) else ""
    if "FLOP" in unit:
        return "a compute rate"
    if unit.endswith("/s"):
        return "a data rate"
    return "a size" if unit.endswith("B") else "a time"
