"""Ends with 0 where compiled code draws the bits that torch's kernels do: dropout and uniform numbers, whole values and
parts of them, with the key of two steps. `python -m tests.runtime.compiled_random BACKEND`."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from shardlang.runtime import random
from shardlang.runtime.functions.masks import dropout

WHOLE = (6, 40, 5)
PARTS = [(WHOLE, (0, 0, 0)), ((3, 40, 5), (3, 0, 0)), ((6, 20, 5), (0, 20, 0)), ((2, 10, 5), (4, 30, 0))]


def drawn(x: Tensor, key: random.Key, offsets: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return dropout(x, 0.3, key, WHOLE, offsets), random.uniform(key, x.shape, WHOLE, offsets)  # type: ignore[arg-type]


def main(backend: str) -> int:
    compiled = torch.compile(drawn, backend=backend, fullgraph=True, dynamic=False)
    kept = torch.ones(WHOLE)
    for step in (1, 2):
        random.start(7, step)
        [given] = random.key_tensor([("blocks[3].h", 0)])
        for shape, offsets in PARTS:
            x = torch.rand(shape)
            plain = drawn(x, random.key("blocks[3].h"), offsets)
            part = tuple(slice(o, o + n) for o, n in zip(offsets, shape, strict=True))
            if shape == WHOLE:
                kept = plain[1]
            if not all(map(torch.equal, plain, compiled(x, given, offsets))) or not torch.equal(plain[1], kept[part]):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
