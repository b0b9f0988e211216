"""Claim: Wide & Deep with its tables in the host's memory takes at most the time of nn.Embedding(sparse) by hand.

One GPU, batches of 4,096 with 39 ids each, 2 million rows. By hand, rows and their gradients pass through page-locked
memory. Both sides begin with the same weights and must come to the same losses.

    python -m benchmarks.gpu.tables [--device cpu] [--turns N]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from by_hand.wide_deep import Training
from emitted import beginning, emitted, on_hand, training
from timing import ratios

from benchmarks.gpu.nets import PROGRAMS
from benchmarks.gpu.place import Place, place
from shardlang.runtime.comm.mesh import world

FILE = PROGRAMS / "wide_deep.shard"
TINY = {"batch": "4", "vocab": "50", "model.width": "4"}
EPOCHS = 5


def sides(here: Place) -> dict[str, Callable[[], Sequence[float]]]:
    settings = {} if here.whole else TINY
    program = emitted(FILE, "host_device", 1, settings)
    data, whole = on_hand(program)
    by_hand = Training(beginning(FILE, settings), world.device)
    batches = list(zip(*(whole[name].split(program.data.batch) for name in ("ids", "values", "label")), strict=True))
    return {"ours": training(program, data, EPOCHS), "by hand": lambda: by_hand.steps(batches * EPOCHS).tolist()}


def main() -> int:
    here = place()
    # The loss falls to a thirtieth, and what sums in another order differ by doubles with each step.
    found = here.on_ranks(lambda: sides(here), close=3e-4)
    for name, timing in found.items():
        print(f"{name:8} {timing} for {4 * EPOCHS} steps")
    label = "Wide & Deep, tables on the host / nn.Embedding(sparse) by hand"
    return 0 if here.judged(label, ratios(found, "ours", "by hand"), 1.0) else 1


if __name__ == "__main__":
    sys.exit(main())
