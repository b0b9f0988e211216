"""The predicted step of a report -> its lines on the first screen: seconds, what they go to, what
they rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardlang.cli.plan_view.columns import PlanLine, filled, table
from shardlang.terminal.display import duration, percent

# Rows of exposed collectives, and the share of a step from which on one is shown.
MOST, LEAST = 4, 0.005
_TRUST = {
    "measured": "It rests on measurements of this device, beside the data sheet of the network",
    "data sheet": "It rests on data sheets and usual shares of their rates: good to about 20 %",
}


def predicted(found: Mapping[str, Any], room: int) -> Iterator[PlanLine]:
    """Nothing where the file has no speeds."""
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
    waits = [(_collective(each), each["seconds"]) for each in step["exposed_s"]]
    shown = [each for each in waits[:MOST] if each[1] >= LEAST * whole]
    rest = waits[len(shown) :]
    rows += [(f"waiting for {what}", seconds) for what, seconds in shown]
    rows += [("waiting for other collectives", sum(seconds for _, seconds in rest))] if rest else []
    rows += [("idle", step["idle_s"])]
    lines = [(what, duration(seconds), percent(seconds / whole)) for what, seconds in rows if seconds > 0]
    yield from (PlanLine(f"  {text}") for text in table(lines, room - 2, right=(1, 2)))
    bubble = [f"Ranks are idle for {percent(step['bubble'])} of the step in the mean."] if found["pipeline"] else []
    words = " ".join([*bubble, f"{_TRUST[_rests(step)]}; which of two strategies is faster is surer."])
    yield from (PlanLine(text) for text in filled(words.split(" "), room, "  ", "  "))


def _collective(each: Mapping[str, Any]) -> str:
    over = ", ".join(each["axes"])
    return f"{each['kind'].replace('_', '-')} over {over if len(each['axes']) == 1 else f'({over})'}"


def _rests(step: Mapping[str, Any]) -> str:
    """The kind of most of what it rests on: a profile, or data sheets."""
    return "measured" if any(each["rests_on"] == "measured" for each in step["assumptions"]) else "data sheet"
