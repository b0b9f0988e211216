"""The calls of layers of a plan -> where its report tells each step, equal layers by the first of
them, and `blocks`, in order, equal neighbours once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import last_of_run, places
from shardlang.paths.runs import in_runs
from shardlang.plan.plan import Plan, Step
from shardlang.sources.source import Span
from shardlang.step import saved_activations
from shardlang.step.blocks.blocks import call_tree
from shardlang.step.blocks.call import BlockCall, is_below, runs

_COMMENT = re.compile(r'\s*#[^"]*$', re.MULTILINE)


@dataclass(frozen=True)
class ToldLayers:
    """Equal layers that are told by the first of them: `layers`, `blocks[0..6]`, by `first`,
    `blocks[0]`; "" outside of layers. times: how many there are, in all of those around them."""

    first: str = ""
    layers: str = ""
    times: int = 1
    around: ToldLayers | None = None

    def path(self, path: str) -> str:
        """The path of something in the first of the layers -> how it is told for all of them; of a
        run beside them the last layer gives it."""
        if self.around is None or is_below(path, self.first):
            return self.layers + last_of_run(path[len(self.first) :])
        return self.around.path(path)

    def within(self, run: Sequence[BlockCall]) -> ToldLayers:
        """That of equal neighbours among what the layers call."""
        (layers,) = in_runs(call.path for call in run)
        return ToldLayers(run[0].path, self.path(layers), self.times * sum(call.times for call in run), self)


OUTSIDE = ToldLayers()


def told(root: BlockCall) -> dict[Step, ToldLayers | None]:
    """Where each step of a plan's calls is told; None: with that of the first of equal layers."""
    found: dict[Step, ToldLayers | None] = {}

    def tell(call: BlockCall, place: ToldLayers) -> None:
        for item in runs(call.items):
            if isinstance(item, Step):
                found[item] = place
            else:
                tell(item[0], place.within(item))
                found.update(dict.fromkeys(step for call in item[1:] for step in call.steps()))

    tell(root, OUTSIDE)
    return found


def blocks(
    plan: Plan, root: BlockCall, lines: Mapping[Step, dict[str, int]], each: bool, folded: bool
) -> list[dict[str, Any]]:
    """The items that `train` runs. lines: where the report has each operator and each conversion
    that it lists. each: layers are named one by one. folded: else each is a block of its own."""

    def items(call: BlockCall, place: ToldLayers) -> Iterator[dict[str, Any]]:
        for item in runs(call.items) if folded else call.items:
            if isinstance(item, Step):
                yield from [lines[item]] if item in lines else []
            else:
                yield block((item,) if isinstance(item, BlockCall) else item, place)

    def partly(call: BlockCall) -> bool:
        mine = [item for item in call.items if isinstance(item, Step)]
        return any(owners.drops(owners.of(step)) for step in mine)

    def block(run: tuple[BlockCall, ...], around: ToldLayers) -> dict[str, Any]:
        first, place = run[0], around.within(run)
        made = plan.graph.calls[first.call]
        return {
            "layers": [path for call in run for path in places(call.path)] if each else [place.layers],
            "model": first.model,
            "block": first.block,
            "recomputed": first.region >= 0 and owners.again(first.region),
            "recomputed_in_part": first.region < 0 and partly(first),
            "saved_on_host": first.region >= 0 and owners.to_host(first.region),
            "text": written(made.statement) if made.statement is not None else "",
            "items": list(items(first, place)),
        }

    owners = saved_activations.owners(plan)
    return list(items(root, OUTSIDE))


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
