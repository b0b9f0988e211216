"""The plan -> what runs once a step: `prepare` and `prepared` before the microbatches, `conclude` after them.

The runtime adds up, over the microbatches, what `prepare` returns and the sums that `forward` does; `prepared` and
`conclude` go on from these totals.
"""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.emit.forward import dict_text, function_text, returned, signature, step_writer
from shardlang.emit.given import concluded, given_forms, read_forms, sum_names, time_sums
from shardlang.emit.needs import steps_for
from shardlang.emit.scope import Scope
from shardlang.emit.sizes import Groups, Sizes
from shardlang.emit.statements import blocks_text
from shardlang.plan.phases import Phases
from shardlang.plan.plan import Plan, Step


def once_texts(scope: Scope, groups: Groups) -> dict[str, str]:
    """Function name -> text, of those that a file needs."""
    plan, names, found = scope.plan, scope.names, scope.phases
    texts: dict[str, str] = {}
    if found.totals:
        totals = dict_text(sum_names(plan, found.known, names))
        head = signature("prepare", scope.arguments([]), ())
        texts["prepare"] = _function(scope, groups, head, found.ahead, totals)
    if len(found.known) > len(time_sums(plan, found.known)):
        given = {names[at]: names[at] for at in given_forms(plan, found)}
        head = signature("prepared", sum_names(plan, found.known, names), ())
        texts["prepared"] = _function(scope, groups, head, found.known, dict_text(given))
    if found.sums:
        head = signature("conclude", sum_names(plan, found.after, names))
        metrics = {name: v for name, v in scope.metrics.items() if concluded(plan, found, v)}
        shown = {name: returned(plan, names, groups, value) for name, value in metrics.items()}
        texts["conclude"] = _function(scope, groups, head, _concluding(plan, found), dict_text(shown))
    return texts


def _concluding(plan: Plan, found: Phases) -> list[Step]:
    """The steps after the last microbatch, with those that make what they read beside the totals: it is the same in
    every microbatch.
    """
    sums = set(time_sums(plan, found.after))
    read = [at for step in found.after if step.kind == "op" or step.index not in sums for at in read_forms(plan, step)]
    needed = steps_for(plan, read) & frozenset(found.body)
    made = steps_for(plan, found.sums)
    return [step for step in plan.steps if step in found.after or step in needed - made]


def _function(scope: Scope, groups: Groups, head: str, steps: Sequence[Step], result: str) -> str:
    sizes = Sizes(scope.plan, groups)
    sizes.taken.names.update(scope.names.values())
    blocks = step_writer(scope.plan, scope.names, sizes).blocks(steps)
    return function_text(head, sizes.definitions, blocks_text(blocks), f"    return {result}")
