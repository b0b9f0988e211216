"""What the ranks of a run send in a step: bytes of the collectives, by the counts that plans use.

`wired(text, ranks, folder)` trains a program on real ranks, in a process of its own as kept.py does, and counts in the
third step what each collective is given: of n members an all-gather sends n - 1 times a part, a reduce-scatter as
much, a sum twice (n - 1) / n of the whole, whichever way gloo does it, an all-to-all (n - 1) / n of a part; attention
sends halves of queries, and passes keys and values on. What ZeRO 3 gathers counts with the pass that it is for. What is
in float64 (figures, norms) is left out.
Where there are stages, `messages` are the bytes of values and gradients that go to other ranks. The weights that are
learned are in the folder, as weights.safetensors.
As a script: `wired.py MAIN_FILE RANKS`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.emit.sources import written
from tests.end_to_end.watching import started, watched

STEP = 3  # before it, ZeRO 3 learns what is used in which order


def wired(text: str, ranks: int, folder: Path, strategy: str | None = None) -> list[dict[str, int]]:
    """Per rank the bytes sent in forward (with the parameters' gathering after the step before) and in backward."""
    return watched("end_to_end.wired", written(folder, text, ranks, strategy), ranks, "sent")


def _sent(kind: str, x: Any, members: int) -> int:
    import torch

    if x.dtype == torch.float64:
        return 0
    size = x.numel() * x.element_size()
    if kind == "begin_all_gather":
        return (members - 1) * size
    once = (members - 1) * size // members
    return once if kind == "begin_reduce_scatter" else 2 * once


def watch(folder: Path) -> None:
    """Every collective made from now on is counted."""
    import torch

    from shardlang.runtime import messages
    from shardlang.runtime.comm import blocks, mesh, primitives
    from shardlang.runtime.state.zero3 import GatherQueue
    from shardlang.runtime.step.model import RankModel

    counts, now = {"forward": 0, "backward": 0}, {"phase": "forward"}

    def counted(kind: str, begin: Any) -> Any:
        def started(x: Any, group: Any, *rest: Any, **more: Any) -> Any:
            counts[now["phase"]] += _sent(kind, x, group.size)
            return begin(x, group, *rest, **more)

        return started

    for kind in ("begin_all_gather", "begin_reduce_scatter", "begin_reduce"):
        setattr(primitives, kind, counted(kind, getattr(primitives, kind)))
    dealt, begin_permuted, exchange = blocks.dealt, blocks.begin_permuted, blocks.exchange

    def turned(x: Any, gather_dim: int, split_dim: int, group: Any, *sizes: Any) -> Any:
        size = 0 if x.dtype == torch.float64 else x.numel() * x.element_size()
        counts[now["phase"]] += (group.size - 1) * size // group.size
        return exchange(x, gather_dim, split_dim, group, *sizes)

    def exchanged(x: Any, dim: int, group: Any, before: Any, after: Any) -> Any:
        others = len({*before[group.index]} - {*after[group.index]})
        size = 0 if x.dtype == torch.float64 else x.numel() * x.element_size()
        counts[now["phase"]] += size * others // len(before[group.index])
        return dealt(x, dim, group, before, after)

    def passed(x: Any, *rest: Any) -> Any:
        counts[now["phase"]] += 0 if x.dtype == torch.float64 else x.numel() * x.element_size()
        return begin_permuted(x, *rest)

    blocks.dealt, blocks.begin_permuted, blocks.exchange = exchanged, passed, turned
    begin = GatherQueue._begin

    def ahead(line: Any) -> None:
        before, passes = now["phase"], [at for at, first in enumerate(line.begins) if first <= line.opened]
        now["phase"] = "backward" if passes[-1] % 2 else "forward"
        begin(line)
        now["phase"] = before

    GatherQueue._begin = ahead  # type: ignore[method-assign]
    backward, update, begin_send = RankModel.backward, RankModel.update, messages.begin_send

    def carried(tensor: Any, *where: Any) -> Any:
        counts["messages"] = counts.get("messages", 0) + tensor.numel() * tensor.element_size()
        return begin_send(tensor, *where)

    def measured(model: Any, loss: Any, last: bool = True) -> None:
        now["phase"] = "backward"
        backward(model, loss, last)
        now["phase"] = "forward"

    def stepped(model: Any, step: int, total: int) -> None:
        update(model, step, total)
        if step == STEP:
            (folder / f"sent-{mesh.world.rank}.json").write_text(json.dumps(counts))
        elif step == STEP - 1:
            counts.update(dict.fromkeys(counts, 0))

    messages.begin_send = carried
    RankModel.backward = measured  # type: ignore[method-assign]
    RankModel.update = stepped  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(started(watch, save_weights=Path(sys.argv[1]).with_name("weights.safetensors")))
