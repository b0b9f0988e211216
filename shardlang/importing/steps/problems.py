"""Why a module cannot be imported, as an error with the module's own paths and lines."""

from __future__ import annotations

from collections.abc import Iterable

from shardlang.errors import RunError
from shardlang.importing.steps.nodes import Node


class Refused(Exception):
    """One node that the language cannot say; all of a module are told at once, as SH601."""

    def __init__(self, node: Node, what: str) -> None:
        super().__init__(what)
        self.node, self.what = node, what


def refusal(found: Iterable[Refused], plain: bool = True) -> RunError:
    """SH601: what the language has no word for, with counts, places in the module and lines. plain:
    whether such steps were not to become operators of their own."""
    groups: dict[str, list[Node]] = {}
    for each in found:
        groups.setdefault(each.what, []).append(each.node)
    lines = []
    for what, nodes in sorted(groups.items()):
        places = dict.fromkeys(f"`{node.path or 'the module'}`, {node.place}" for node in nodes)
        shown = list(places)[:3]
        more = [f"and at {len(places) - 3} more places"] * (len(places) > 3)
        lines.append(f"  {len(nodes)} x {what}: {'; '.join([*shown, *more])}")
    count = sum(map(len, groups.values()))
    kinds = "one operation" if count == 1 else f"{count} operations"
    help = "write these parts of the module in operators of `shardc explain`, or the model by hand"
    if plain:
        help = f"`--opaque` makes operators of your own of them, in torch; or {help}"
    if any("_loss" in what for what in groups):
        help = f"a loss belongs in `train`: leave out what it reads, or name another result by --output; {help}"
    return RunError("SH601", "\n".join([f"the language has no word for {kinds} of the module", *lines]), help=help)
