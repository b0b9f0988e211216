"""The calls of layers of a plan -> `blocks` of its report, in order, equal neighbours once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shardlang.paths.patterns import places
from shardlang.paths.runs import in_runs
from shardlang.plan.plan import Plan, Step
from shardlang.sources.source import Span
from shardlang.step import saved_activations
from shardlang.step.blocks.blocks import call_tree
from shardlang.step.blocks.call import BlockCall, is_below, runs

_COMMENT = re.compile(r'\s*#[^"]*$', re.MULTILINE)


def blocks(plan: Plan, lines: Mapping[Step, dict[str, int]], folded: bool) -> list[dict[str, Any]]:
    """The items that `train` runs. lines: where the report has each operator and each conversion
    that it lists. folded: else each layer is a block of its own."""

    def items(call: BlockCall) -> Iterator[dict[str, Any]]:
        for item in runs(call.items) if folded else call.items:
            if isinstance(item, Step):
                yield from [lines[item]] if item in lines else []
            else:
                yield block((item,) if isinstance(item, BlockCall) else item)

    def partly(call: BlockCall) -> bool:
        mine = [item for item in call.items if isinstance(item, Step)]
        return any(owners.drops(owners.of(step)) for step in mine)

    def block(run: tuple[BlockCall, ...]) -> dict[str, Any]:
        first = run[0]
        made = plan.graph.calls[first.call]
        return {
            "layers": [place for call in run for place in places(call.path)],
            "model": first.model,
            "block": first.block,
            "recomputed": first.region >= 0 and owners.again(first.region),
            "recomputed_in_part": first.region < 0 and partly(first),
            "saved_on_host": first.region >= 0 and owners.to_host(first.region),
            "text": written(made.statement) if made.statement is not None else "",
            "items": list(items(first)),
        }

    owners = saved_activations.owners(plan)
    return list(items(call_tree(plan)))


def same_layers(plan: Plan, path: str) -> list[str]:
    """The layers, in runs, that equal the innermost of an array around a value; none if single."""
    found: list[str] = []

    def look(call: BlockCall) -> None:
        for item in runs(call.items):
            for run in [] if isinstance(item, Step) else [item]:
                if any(is_below(path, inner.path) for inner in run):
                    found[:] = in_runs(inner.path for inner in run) if len(run) > 1 else found
                    look(next(inner for inner in run if is_below(path, inner.path)))

    look(call_tree(plan))
    return found


def written(span: Span) -> str:
    """A statement as it is written, on one line and without comments."""
    return " ".join(_COMMENT.sub("", span.text).split())
