"""The plan -> `forward`: parameters and the fields of a batch -> loss and metrics of one step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from shardlang.emit.functions import BlockFunctions, Function, FunctionBody
from shardlang.emit.scene import FileContext
from shardlang.emit.scope import FileContents
from shardlang.emit.statements import StatementWriter, blocks_text
from shardlang.emit.step_inputs import apart, handed_names, sum_names
from shardlang.emit.text.lines import indented
from shardlang.emit.text.sizes import Groups, LocalSizes
from shardlang.frozen.records import dataclass
from shardlang.ops.code import TORCH, Code, around, joined, used
from shardlang.ops.python_text import comment, literal
from shardlang.plan.plan import Plan
from shardlang.plan.reads import Form, final_form, inputs, layout_of, makes, steps_for, summed_first
from shardlang.step.blocks.forms import Forms

# More sizes than these are written in short in a comment.
_MANY = 16


@dataclass(frozen=True)
class Forward:
    """The parts of `forward` in one file. trained: for the loss. shown: for metrics alone."""

    scope: FileContents
    ends: tuple[Form, ...]
    trained: FunctionBody
    shown: FunctionBody

    @property
    def called(self) -> dict[str, Function]:
        """The functions of layers that it calls."""
        return {**self.trained.called, **self.shown.called}

    def values(self) -> set[int]:
        """The values that have a name in the file's functions."""
        plan, found = self.scope.plan, self.scope.phases
        forms = {*self.trained.visible, *self.shown.visible, *self.scope.sent, *found.step_inputs, *found.handed}
        for step in (*found.ahead, *found.known, *found.after):
            forms.update([*inputs(plan)[step], *makes(plan)[step]])
        last = {*self.scope.received, *self.scope.fields, *self.scope.metrics.values()}
        return {value for value, _ in forms} | last | (set() if self.scope.loss is None else {self.scope.loss})


def forward_of(scope: FileContents, functions: BlockFunctions) -> Forward:
    """The parts of `forward`, with the layers in them."""
    plan, found = scope.plan, scope.phases
    losses = [] if scope.loss is None else [scope.loss]
    ends = [*(at for at in scope.sent if at in scope.trained), *(final_form(plan, value) for value in losses)]
    for_loss = {*steps_for(plan, ends, {*found.step_inputs, *((value, -1) for value in scope.received)})}
    trained = [step for step in found.body if step in for_loss]
    shown = [step for step in found.body if step not in for_loss]
    later = [*ends, *scope.sent, *(final_form(plan, value) for value in scope.metrics.values()), *found.handed]
    later += [(plan.conversions[at].value, plan.conversions[at].parent) for at in found.sums]
    scene = FileContext(plan, True, Forms(plan, frozenset(found.step_inputs)), trained, scope.stage)
    read = [at for step in shown for at in scene.forms.reads(step)]
    bodies = [
        functions.body(scene, trained, [*later, *read]),
        functions.body(replace(scene, steps=shown), shown, later),
    ]
    return Forward(scope, tuple(ends), *bodies)


def named(parts: Forward, functions: BlockFunctions) -> FileContents:
    """The file's part of the plan with the names that its functions have in common."""
    scope = parts.scope
    reserved, sums = [*parts.called, *functions.named], apart(scope.plan, scope.phases)
    formals = parts.trained.formals(scope.received)
    return replace(scope, names=functions.naming.names(parts.values(), sums, reserved=reserved, formals=formals))


def forward_text(parts: Forward, groups: Groups) -> Code:
    """`def forward(p, x, label): ...`. The values that a stage sends come first, then the loss;
    metrics follow, without gradient; with microbatches, the sums follow that further metrics are
    made of."""
    scope = parts.scope
    plan, names, found = scope.plan, scope.names, scope.phases
    sizes = LocalSizes(plan, groups)
    losses = [] if scope.loss is None else [scope.loss]
    shown = {name: value for name, value in scope.metrics.items() if value not in found.last}
    sums = {**sum_names(plan, found.sums, names), **handed_names(plan, found.handed, names, groups)}
    writer = parts.trained.writer(names, sizes)
    # Before what it defines is listed.
    body = blocks_text(parts.trained.blocks(writer))
    metric_blocks = parts.shown.blocks(parts.shown.writer(names, sizes))
    numbers = {name: returned(plan, names, groups, value) for name, value in shown.items()}
    results = [*(names[at] for at in scope.sent), *(returned(plan, names, groups, value) for value in losses)]
    results += [dict_text(numbers)] if losses or numbers or sums else []
    results += [dict_text(sums)] if sums else []
    return function_text(
        signature("forward", [*scope.arguments(), *(names[at] for at in found.step_inputs)]),
        [*received_lines(writer, names, scope.received), *sizes.definitions],
        body,
        around(around("    with ", TORCH("no_grad"), ":\n"), blocks_text(metric_blocks, 2)) if metric_blocks else "",
        f"    return {', '.join(results) or '()'}",
    )


def received_lines(writer: StatementWriter, names: Mapping[Form, str], received: Iterable[int]) -> list[str]:
    """A comment for each value that a stage receives."""
    produced = writer.plan.produced
    return [comment(f"{names[v, -1]}: {writer.comment(v, produced[v])}") for v in received]


def returned(plan: Plan, names: Mapping[Form, str], groups: Groups, value: int) -> str:
    """The expression that `forward` returns for a loss or metric: its last form, summed here if it
    is pending over a further mesh."""
    at = final_form(plan, value)
    axes = summed_first(plan, value)
    return f"rt.all_reduce({names[at]}, {groups.text(axes, layout_of(plan, at).mesh)})" if axes else names[at]


def signature(name: str, arguments: Iterable[str], first: Sequence[str] = ("p",)) -> str:
    return f"def {name}({', '.join([*first, *arguments])}):"


def function_text(head: str, definitions: Sequence[str], *parts: str) -> Code:
    """A function: its first line, the definitions of its body, then the parts of the body. A name
    that only comments use is defined in a comment."""
    body = joined([part for part in parts if part], "\n\n")
    text = "\n".join([*(line for line in definitions if not used(line)), body])
    named = [line for line in definitions if _named(line, text)]
    needed = [line if used(line) <= body.uses else comment(_in_short(line)) for line in named]
    first = indented("\n".join(needed)) + "\n\n" if needed else ""
    return around(f"{head}\n{first}", body, "\n")


def _in_short(definition: str) -> str:
    """A definition for a comment: of many sizes, equal neighbours are one, as in `8 x 100, 7`."""
    head, _, rest = definition.partition(" = (")
    sizes, _, tail = rest.partition(")[")
    runs = [(size, len(list(same))) for size, same in groupby(sizes.split(", "))]
    if sizes.count(",") < _MANY:
        return definition
    short = ", ".join(size if count == 1 else f"{size} x {count}" for size, count in runs)
    return f"{head} = ({short})[{tail}"


def _named(definition: str, body: str) -> bool:
    """Whether a name that is defined stands in the body, if only in comments; so what is a comment
    itself."""
    return not used(definition) or re.search(rf"\b{definition.partition(' ')[0]}\b", body) is not None


def dict_text(items: Mapping[str, str]) -> str:
    """`{"accuracy": accuracy}` on one line where it fits, else an item a line."""
    entries = [f"{literal(key)}: {text}" for key, text in items.items()]
    flat = f"{{{', '.join(entries)}}}"
    if len(flat) <= 90:
        return flat
    return "{\n" + "".join(f"        {entry},\n" for entry in entries) + "    }"
