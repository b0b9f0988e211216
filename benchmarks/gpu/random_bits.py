"""Claim: random bits, uniform numbers and what a dropout drops are the same on a GPU as on the CPU, bit for bit.

Normal numbers differ by rounding in float32. Also with a key as a tensor, and compiled.

    python -m benchmarks.gpu.random_bits [--device cpu]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from timing import verdict
from torch import Tensor

from benchmarks.gpu.place import Place, place
from shardlang import runtime as rt
from shardlang.runtime import random
from shardlang.runtime.comm.mesh import world

SEED, PATH = 7, "blocks[0].h"
# A block of a value with more elements than 32 bits can number.
WHOLE, OFFSETS = (1 << 20, 1 << 14), (1 << 19, 3)


def drawn(device: torch.device, rows: int, compiler: str) -> dict[str, Callable[[], Tensor]]:
    """Numbers of a block with so many rows, by what they are, made on a device."""
    shape, key = (rows, 1000), random.seeded_key(SEED, PATH)
    random.start(SEED)
    (tensor,) = random.key_tensor([(PATH, 0)]).to(device)
    index = random.global_index(shape, WHOLE, OFFSETS, device)

    def uniform(key: random.Key) -> Tensor:
        return random.uniform(key, shape, WHOLE, OFFSETS, device)

    return {
        "bits": lambda: random.bits(key, index),
        "bits of a second number": lambda: random.bits(key, index, 1),
        "bits of a key as a tensor": lambda: random.bits(tensor, index * tensor[1]),
        "uniform": lambda: uniform(key),
        "uniform, compiled": lambda: torch.compile(uniform, dynamic=False, backend=compiler)(tensor),
        "dropout": lambda: rt.dropout(torch.ones(shape, device=device), 0.1, key),
        "dropout of a part": lambda: rt.dropout(torch.ones(shape, device=device), 0.1, key, WHOLE, OFFSETS),
    }


def compared(here: Place) -> tuple[dict[str, int], float]:
    """How many numbers differ from the CPU's, by what they are; the farthest normal one, in units of its rounding."""
    rows = 4000 if here.whole else 4
    sides = [drawn(device, rows, here.compiler) for device in (world.device, torch.device("cpu"))]
    differ = {name: int((made().cpu() != sides[1][name]()).sum()) for name, made in sides[0].items()}
    key = random.seeded_key(SEED, PATH)
    there, on_host = (
        random.normal(key, (rows, 1000), WHOLE, OFFSETS, device).cpu() for device in (world.device, torch.device("cpu"))
    )
    units = (there - on_host).abs() / (on_host.abs() * torch.finfo(torch.float32).eps)
    return differ, float(units.max())


def main() -> int:
    here = place()
    ((differ, units),) = here.forked(lambda: compared(here))
    held = [verdict(f"{name}: numbers unlike the CPU's", [count], 0.0) for name, count in differ.items()]
    held.append(verdict("normal: farthest number / its rounding in float32", [units], 1.0))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
