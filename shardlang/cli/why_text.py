"""The answer of `shardc why` -> lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardlang.cli.plan_view.columns import Line, filled, table
from shardlang.cli.plan_view.screen import collective, over, sent
from shardlang.display import duration, one_line, size

Found = Mapping[str, Any]
_BY = {
    "shard": "decided by {rules}",
    "pin": "decided by {rules}",
    "split": "decided by {rules}",
    "reader": "stored as it is read; what reads it is decided by {rules}",
    "mesh": "decided by {rules}",
    "zero": "decided by {rules}",
    "recompute": "decided by {rules}",
    "none": "no rule of the strategy speaks of it",
    "alone": "one rank has all of it",
}
_PROPAGATED = "no rule speaks of it: of the layouts that its neighbours leave, this one sends fewest bytes"
_STORED = "stored as it is read, and no rule speaks of what reads it"


def lines(found: Found, room: int) -> Iterator[Line]:
    """The whole answer; the alternatives are the end of it."""
    strategy = f", strategy {found['strategy']}" if found["strategy"] else ""
    what = f": {found['layout']}" if "layout" in found else ""
    title = f"{found['name']}{what} in {found['program']} on {found['ranks']:,} ranks{strategy}"
    yield from (Line(text, "title") for text in filled(one_line(title).split(" "), room, "", "  "))
    if found["kind"] == "layer":
        yield from _layer(found, room)
        return
    for text in (*_is(found), _decided(found["decided"]), *_made(found)):
        yield from (Line(line) for line in filled(one_line(text).split(" "), room, "", "  "))
    yield from _alternatives(found, room)


def _is(found: Found) -> Iterator[str]:
    if "is" in found:
        yield f"now {'; '.join(found['is'])}"
    elif found["values"] != [found["name"]]:
        yield f"that is {', '.join(found['values'])}"


def _decided(decided: Found) -> str:
    rules = " and ".join(f"`{rule['text']}` ({rule['source']})" for rule in decided["rules"])
    if decided["by"] == "reader" and not rules:
        return _STORED
    return _BY.get(decided["by"], _PROPAGATED).format(rules=rules)


def _made(found: Found) -> Iterator[str]:
    if "made" not in found:
        return
    does = {"result": "made", "param": "declared", "state": "declared", "data": "read"}[found["kind_of"]]
    yield f"{does} by `{found['made']['text']}` ({found['made']['source']})"
    for read in found["read"]:
        as_it_is = "as it is" if read["layout"] == found["layout"].partition(", ")[0] else f"as {read['layout']}"
        yield f"read by {', '.join(read['by'])} {as_it_is}"
    for each in found["sent"]:
        what = each["forward"] or f"backward {each['backward']}"
        to = f" to {each['to']}" if each["to"] else ""
        both = f"{sent(each['forward_bytes'])} forward, {sent(each['backward_bytes'])} backward"
        yield f"sent in a step: {collective(what)}{to}{over(each['axes'])}, {both}"


def _layer(found: Found, room: int) -> Iterator[Line]:
    rows = [
        (each["name"], each["layout"], each["decided"]["by"], sent(each["forward_bytes"] + each["backward_bytes"]))
        for each in found["values"]
    ]
    names = ("value", "layout", "decided by", "sent")
    head, *rest = table([names, *([*map(one_line, row)] for row in rows)], room, (3,), 1)
    yield Line(head, "title")
    yield from map(Line, rest)


def _alternatives(found: Found, room: int) -> Iterator[Line]:
    """A row for each, with the difference that it makes; below those that are refused."""
    now, others = found["now"], found["alternatives"]
    yield Line("")
    seconds = f", a step takes {duration(now['step_s'])} (predicted)" if now["step_s"] is not None else ""
    send = f"ranks, one at each coordinate of {found['stages_over']}, send" if found["stages_over"] else "a rank sends"
    holds = f"{'one' if found['stages_over'] else 'it'} holds at most {size(now['peak_bytes'])}"
    text = f"now {send} {size(now['sent_bytes'])} in a step, and {holds}{seconds}"
    yield from (Line(line) for line in filled(one_line(text).split(" "), room, "", "  "))
    if not others:
        return
    timed = now["step_s"] is not None
    yield Line("instead, all else being laid out by the same rules:", "title")
    rows = [("", "sends", "holds", "takes" if timed else "")]
    for each in others:
        if not each["refused"]:
            takes = more(each["step_s"] - now["step_s"], duration) if timed else ""
            sends, holds = (more(each[key] - now[key], size) for key in ("sent_bytes", "peak_bytes"))
            rows.append((f"  {one_line(each['written'])}", sends, holds, takes))
    if len(rows) > 1:
        yield from map(Line, table(rows, room, (1, 2, 3)))
    for each in others:
        for why in each["refused"][:1]:
            place = f" ({why['source']})" if why["source"] and not why["source"].startswith("the alternative") else ""
            text = f"{each['written']}: not legal, {why['message']}{place}; {'; '.join(why['help'])}"
            yield from (Line(line) for line in filled(one_line(text).split(" "), room, "  ", "    "))


def more(count: float, text: Any) -> str:
    """`+1.05 MB`, `-3 B`, `the same`."""
    return "the same" if count == 0 else f"{'+' if count > 0 else '-'}{text(abs(count))}"
