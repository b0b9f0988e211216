"""The collectives of real gloo ranks in a step, in order: what each is for, its kind, its axes and its elements.

`recorded(text, ranks, folder)` trains a program in a process of its own and gives those of the third step by rank, with
the gathers of the rows that the second one updated left out.
As a script: `recorded.py MAIN_FILE RANKS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.end_to_end.watching import started, watched

STEP = 2
STAGES = 2  # coordinates of all programs that have stages
# The modules of the runtime that issue a collective for other ends than the values of a step.
PURPOSES = {"zero3": "parameters", "buckets": "gradients", "zero": "gradients", "sparse": "gradients",
            "totals": "figures", "optimizers": "norm", "loss_scale": "norm", "shared_memory": "setup"}  # fmt: skip


def recorded(files: Mapping[str, str], ranks: int, folder: Path) -> list[list[list[Any]]]:
    """By rank: [purpose, kind, axes, elements] of each collective."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)
    return watched("matched.recorded", folder / "main.py", ranks, "issued")


def _purpose(kind: str) -> str:
    """By the function that asks for it."""
    frame = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "").rpartition(".")[2]
        if module in PURPOSES:
            return "parameters" if frame.f_code.co_name == "publish" else PURPOSES[module]
        frame = frame.f_back  # type: ignore[assignment]
    return "values"


def _watch(folder: Path) -> None:
    from shardlang.runtime import messages
    from shardlang.runtime.comm import blocks, mesh, primitives
    from shardlang.runtime.state import sparse
    from shardlang.runtime.step.model import RankModel

    found: list[list[Any]] = []

    def noted(kind: str, function: Any) -> Any:
        def called(x: Any, *rest: Any, **more: Any) -> Any:
            group = next(r for r in [*rest, *more.values()] if isinstance(r, mesh.Group))
            found.append([_purpose(kind), kind, list(group.axes), x.numel()])
            return function(x, *rest, **more)

        return called

    primitives.begin_reduce = noted("all_reduce", primitives.begin_reduce)
    primitives.begin_reduce_scatter = noted("reduce_scatter", primitives.begin_reduce_scatter)
    primitives.begin_all_gather = noted("all_gather", primitives.begin_all_gather)
    blocks.begin_permuted = noted("permute", blocks.begin_permuted)
    blocks.exchange = noted("all_to_all", blocks.exchange)
    begin_send = messages.begin_send

    def sent(tensor: Any, target: int, tag: int) -> Any:
        found.append(["messages", "send", [str(target // (mesh.world.size // STAGES))], tensor.numel()])
        return begin_send(tensor, target, tag)

    messages.begin_send = sent
    sparse._exchanged = lambda ids, rows, group, right=sparse._exchanged: (  # type: ignore[assignment,misc]
        found.append(["gradients", "rows", list(group.axes), 0]), right(ids, rows, group))[1]  # fmt: skip
    update, steps = RankModel.update, [0]

    def updated(model: Any, step: int, total: int) -> bool:
        done = update(model, step, total)
        steps[0] += 1
        if steps[0] == STEP:
            kept = [one for one in found if one[0] in ("values", "messages", "gradients", "parameters")]
            (folder / f"issued-{mesh.world.rank}.json").write_text(json.dumps(kept))
        found.clear()
        return done

    RankModel.update = updated  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(started(_watch))
