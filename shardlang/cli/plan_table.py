"""The report of a plan as tables: operators with their tensors and collectives, parameters, memory and bytes.

On a terminal they fit its width; elsewhere they are plain text, one row a line. What is in the report is left to plan/.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shardlang.cli.rank_view import of_rank
from shardlang.display import one_line

Found = Mapping[str, Any]


def print_plan(found: Found, rank: int | None = None) -> None:
    """Prints a report to the standard output, whole or for one rank."""
    terminal = sys.stdout.isatty()
    console = Console(
        highlight=False, markup=False, emoji=False, soft_wrap=not terminal, width=None if terminal else 10_000
    )
    view = found if rank is None else of_rank(found, rank)
    console.print(_heading(view))
    _print_pipeline(console, view, terminal)
    for make in (_operators, _parameters, _reductions, _totals):
        table = make(view, terminal)
        if table.row_count:
            _print(console, table, terminal)


def _print(console: Console, table: Table, terminal: bool) -> None:
    console.print()
    if terminal:
        console.print(table)
        return
    # Without a terminal: no spaces at the ends of lines, so that the text is easy to compare.
    with console.capture() as captured:
        console.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _table(terminal: bool, *headings: str) -> Table:
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        number = heading.endswith("bytes")
        table.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=not terminal)
    return table


def _add(table: Table, *cells: str, style: str | None = None) -> None:
    table.add_row(*(Text(one_line(cell)) for cell in cells), style=style)


def _heading(found: Found) -> str:
    meshes = "; ".join(f"{mesh['name']} {_sizes(mesh)}" for mesh in found["meshes"])
    strategy = f"strategy {found['strategy']}, " if found["strategy"] else ""
    parts = f", microbatches {found['microbatches']}" if found["microbatches"] > 1 else ""
    text = f"{one_line(found['program'])} on {found['ranks']} ranks: {strategy}{meshes}{parts}"
    if "rank" not in found:
        return text
    places = "; ".join(", ".join(f"{name} = {at}" for name, at in place.items()) for place in found["coordinates"])
    return f"{text}\nrank {found['rank']}: {places or 'alone'}"


def _sizes(mesh: Found) -> str:
    return ", ".join(f"{axis['name']} = {axis['size']}" for axis in mesh["axes"]) or "of one rank"


def _print_pipeline(console: Console, found: Found, terminal: bool) -> None:
    """The stages as a table, and the schedule as a drawing that is broken to the width of a terminal."""
    pipeline = found["pipeline"]
    if pipeline is None:
        return
    _print(console, _stages(found, terminal), terminal)
    idle = f"idle {pipeline['bubble']:.1%} of the time, {pipeline['bubble_by_cost']:.1%} by the stages' costs"
    console.print(f"\nschedule {one_line(pipeline['schedule'])} over {pipeline['axis']}: {idle}")
    for line in drawn(pipeline["drawing"], pipeline["axis"], console.width if terminal else None):
        console.print(line)


def drawn(rows: Sequence[str], axis: str, width: int | None) -> list[str]:
    """The drawing with the coordinates before it, in pieces that fit `width` (None: in one)."""
    heads = [f"{axis} {i}  " for i in range(len(rows))]
    margin = max(len(head) for head in heads)
    cell = next((len(row[:at]) + 1 for row in rows if (at := row.find(" ")) > 0), 4)
    room = max(cell, ((width or 10**9) - margin) // cell * cell)
    longest = max(len(row) for row in rows)
    lines: list[str] = []
    for start in range(0, longest, room):
        lines += [""] if lines else []
        lines += [(h.ljust(margin) + row[start : start + room]).rstrip() for h, row in zip(heads, rows, strict=True)]
    return lines


def _stages(found: Found, terminal: bool) -> Table:
    table = _table(
        terminal, "stage", "on", "layers", "alive", "parameters, bytes", "activations, bytes", "total, bytes",
        "sent, bytes",
    )  # fmt: skip
    axis = found["pipeline"]["axis"]
    for s in found["pipeline"]["stages"]:
        kept = [_bytes(s[f"{key}_bytes"]) for key in ("parameters", "activations", "total")]
        sent = f"{_bytes(s['forward_bytes'])} / {_bytes(s['backward_bytes'])}"
        place = f"{axis} = {s['coordinate']}"
        _add(table, str(s["stage"]), place, ", ".join(shortened(s["layers"])), str(s["alive"]), *kept, sent)
    return table


def shortened(layers: Sequence[str]) -> list[str]:
    """Layers with runs of an array's elements as a range, as rules write it: `blocks[0..4]`."""
    found: list[tuple[str, int, int]] = []
    for layer in layers:
        name, _, index = layer.removesuffix("]").rpartition("[")
        at = int(index) if layer.endswith("]") and index.isdigit() else -1
        if at >= 0 and found and found[-1][0] == name and found[-1][2] == at:
            found[-1] = name, found[-1][1], at + 1
        else:
            found.append((name, at, at + 1) if at >= 0 else (layer, -1, -1))
    return [
        name if start < 0 else f"{name}[{start}]" if stop == start + 1 else f"{name}[{start}..{stop}]"
        for name, start, stop in found
    ]


def _operators(found: Found, terminal: bool) -> Table:
    table = _table(terminal, "where", "operator", "layout", "whole", "local", "bytes")
    for operator in found["operators"]:
        why = f"{operator['operator']}, {operator['chosen']}"
        why += f", stage {operator['stage']}" if operator["stage"] is not None else ""
        why += ", recomputed" if operator["recomputed"] else ""
        why += ", on the host" if operator["place"] == "host" else ""
        copied = operator["copied_bytes"]
        sent = f"{_bytes(copied[0])} / {_bytes(copied[1])}" if copied else ""
        _add(table, operator["source"], operator["text"], why, "", "", sent, style="bold")
        ahead = [c for c in operator["collectives"] if c["phase"] == "before"]
        within = [c for c in operator["collectives"] if c["phase"] == "inside"]
        after = [c for c in operator["collectives"] if c["phase"] == "after"]
        _collectives(table, ahead)
        for operand in operator["local_shapes"]["operands"]:
            _add(table, "", f"  {operand['name']}", operand["layout"], _shape(operand["shape"]), _local(operand), "")
        _collectives(table, within)
        result = operator["local_shapes"]["result"]
        _add(table, "", f"  -> {operator['name']}", result["layout"], _shape(result["shape"]), _local(result), "")
        _collectives(table, after)
    return table


def _collectives(table: Table, collectives: Sequence[Found]) -> None:
    for c in collectives:
        change = "within" if c["phase"] == "inside" else f"{c['from']} -> {c['to']}"
        what = f"  {c['phase']}: {c['kind']} {c['value']} over {_axes(c['axes'])}, {_groups(c)}"
        sent = f"{_bytes(c['forward_bytes'])} / {_bytes(c['backward_bytes'])}"
        _add(table, "", what, change, "", _shape(c["local_shape"]), sent, style="cyan")


def _parameters(found: Found, terminal: bool) -> Table:
    table = _table(terminal, "parameter", "layout", "whole", "local", "local bytes", "zero")
    for p in found["parameters"]:
        kept = "frozen" if p["frozen"] else "" if p["trained"] else "state"
        zero = ", ".join(filter(None, [kept, f"{p['zero']} over {_axes(p['zero_axes'])}" if p["zero"] else ""]))
        zero += f"{', ' if zero else ''}host" if p["place"] == "host" else ""
        zero += f"{', ' if zero else ''}stage {', '.join(map(str, p['stages']))}" if p["stages"] is not None else ""
        _add(table, p["path"], p["layout"], _shape(p["shape"]), _local(p), _bytes(p["local_bytes"]), zero)
    return table


def _reductions(found: Found, terminal: bool) -> Table:
    table = _table(terminal, "gradients reduced once a step", "by", "bytes")
    for reduction in found["gradient_reductions"]:
        by = f"{reduction['kind']} over {_axes(reduction['axes'])}"
        _add(table, ", ".join(reduction["parameters"]), by, _bytes(reduction["bytes"]))
    return table


def _totals(found: Found, terminal: bool) -> Table:
    table = _table(terminal, "per rank", "bytes")
    totals = found["per_rank"]
    for key in ("parameters", "gradients", "optimizer", "activations", "total"):
        _add(table, key, _bytes(totals[f"{key}_bytes"]))
    if totals["host_bytes"]:
        _add(table, "of these on the device", _bytes(totals["device_bytes"]))
        _add(table, "of these on the host", _bytes(totals["host_bytes"]))
    if totals["device_memory_bytes"] is not None:
        _add(table, "a device has", _bytes(totals["device_memory_bytes"]))
    if totals["host_bytes"]:
        _add(table, "copied to the device in a step", _bytes(totals["to_device_bytes"]))
        _add(table, "copied to the host in a step", _bytes(totals["to_host_bytes"]))
    _add(table, "sent in a step, forward", _bytes(totals["forward_bytes"]))
    _add(table, "sent in a step, backward", _bytes(totals["backward_bytes"]))
    return table


def _shape(sizes: Sequence[int]) -> str:
    return f"({', '.join(map(str, sizes))})"


def _local(tensor: Found) -> str:
    if "slices" not in tensor:
        return _shape(tensor["local_shape"])
    ranges = ", ".join(f"{start}:{end}" for start, end in tensor["slices"])
    return f"{_shape(tensor['local_shape'])} [{ranges}]"


def _axes(axes: Sequence[str]) -> str:
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def _groups(collective: Found) -> str:
    if "group" in collective:
        return f"{{{','.join(map(str, collective['group']))}}}"
    if collective["groups"] is None:
        return f"{collective['group_count']} groups of {collective['group_size']}"
    return " ".join(f"{{{','.join(map(str, g))}}}" for g in collective["groups"])


def _bytes(count: int) -> str:
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= 10 * size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:,} B"
