"""Claim: rows exchanged by all-to-all take at most 0.5 times the bytes and the time of gathering the table.

A whole training step on 4 ranks, of one program under two strategies. Bytes are those of the plans.

    python benchmarks/exchange.py [turns]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from emitted import emitted, planned, training
from ranks import on_ranks
from timing import ratios, verdict

from shardlang.folds.report import report
from shardlang.runtime.step.train import datasets

PROGRAM = Path(__file__).parent / "programs" / "exchange.shard"
SIDES, RANKS, EPOCHS = ("exchanged", "gathered"), 4, 1


def sides() -> dict[str, Callable[[], Sequence[float] | None]]:
    programs = {name: emitted(PROGRAM, name, RANKS) for name in SIDES}
    return {name: training(program, datasets(program), EPOCHS) for name, program in programs.items()}


def sent_bytes(strategy: str) -> int:
    """What each rank sends in a step."""
    found = report(planned(PROGRAM, strategy, RANKS))["per_rank"]
    return int(found["forward_bytes"] + found["backward_bytes"])


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    wall, processor = on_ranks(RANKS, sides, turns)
    sent = {name: sent_bytes(name) for name in SIDES}
    for name in SIDES:
        print(f"{RANKS} ranks, {name:9} {wall[name]}, processor {processor[name]}, {sent[name]:,} bytes a step")
    held = [
        verdict("bytes of rows exchanged / table gathered", [sent["exchanged"] / sent["gathered"]], 0.5),
        verdict("time of rows exchanged / table gathered", ratios(wall, "exchanged", "gathered"), 0.5),
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
