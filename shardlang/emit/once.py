"""The plan -> what runs once a step: `before_microbatch` and `before_step` ahead of the first
`forward`, `conclude` after the last one, `late` on the host when the figures of the step are there.

The runtime adds up, over the microbatches, what `before_microbatch` returns and the sums that
`forward` does; `before_step` and `conclude` go on from these totals."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang.emit.forward import dict_text, function_text, returned, signature
from shardlang.emit.scope import FileContents
from shardlang.emit.statements import StatementWriter, blocks_text
from shardlang.emit.step_inputs import sum_names
from shardlang.emit.text.citations import place
from shardlang.emit.text.lines import Stmt, Titled
from shardlang.emit.text.names import RESERVED, TakenNames, identifier, number_text
from shardlang.emit.text.sizes import Groups, LocalSizes
from shardlang.graph.graph import Graph, Kind
from shardlang.ops.code import Code, around
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.site import OpSite
from shardlang.plan.fusions import fusions
from shardlang.plan.plan import Step
from shardlang.sources.source import Source
from shardlang.step.phases import Phases


def once_texts(scope: FileContents, groups: Groups) -> dict[str, Code]:
    """Function name -> text, of those that a file needs."""
    plan, names, found = scope.plan, scope.names, scope.phases
    texts: dict[str, Code] = {}
    for name in once_names(found):
        if name == "before_microbatch":
            head, steps = signature(name, scope.arguments([]), ()), found.ahead
            made = sum_names(plan, found.totals, names)
        elif name == "before_step":
            head, steps = signature(name, sum_names(plan, found.totals, names), ()), found.known
            made = {names[at]: names[at] for at in found.step_inputs}
        else:
            read = [*sum_names(plan, found.sums, names), *(names[at] for at in found.handed)]
            head, steps = signature(name, read), found.after
            last = {metric: value for metric, value in scope.metrics.items() if value in found.last}
            made = {metric: returned(plan, names, groups, value) for metric, value in last.items()}
        texts[name] = _function(scope, groups, head, steps, dict_text(made))
    return texts


def once_names(found: Phases) -> list[str]:
    """The functions of a file that run once a step. The sums of `before_microbatch` go to `forward`
    unchanged, if that is all that it is given."""
    further = {at for _, at in found.step_inputs} - {*found.totals}
    there = {"before_microbatch": found.totals, "before_step": further, "conclude": found.sums}
    return [name for name, needed in there.items() if needed]


def late_text(late: Graph, of: Source) -> Code:
    """`def late(lr, ratio_1): ...`: from single numbers of a step to the metrics that wait for
    them."""
    taken, names, blocks = TakenNames(set(RESERVED)), dict[int, str](), list[Titled]()
    for value in late.values:
        wanted = value.path.removeprefix("train.").removeprefix("metric:") if value.kind is Kind.RESULT else value.name
        constant = value.kind is Kind.CONSTANT
        names[value.id] = number_text(value.constant or 0) if constant else taken.claim(identifier(wanted))
    for op in late.ops:
        types = [[late.values[value].type for value in ids] for ids in (op.operands, op.results)]
        shapes, factors = [((),) * len(each) for each in types], len(op.rule.factors)
        site = OpSite(
            tuple([names[value] for value in op.operands]), shapes[0], shapes[1], operand_types=tuple(types[0]),
            result_types=tuple(types[1]),
            attrs=op.attrs, rule=op.rule, axes=((),) * factors, groups=("",) * factors, offsets=(None,) * factors,
            training=True, rows="", batch=-1, path=op.path, call=op.call,
            numbers=tuple([late.values[value].constant for value in op.operands]),
        )  # fmt: skip
        made = around(f"{names[op.results[0]]} = ", REGISTRY[op.operator].emit(site))
        blocks.append(Titled(place(op, late, of).title, [Stmt(made)]))
    given = ", ".join(names[value] for value in late.data)
    shown = {name: names[value] for name, value in late.metrics.items()}
    return function_text(f"def late({given}):", [], blocks_text(blocks), f"    return {dict_text(shown)}")


def _function(scope: FileContents, groups: Groups, head: str, steps: Sequence[Step], result: str) -> Code:
    sizes = LocalSizes(scope.plan, groups)
    sizes.taken.names.update(scope.names.values())
    blocks = StatementWriter(scope.plan, scope.names, sizes, True, fusions(scope.plan)).blocks(steps)
    return function_text(head, sizes.definitions, blocks_text(blocks), f"    return {result}")
