"""Claim: on one rank a training loop takes at most 1.02 times the same in plain eager PyTorch by hand.

Digits, which is all overhead, and an MLP of 8 layers that is mostly matrix products.

    python benchmarks/one_rank.py [turns]
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from by_hand import digits, mlp
from emitted import emitted, on_hand, training
from ranks import compared

from shardlang.runtime.program import RunProgram

HERE = Path(__file__).parent
EPOCHS = 3
BATCH, D, FFN = 256, 256, 1024


def trains(program: RunProgram) -> tuple[Callable[[], None], Mapping[str, torch.Tensor]]:
    """A function that trains on for some epochs, and the data as tensors by field."""
    program = dataclasses.replace(program, eval=None)
    program.data.arguments["shuffle"] = True
    data, fields = on_hand(program)
    return training(program, data, EPOCHS), fields


def digits_sides() -> Mapping[str, Callable[[], None]]:
    ours, fields = trains(emitted(HERE.parent / "examples" / "digits.shard", "data_parallel", 1))
    by_hand = digits.Training(fields["image"], fields["label"], 0, 1)
    return {"ours": ours, "by hand": lambda: by_hand.epochs(EPOCHS)}


def mlp_sides() -> Mapping[str, Callable[[], None]]:
    settings = {"batch": str(BATCH), "d": str(D), "ffn": str(FFN)}
    ours, fields = trains(emitted(HERE / "programs" / "mlp.shard", "tensor_parallel", 1, settings))
    by_hand = mlp.training(mlp.Whole(D, FFN))

    def theirs() -> None:
        for _ in range(EPOCHS):
            print(by_hand.epoch(fields["x"], fields["label"], BATCH))

    return {"ours": ours, "by hand": theirs}


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    held = [
        compared(1, sides, turns, f"{label} on one rank / eager PyTorch", 1.02)
        for label, sides in {"digits": digits_sides, "MLP": mlp_sides}.items()
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
