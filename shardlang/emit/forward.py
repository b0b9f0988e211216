"""The plan -> `forward`: from the parameters and the fields of a batch to the loss and the metrics of one step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from shardlang.emit.fuse import fusions
from shardlang.emit.given import handed_names, sum_names
from shardlang.emit.regions import Region, arranged, inputs_of, outputs_of
from shardlang.emit.scope import Scope
from shardlang.emit.statements import Writer, blocks_text
from shardlang.emit.text.lines import Block, Line, block_text, indented
from shardlang.emit.text.names import identifier
from shardlang.emit.text.sizes import Groups, Sizes
from shardlang.plan.needs import Form, final_form, layout_of, steps_for, summed_first
from shardlang.plan.plan import Plan, Step
from shardlang.python_text import code, comment, literal


def forward_text(scope: Scope, groups: Groups) -> str:
    """`def forward(p, x, label): ...`. What a stage sends comes first, then the loss; metrics follow, without gradient;
    with microbatches, the sums follow that further metrics are made of.
    """
    plan, names, found = scope.plan, scope.names, scope.phases
    sizes = Sizes(plan, groups)
    sizes.taken.names.update(names.values())
    writer = step_writer(plan, names, sizes)
    losses = [] if scope.loss is None else [scope.loss]
    ends = [*scope.trained, *(final_form(plan, value) for value in losses)]
    for_loss = steps_for(plan, ends, frozenset(found.given))
    shown = {name: value for name, value in scope.metrics.items() if value not in found.last}
    trained = [step for step in found.body if step in for_loss]
    metric_steps = [step for step in found.body if step not in for_loss]
    parts = {**sum_names(plan, found.sums, names), **handed_names(plan, found.handed, names, groups)}
    # Before what it defines is listed.
    body = trained_text(writer, trained, metric_steps, [*ends, *scope.sent])
    metric_blocks = writer.blocks(metric_steps)
    numbers = {name: returned(plan, names, groups, value) for name, value in shown.items()}
    results = [*(names[at] for at in scope.sent), *(returned(plan, names, groups, value) for value in losses)]
    results += [dict_text(numbers)] if losses or numbers or parts else []
    results += [dict_text(parts)] if parts else []
    return function_text(
        signature("forward", [*scope.arguments(), *(names[at] for at in found.given)]),
        [*received_lines(writer, scope), *sizes.definitions],
        body,
        f"    with torch.no_grad():\n{blocks_text(metric_blocks, 2)}" if metric_blocks else "",
        f"    return {', '.join(results) or '()'}",
    )


def received_lines(writer: Writer, scope: Scope, received: Iterable[int] | None = None) -> list[str]:
    """A comment for each value that a stage receives."""
    values = scope.received if received is None else received
    return [comment(f"{scope.names[v, -1]}: {writer.comment(v, scope.plan.produced[v])}") for v in values]


def trained_text(writer: Writer, steps: Sequence[Step], others: Sequence[Step], ends: Sequence[Form]) -> str:
    """The steps that the loss needs; what is computed again in backward as functions within. others, ends: steps and
    forms further down that read what these make.
    """
    plan = writer.plan
    parts: list[str] = []
    open_: list[Step] = []
    items = arranged(plan, steps)
    writer = writer.within([item.steps for item in items if isinstance(item, Region)])
    for item in [*items, None]:
        if isinstance(item, Step):
            open_.append(item)
            continue
        if open_:
            parts.append(blocks_text(writer.blocks(open_)))
            open_ = []
        if item is not None:
            results = outputs_of(plan, item, [*steps, *others], ends)
            parts.append(region_text(writer, item, inputs_of(plan, item), results))
    return "\n\n".join(part for part in parts if part)


def region_text(writer: Writer, region: Region, inputs: Sequence[Form], outputs: Sequence[Form]) -> str:
    """A function within `forward`, and its call: what it computes is not kept for backward but computed again."""
    name = writer.sizes.taken.claim(identifier(region.path.replace("].", "_").replace("[", "_").replace(".", "_")))
    given = list(dict.fromkeys(writer.names[at] for at in inputs))
    made = list(dict.fromkeys(writer.names[at] for at in outputs))
    head = block_text(Block("", [Line(f"def {name}({', '.join(given)}):")]))
    body = blocks_text(writer.blocks(region.steps), 2)
    call = Line(f"{', '.join(made)} = rt.recompute({', '.join([name, *given])})")
    title = f"{region.path} is not kept for backward, but computed again there"
    return f"{head}\n{body}\n\n        return {', '.join(made)}\n\n{block_text(Block(title, [call]))}"


def step_writer(plan: Plan, names: dict[Form, str], sizes: Sizes, training: bool = True) -> Writer:
    """What writes the steps of one function."""
    fused = fusions(plan)
    return Writer(plan, names, sizes, training, fused, frozenset(f.product for f in fused.values()))


def returned(plan: Plan, names: Mapping[Form, str], groups: Groups, value: int) -> str:
    """What `forward` returns for a loss or metric: its last form, summed here if it is pending over a further mesh."""
    at = final_form(plan, value)
    axes = summed_first(plan, value)
    return f"rt.all_reduce({names[at]}, {groups.text(axes, layout_of(plan, at).mesh)})" if axes else names[at]


def signature(name: str, arguments: Iterable[str], first: Sequence[str] = ("p",)) -> str:
    return f"def {name}({', '.join([*first, *arguments])}):"


def function_text(head: str, definitions: Sequence[str], *parts: str) -> str:
    """A function: its first line, the definitions that its body uses, then the parts of the body with empty lines."""
    body = "\n\n".join(part for part in parts if part)
    read = code(body)
    used = [line for line in definitions if line[0] == "#" or re.search(rf"\b{line.partition(' = ')[0]}\b", read)]
    first = indented("\n".join(used)) + "\n\n" if used else ""
    return f"{head}\n{first}{body}\n"


def dict_text(items: Mapping[str, str]) -> str:
    """`{"accuracy": accuracy}` on one line where it fits, else an item a line."""
    entries = [f"{literal(key)}: {text}" for key, text in items.items()]
    flat = f"{{{', '.join(entries)}}}"
    if len(flat) <= 90:
        return flat
    return "{\n" + "".join(f"        {entry},\n" for entry in entries) + "    }"
