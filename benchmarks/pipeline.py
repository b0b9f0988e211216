"""Claim: the MLP in 2 and 4 pipeline stages takes at most 1.05 times torch's schedule class of the same name by hand.

A training loop on data on hand; both sides begin with the same weights and must come to the same losses.

    python benchmarks/pipeline.py [turns]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from by_hand.mlp import Staged
from emitted import beginning, emitted, on_hand, training
from ranks import Turns, compared
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

FILE = Path(__file__).parent / "programs" / "mlp.shard"
SETTINGS = {"batch": "256"}
SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "one_f_one_b": Schedule1F1B}


def sides(ranks: int, strategy: str) -> Callable[[], Turns]:
    program, weights = emitted(FILE, strategy, ranks, SETTINGS), beginning(FILE, SETTINGS)
    data, whole = on_hand(program)
    batches = list(zip(*(whole[name].split(program.data.batch) for name in ("x", "label")), strict=True))

    def connected() -> Turns:
        by_hand = Staged(weights, SCHEDULES[strategy], program.microbatches)
        return {"ours": training(program, data, 1), "by hand": lambda: by_hand.steps(batches)}

    return connected


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    held = [
        compared(ranks, sides(ranks, strategy), turns, f"MLP in {ranks} stages / {schedule.__name__}", 1.05)
        for strategy, schedule in SCHEDULES.items()
        for ranks in (2, 4)
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
