"""Claim: data-parallel digits, a whole training loop, takes at most the time of DistributedDataParallel by hand.

python benchmarks/data_parallel.py [turns]
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from by_hand.digits import Training
from emitted import emitted, training
from ranks import compared

from shardlang.runtime.comm.mesh import world
from shardlang.runtime.step.train import datasets

EXAMPLE = Path(__file__).parent.parent / "examples" / "digits.shard"
EPOCHS = 3


def sides(ranks: int) -> Callable[[], Mapping[str, Callable[[], None]]]:
    """Both ways to train; made before the ranks are forked, so that the data is read once."""
    # Evaluation is no part of the claim, and the other side has none.
    program = dataclasses.replace(emitted(EXAMPLE, "data_parallel", ranks), eval=None)
    data = datasets(program)
    arrays = data["data"].arrays  # type: ignore[attr-defined]
    image, label = torch.from_numpy(arrays["image"]), torch.from_numpy(arrays["label"])

    def connected() -> Mapping[str, Callable[[], None]]:
        by_hand = Training(image, label, world.rank, ranks)
        return {"ours": training(program, data, EPOCHS), "by hand": lambda: by_hand.epochs(EPOCHS)}

    return connected


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    held = [
        compared(ranks, sides(ranks), turns, f"digits on {ranks} ranks / DistributedDataParallel", 1.0)
        for ranks in (2, 4)
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
