"""The report of a plan -> its first screen: meshes, stages, memory, bytes sent, and the largest."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from shardlang.cli.plan_view.columns import PlanLine, filled, headed, paragraph, table
from shardlang.paths.runs import called, in_runs, patterns
from shardlang.terminal.display import duration, lasting, one_line, percent, rounded_up, size

Found = Mapping[str, Any]
# Lines of a screen, and how many rows of stages, of the drawing and of what is kept it has.
SCREEN, MOST_STAGES, MOST_DRAWN, MOST_KEPT = 40, 4, 4, 5
# Rows of exposed collectives, and the share of a step from which on one is shown.
MOST_WAITS, LEAST_WAIT = 4, 0.005
_TRUST = {
    "measured": "It rests on measurements of this device, beside the data sheet of the network",
    "data sheet": "It rests on data sheets and usual shares of their rates: good to about 20 %",
}


def screen(found: Found, room: int, full: bool = False) -> Iterator[PlanLine]:
    """A summary that fits one screen; with `full` all stages and the whole schedule."""
    first = [*heading(found, room), *_stages(found, room, full), *_predicted(found, room), *_memory(found, room, full)]
    yield from first
    yield from _sent(found, room, len(found["sent"]) + SCREEN if full else SCREEN - len(first))


def heading(found: Found, room: int) -> Iterator[PlanLine]:
    strategy = f", strategy {found['strategy']}" if found["strategy"] else ""
    ranks = f"{found['ranks']:,} rank{'s' * (found['ranks'] != 1)}"
    title = f"{one_line(found['program'])} on {ranks}{strategy}"
    yield from _title(title, room)
    axes = ((mesh["name"], [f"{axis['name']} = {axis['size']}" for axis in mesh["axes"]]) for mesh in found["meshes"])
    meshes = [f"{name} {', '.join(sizes)}" for name, sizes in axes if sizes]
    parts = [f"{found['microbatches']} microbatches"] if found["microbatches"] > 1 else []
    parts += [found["precision"]] if found["precision"] != "f32" else []
    if meshes or parts:
        yield from paragraph("; ".join([*meshes, *parts]), room)
    step = found["predicted"]["step_s"] if "predicted" in found else None
    yield from (PlanLine(text) for text in filled(_PHRASES.split(sizes(found["amounts"], step)), room, "", "  "))
    if "rank" in found:
        places = "; ".join(", ".join(f"{name} = {at}" for name, at in place.items()) for place in found["coordinates"])
        yield from _title(f"rank {found['rank']}: {places or 'alone'}", room)


def sizes(of: Mapping[str, int | None], step: float | None) -> str:
    """`7,241 parameters, 131,072 tokens a step, 10,000 steps in 3.2 days`; step: its seconds."""
    parameters, tokens, steps = of["parameters"] or 0, of["tokens"], of["steps"]
    words = [f"{parameters:,} parameter{'s' * (parameters != 1)}"]
    words += [f"{tokens:,} tokens a step"] if tokens else []
    if steps is not None:
        words.append(f"{steps:,} step{'s' * (steps != 1)}{f' in {lasting(steps * step)}' if step else ''}")
    return ", ".join(words)


_PHRASES = re.compile(r"(?<=,) ")
_WORDS = re.compile(r" (?![kMGT]?B\b)")  # a number and its unit are one


def _title(text: str, room: int) -> Iterator[PlanLine]:
    return (PlanLine(line, "title") for line in filled(_WORDS.split(text), room, "", "  "))


def _stages(found: Found, room: int, full: bool) -> Iterator[PlanLine]:
    """A row for each stage, for neighbours that are alike one; then the order of the schedule."""
    pipeline = found["pipeline"]
    if pipeline is None:
        return
    # Neighbours that keep and send the same have one row.
    alike = groupby(pipeline["stages"], lambda s: (full and s["stage"], *(s[f"{key}_bytes"] for key in _NUMBERS)))
    rows = [_row(list(group)) for _, group in alike]
    if len(rows) > MOST_STAGES and not full:
        left = len(rows) - MOST_STAGES + 1
        rows[MOST_STAGES - 2 : -1] = [("..", "..", f"({left} more, which --full shows)", "", "")]
    names = ("stage", f"on {pipeline['axis']}", "layers", "memory", "sent")
    yield from headed([names, *rows], room, right=(3, 4), wide=2)
    idle = f"{percent(pipeline['bubble'])} idle, {percent(pipeline['bubble_by_cost'])} by the work of the stages"
    yield from _title(f"schedule {one_line(pipeline['schedule'])} over {pipeline['axis']}: {idle}", room)
    yield from map(PlanLine, drawn(pipeline["drawing"], pipeline["axis"], room, full))


_NUMBERS = ("total", "forward", "backward")


def _row(group: Sequence[Found]) -> tuple[str, ...]:
    """A row of the table of stages."""
    first, layers = group[0], one_line(", ".join(in_runs(layer for stage in group for layer in stage["layers"])))
    numbers = (first["total_bytes"], _bytes(first))
    ends = [(min(s[key] for s in group), max(s[key] for s in group)) for key in ("stage", "coordinate")]
    spans = (str(least) if least == most else f"{least}..{most}" for least, most in ends)
    return *spans, layers, *map(size, numbers)


def drawn(rows: Sequence[str], axis: str, room: int, full: bool = True) -> list[str]:
    """The drawing after its coordinates, in pieces that fit; without `full` only the beginning."""
    heads = [f"{axis} {i}  " for i in range(len(rows))]
    margin = max(len(head) for head in heads)
    cell = next((len(first[0]) for row in rows if (first := re.match(r"\S+ +", row))), 4)
    longest = max(len(row) for row in rows)
    piece = max(cell, (room - margin - (0 if full or longest <= room - margin else 4)) // cell * cell)
    lines: list[str] = []
    for start in range(0, longest, piece):
        lines += [""] if lines else []
        more = " ..." if not full and longest > piece else ""
        for head, row in list(zip(heads, rows, strict=True))[: None if full else MOST_DRAWN]:
            lines.append((head.ljust(margin) + row[start : start + piece]).rstrip() + more)
        if not full:
            break
    if not full and len(rows) > MOST_DRAWN:
        lines[-1] = ".."
    return lines


def _predicted(found: Found, room: int) -> Iterator[PlanLine]:
    """The seconds of a step, what they go to, what they rest on; nothing where the file has no
    speeds."""
    step = found.get("predicted")
    if step is None:
        return
    yield PlanLine("")
    tokens = f", {step['tokens_per_s']:,.0f} tokens/s" if step["tokens_per_s"] else ""
    rate = f", MFU {percent(step['mfu'])}"
    causal = f" ({percent(step['mfu_causal'])} without masked pairs)" if step["mfu_causal"] != step["mfu"] else ""
    yield PlanLine(f"predicted: {duration(step['step_s'])} a step{tokens}{rate}{causal}", "title")
    whole = step["step_s"]
    rows = [("compute", step["compute_s"] - step["update_s"]), ("update", step["update_s"])]
    waits = [(f"{collective(each['kind'])}{over(each['axes'])}", each["seconds"]) for each in step["exposed_s"]]
    shown = [each for each in waits[:MOST_WAITS] if each[1] >= LEAST_WAIT * whole]
    rest = waits[len(shown) :]
    rows += [(f"waiting for {what}", seconds) for what, seconds in shown]
    rows += [("waiting for other collectives", sum(seconds for _, seconds in rest))] if rest else []
    rows += [("idle", step["idle_s"])]
    lines = [(what, duration(seconds), percent(seconds / whole)) for what, seconds in rows if seconds > 0]
    yield from (PlanLine(f"  {text}") for text in table(lines, room - 2, right=(1, 2)))
    bubble = [f"Ranks are idle for {percent(step['bubble'])} of the step in the mean."] if found["pipeline"] else []
    # What most of it rests on: a profile, or data sheets.
    measured = any(each["rests_on"] == "measured" for each in step["assumptions"])
    trust = _TRUST["measured" if measured else "data sheet"]
    words = " ".join([*bubble, f"{trust}; which of two strategies is faster is surer."])
    yield from paragraph(words, room, "", "  ")


def _memory(found: Found, room: int, full: bool) -> Iterator[PlanLine]:
    """The memory that a rank needs, beside that of its device."""
    totals = found["per_rank"]
    yield PlanLine("")
    has = totals["device_memory_bytes"]
    device = f" of {totals['device']}'s {size(has)}" if has else ""
    who = _which(found, totals["stages"])
    yield from _title(f"memory of {who} at its peak: {rounded_up(totals['peak_bytes'])}{device}", room)
    yield from _peak(totals["peak"], found["microbatches"], room)
    yield from _allocator(totals["allocator"], room, full)
    words = [f"kept in a step {rounded_up(totals['total_bytes'])}:"]
    kinds = ("parameters", "copies", "gradients", "optimizer", "activations")
    parts = [(key, totals[f"{key}_bytes"]) for key in kinds if key != "copies" or totals["copies_bytes"]]
    gathered = any(p["zero"] == 3 for p in found["parameters"])
    copies = "copies" if gathered else f"copies in {found['precision'].partition('(')[0]}"
    words += [f"{copies if key == 'copies' else key} {rounded_up(count)}" for key, count in parts]
    if totals["host_bytes"]:
        words += [
            f"on the device {rounded_up(totals['device_bytes'])}",
            f"on the host {rounded_up(totals['host_bytes'])}",
        ]
        words += [f"copied in a step to the device {rounded_up(totals['to_device_bytes'])}"]
        words += [f"to the host {rounded_up(totals['to_host_bytes'])}"]
    yield from _listed(words, room)
    rows = [(rounded_up(e["bytes"]), _names(e), _KEPT[e["what"]]) for e in found["largest"]["kept"][:MOST_KEPT]]
    if rows:
        yield PlanLine("the largest, a parameter with its gradient and optimizer state:")
        yield from (PlanLine(f"  {text}") for text in table(rows, room - 2, right=(0,), wide=1))


def _peak(peak: Found, microbatches: int, room: int) -> Iterator[PlanLine]:
    """When the most is there, where, and what: parts of two hundredths or more."""
    of = f" of microbatch {peak['microbatch']}" if microbatches > 1 and peak["microbatch"] is not None else ""
    at = f", {one_line(called(peak['path']))} ({one_line(peak['file'])}:{peak['line']})" if peak["path"] else ""
    parts, whole = peak["parts"], sum(part["bytes"] for part in peak["parts"])
    large = [f"{part['what']} {rounded_up(part['bytes'])}" for part in parts if 50 * part["bytes"] >= whole]
    yield from _listed([f"{peak['doing']}{of}{at}:", *large], room)
    if peak["lacks"]:
        yield from _listed([f"not counted: {peak['lacks']}"], room)


def _allocator(found: Found | None, room: int, full: bool) -> Iterator[PlanLine]:
    """Bytes of the allocator for tensors, of NCCL, and of all; with `full` the tensors that are
    most."""
    if found is None:
        return
    gives = ", which gives unused segments back to fit" if found["emptied"] else ""
    words = [f"allocated {rounded_up(found['allocated_bytes'])}"] if full else []
    words.append(f"torch reserves {rounded_up(found['reserved_bytes'])}{gives}")
    if found["groups"]:
        words.append(
            f"NCCL {rounded_up(found['groups_bytes'])} for {found['groups']} group{'s' * (found['groups'] > 1)}"
        )
    yield from _listed([f"{words[0]},", *words[1:], f"of the device {rounded_up(found['device_bytes'])}"], room)
    if not full:
        return
    most = [f"{each['count']} x {rounded_up(each['bytes'])} {each['what']}" for each in found["largest"][:MOST_KEPT]]
    yield from _listed(["the most together then:", *most], room)


def _listed(words: Sequence[str], room: int) -> Iterator[PlanLine]:
    """The words, with commas from the second on. Lines break between them."""
    joined = [word.replace(" ", "\0") + "," * (0 < at < len(words) - 1) for at, word in enumerate(words)]
    return (PlanLine(line.replace("\0", " ")) for line in filled(joined, room, "  ", "  "))


def _names(entry: Found) -> str:
    return one_line(", ".join(patterns(dict.fromkeys(called(path) for path in entry["paths"]))))


_KEPT = {"parameter": "", "activation": "kept for backward", "data": "data"}
_SENT = {"values": "", "gradients": ", gradient", "parameters": ""}


def _which(found: Found, stages: Sequence[int] | None, does: str = "") -> str:
    """The rank that numbers are of: with stages, one of those."""
    if "rank" in found:
        return f"rank {found['rank']}"
    if stages is None:
        return "a rank"
    return f"a rank of stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}{does}"


def _sent(found: Found, room: int, lines: int) -> Iterator[PlanLine]:
    """The bytes that a rank sends in a step, by collective and axes, and the largest. One row for
    the smallest where the lines are few, and for all that are less than a thousandth of the sum."""
    totals = found["per_rank"]
    sender = max(found["pipeline"]["coordinates"], key=_bytes) if found["pipeline"] is not None else {"stages": None}
    who = _which(found, sender["stages"], ", which sends most")
    yield PlanLine("")
    yield from _title(f"sent in a step by {who}: {size(_bytes(totals))}", room)
    if not found["sent"]:
        return
    large = [
        (size(_bytes(e)),
         f"{collective(e['forward'] or e['backward'])}{over(e['axes'])}", f"{_names(e)}{_SENT[e['what']]}")
        for e in found["largest"]["sent"]
    ]  # fmt: skip
    largest = table(large, room - 2, right=(0,), wide=2)
    kinds, rest, most = found["sent"], [], max(3, lines - 5 - len(largest))
    if lines <= SCREEN:
        most = min(most, sum(1000 * _bytes(entry) >= _bytes(totals) for entry in kinds) + 1)
    if len(kinds) > most:  # one row for the smallest
        kinds, others = kinds[: most - 1], kinds[most - 1 :]
        sums = {key: sum(entry[key] for entry in others) for key in ("forward_bytes", "backward_bytes")}
        rest = [{"collective": f"{len(others)} others", "axes": (), "what": "", **sums}]
    rows = [("", "", "forward", "backward")]
    for entry in (*kinds, *rest, {"collective": "all", "axes": (), "what": "", **totals}):
        what = f"{collective(entry['collective'])}{over(entry['axes'])}", entry["what"]
        rows.append((*what, sent(entry["forward_bytes"]), sent(entry["backward_bytes"])))
    yield from (PlanLine(f"  {text}") for text in table(rows, room - 2, right=(2, 3)))
    yield PlanLine("the largest, forward and backward:")
    yield from (PlanLine(f"  {text}") for text in largest)


def _bytes(entry: Found) -> int:
    """Bytes that are sent, forward and backward together."""
    return int(entry["forward_bytes"] + entry["backward_bytes"])


def sent(count: int) -> str:
    return size(count) if count else "-"


def collective(name: str) -> str:
    """The name as the field writes it: `all-gather`."""
    return name.replace("_", "-")


def over(axes: Sequence[str]) -> str:
    """` over mp`; nothing where a collective has no axes."""
    return f" over {axes[0] if len(axes) == 1 else '(' + ', '.join(axes) + ')'}" if axes else ""
