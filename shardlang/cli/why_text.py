"""The answer of `shardc why` -> lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardlang.cli.plan_view.columns import PlanLine, headed, paragraph, table
from shardlang.cli.plan_view.screen import collective, over, sent
from shardlang.terminal.display import duration, one_line, percent, size

Found = Mapping[str, Any]
_RULES = ("shard", "pin", "split", "mesh", "zero", "recompute", "stages", "microbatches", "schedule", "layer")
_BY = {
    **dict.fromkeys(_RULES, "decided by {rules}"),
    "reader": "stored as it is read; what reads it is decided by {rules}",
    "none": "no rule of the strategy speaks of it",
    "alone": "one rank has all of it",
}
_PROPAGATED = "no rule speaks of it: of the layouts that its neighbours leave, this one sends fewest bytes"
_STORED = "stored as it is read, and no rule speaks of what reads it"


def lines(found: Found, room: int) -> Iterator[PlanLine]:
    """The whole answer; the alternatives are the end of it."""
    strategy = f", strategy {found['strategy']}" if found["strategy"] else ""
    what = f": {found['layout']}" if "layout" in found else ""
    title = f"{found['name']}{what} in {found['program']} on {found['ranks']:,} ranks{strategy}"
    yield from paragraph(title, room, "title")
    for text in (*_is(found), _decided(found["decided"]), *_made(found), *_axes(found)):
        yield from paragraph(text, room)
    yield from _layer(found, room) if found["kind"] == "layer" else ()
    yield from _stages(found, room)
    yield from _alternatives(found, room)


def _is(found: Found) -> Iterator[str]:
    if "is" in found:
        yield f"now {'; '.join(found['is'])}"
    elif found["kind"] == "value" and found["values"] != [found["name"]]:
        yield f"that is {', '.join(found['values'])}"
    takes = found.get("takes")
    if takes is not None and takes["compute_s"] + takes["exposed_s"]:
        at = f" at coordinate {takes['coordinate']} of {found['stages_over']}" if found["stages_over"] else ""
        share = percent((takes["compute_s"] + takes["exposed_s"]) / found["now"]["step_s"])
        waits = f" and waits {duration(takes['exposed_s'])} for what is sent" if takes["exposed_s"] else ""
        yield f"with its like it computes {duration(takes['compute_s'])}{waits}, {share} of a step{at}"


def _axes(found: Found) -> Iterator[str]:
    """The rules that use each axis, and the bytes that are sent over it."""
    for row in found.get("axes", ()):
        rules = " and ".join(f"`{rule['text'].partition(' {')[0]}`" for rule in row["rules"])
        over = ", ".join(row["axes"])
        name = f"{over} = {row['size']}" if len(row["axes"]) == 1 else f"({over}), {row['size']} ranks"
        moves = ", ".join(f"{each['what']} {size(each['bytes'])}" for each in row["sent"])
        waits = f", waited for {duration(row['exposed_s'])}" if row["exposed_s"] else ""
        used = f" is used by {rules}" if rules else ""
        yield f"{name}{used}{';' * bool(used)} sent over it in a step: {moves or 'nothing'}{waits}"


def _stages(found: Found, room: int) -> Iterator[PlanLine]:
    rows = found.get("stages")
    if not rows:
        return
    timed = rows[0]["microbatch_s"] is not None
    names = ("stage", f"on {found['stages_over']}", "layers", "work", "holds", "a microbatch" if timed else "")
    cells = [
        (str(row["stage"]), str(row["coordinate"]), one_line(", ".join(row["layers"])), percent(row["share"]),
         size(row["peak_bytes"]), duration(row["microbatch_s"]) if timed else "")
        for row in rows
    ]  # fmt: skip
    yield from headed([names, *cells], room, (3, 4, 5), 2)


def _decided(decided: Found) -> str:
    rules = " and ".join(f"`{rule['text']}` ({rule['source']})" for rule in decided["rules"])
    if decided["by"] == "reader" and not rules:
        return _STORED
    return _BY.get(decided["by"], _PROPAGATED).format(rules=rules)


def _made(found: Found) -> Iterator[str]:
    if "made" in found:
        does = {"result": "made", "param": "declared", "state": "declared", "data": "read"}[found["kind_of"]]
        yield f"{does} by `{found['made']['text']}` ({found['made']['source']})"
    for read in found.get("read", ()):
        as_it_is = "as it is" if read["layout"] == found["layout"].partition(", ")[0] else f"as {read['layout']}"
        yield f"read by {', '.join(read['by'])} {as_it_is}"
    for each in found.get("sent", ()):
        what = each["forward"] or f"backward {each['backward']}"
        to = f" to {each['to']}" if each["to"] else ""
        both = f"{sent(each['forward_bytes'])} forward, {sent(each['backward_bytes'])} backward"
        yield f"sent in a step: {collective(what)}{to}{over(each['axes'])}, {both}{_seconds(each)}"


def _seconds(each: Found) -> str:
    """`, 12.3 ms, all of it waited for`."""
    if not each["seconds"]:
        return ""
    hidden = each["seconds"] - each["exposed_s"]
    waited = "all" if hidden <= 1e-9 * each["seconds"] else duration(each["exposed_s"]) if each["exposed_s"] else "none"
    return f", {duration(each['seconds'])}, {waited} of it waited for"


def _layer(found: Found, room: int) -> Iterator[PlanLine]:
    rows = [
        (each["name"], each["layout"], each["decided"]["by"], sent(each["forward_bytes"] + each["backward_bytes"]))
        for each in found["values"]
    ]
    names = ("value", "layout", "decided by", "sent")
    return headed([names, *([*map(one_line, row)] for row in rows)], room, (3,), 1)


def _alternatives(found: Found, room: int) -> Iterator[PlanLine]:
    """A row for each, with the difference that it makes; below those that are refused."""
    now, others = found["now"], found["alternatives"]
    yield PlanLine("")
    seconds = f", a step takes {duration(now['step_s'])} (predicted)" if now["step_s"] is not None else ""
    send = f"ranks, one at each coordinate of {found['stages_over']}, send" if found["stages_over"] else "a rank sends"
    holds = f"{'one' if found['stages_over'] else 'it'} holds at most {size(now['peak_bytes'])}"
    text = f"now {send} {size(now['sent_bytes'])} in a step, and {holds}{seconds}"
    yield from paragraph(text, room)
    if not others:
        return
    possible, timed = [each for each in others if not each["refused"]], now["step_s"] is not None
    for text in _verdict(now, possible):
        yield from paragraph(text, room)
    yield PlanLine("instead, all else being laid out by the same rules:", "title")
    rows = [("", "sends", "holds", "takes" if timed else "")]
    for each in possible:
        takes = more(each["step_s"] - now["step_s"], duration) if timed else ""
        sends, holds = (more(each[key] - now[key], size) for key in ("sent_bytes", "peak_bytes"))
        rows.append((f"  {one_line(each['told'])}", sends, holds, takes))
    if len(rows) > 1:
        yield from map(PlanLine, table(rows, room, (1, 2, 3)))
    for each in others:
        for why in each["refused"][:1]:
            place = f" ({why['source']})" if why["source"] and not why["source"].startswith("the alternative") else ""
            said = "does not fit" if why["code"] == "SH450" else "not legal"
            text = f"{each['told']}: {said}, {why['message']}{place}; {'; '.join(why['help'])}"
            yield from paragraph(text, room, "", "  ", "    ")


def _verdict(now: Found, others: Sequence[Found]) -> Iterator[str]:
    """Whether any of the alternatives that can be is better."""
    if not others:
        return
    many = f"the {len(others)} alternatives" if len(others) > 1 else "the one alternative"
    if now["step_s"] is None:
        yield "no time is predicted, as the program names no hardware with all speeds: `--cluster NAME` does"
        least = min(others, key=lambda each: each["sent_bytes"])
        saves = now["sent_bytes"] - least["sent_bytes"]
        fact = f"`{least['told']}` sends {size(saves)} less" if saves > 0 else "none sends less"
        yield f"of {many}, {fact}"
        return
    best = min(others, key=lambda each: each["step_s"])
    faster = now["step_s"] - best["step_s"]
    if faster <= 0:
        yield f"of {many}, none is predicted to be faster"
    else:
        holds = more(best["peak_bytes"] - now["peak_bytes"], size)
        yield (
            f"of {many}, `{best['told']}` is predicted to be fastest: {duration(faster)} less "
            f"({percent(faster / now['step_s'])}), memory {holds}"
        )


def more(count: float, text: Any) -> str:
    """`+1.05 MB`, `-3 B`, `the same`."""
    return "the same" if count == 0 else f"{'+' if count > 0 else '-'}{text(abs(count))}"
