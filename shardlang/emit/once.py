"""The plan -> what runs once a step: `prepare` and `prepared` before the microbatches, `conclude` after them.

The runtime adds up, over the microbatches, what `prepare` returns and the sums that `forward` does; `prepared` and
`conclude` go on from these totals.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.emit.forward import data_names, dict_text, function_text, returned, signature, step_writer
from shardlang.emit.given import concluded, given_forms, read_forms, sum_names, time_sums
from shardlang.emit.names import Form
from shardlang.emit.needs import steps_for
from shardlang.emit.sizes import Groups, Sizes
from shardlang.emit.statements import blocks_text
from shardlang.plan.phases import Phases, phases
from shardlang.plan.plan import Plan, Step


def once_texts(plan: Plan, names: dict[Form, str], groups: Groups) -> dict[str, str]:
    """Function name -> text, of those that the plan needs."""
    found = phases(plan)
    texts: dict[str, str] = {}
    if found.totals:
        totals = dict_text(sum_names(plan, found.known, names))
        head = signature("prepare", data_names(plan, names), ())
        texts["prepare"] = _function(plan, names, groups, head, found.ahead, totals)
    if _lines(plan, found.known):
        given = {names[at]: names[at] for at in given_forms(plan, found)}
        head = signature("prepared", sum_names(plan, found.known, names), ())
        texts["prepared"] = _function(plan, names, groups, head, found.known, dict_text(given))
    if found.sums:
        head = signature("conclude", sum_names(plan, found.after, names))
        metrics = {name: v for name, v in plan.graph.metrics.items() if concluded(plan, found, v)}
        shown = {name: returned(plan, names, groups, value) for name, value in metrics.items()}
        texts["conclude"] = _function(plan, names, groups, head, _concluding(plan, found), dict_text(shown))
    return texts


def _lines(plan: Plan, steps: Sequence[Step]) -> bool:
    """Whether anything is left to do once the sums over the microbatches are there."""
    sums = set(time_sums(plan, steps))
    return any(step.kind == "op" or step.index not in sums for step in steps)


def _concluding(plan: Plan, found: Phases) -> list[Step]:
    """The steps after the last microbatch, with those that make what they read beside the totals: it is the same in
    every microbatch.
    """
    sums = set(time_sums(plan, found.after))
    read = [at for step in found.after if step.kind == "op" or step.index not in sums for at in read_forms(plan, step)]
    needed = steps_for(plan, read) & frozenset(found.body)
    made = steps_for(plan, found.sums)
    return [step for step in plan.steps if step in found.after or step in needed - made]


def _function(plan: Plan, names: dict[Form, str], groups: Groups, head: str, steps: Sequence[Step], result: str) -> str:
    sizes = Sizes(plan, groups)
    sizes.taken.names.update(names.values())
    blocks = step_writer(plan, names, sizes).blocks(steps)
    return function_text(head, sizes.definitions, blocks_text(blocks), f"    return {result}")
