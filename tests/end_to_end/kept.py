"""What the ranks of a run hold: bytes of parameters, of their copies, of gradients between microbatches, and of
optimizer state.

`held(text, ranks, folder)` trains a program on real ranks, in a process of its own as curves.py does, and measures the
memory that tensors lie in on each rank, whatever they are views of. As a script: `kept.py MAIN_FILE RANKS`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.emit.sources import written
from tests.end_to_end.watching import started, watched

PARTS = ("parameters", "copies", "gradients", "optimizer")


def held(text: str, ranks: int, folder: Path, strategy: str | None = None) -> list[dict[str, int]]:
    """Per rank the bytes of each part. The program has two microbatches or more."""
    return watched("end_to_end.kept", written(folder, text, ranks, strategy), ranks, "held")


def memory_of(tensors: Iterable[Any]) -> int:
    """Bytes of the memory that tensors lie in, each counted once."""
    found = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t is not None}
    return sum(found.values())


def _gradients(model: Any) -> int:
    """What is left of the gradients after a microbatch that is not the last: with the parameters, or in buckets, the
    last of which is waited for.
    """
    whole = [leaf.grad for leaf in (*model.leaves.values(), *model.trained.values())]
    parts = []
    for bucket in model.buckets:
        bucket.collect()
        parts.append(getattr(bucket, "total", None))
    return memory_of([*whole, *parts])


def _watch(folder: Path) -> None:
    """Every model made from now on writes what it holds after its first microbatch."""
    import torch.distributed as dist

    from shardlang.runtime.step.model import RankModel

    backward = RankModel.backward

    def measured(model: Any, loss: Any, last: bool = True) -> None:
        backward(model, loss, last)
        if last:
            return
        rank = dist.get_rank() if dist.is_initialized() else 0
        states = [t for optimizer in model.optimizers for kept in optimizer.kept().values() for t in kept]
        parameters, copies = memory_of(model.trained.values()), memory_of(model.copies.values())
        sizes = parameters, copies, _gradients(model), memory_of(states)
        found = dict(zip(PARTS, sizes, strict=True))
        (folder / f"held-{rank}.json").write_text(json.dumps(found))

    RankModel.backward = measured  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(started(_watch))
