"""The two generators, numpy's and the runtime's, draw the same numbers for the same keys and indices."""

from __future__ import annotations

import torch

from shardlang.interpret.meaning import draws
from shardlang.runtime import random
from shardlang.runtime.functions.masks import kept


def test_keys_and_numbers_agree() -> None:
    for seed, path, call, step in ((0, "w", 0, 0), (7, "encoder.blocks[3].drop", 2, 11), (-1, "", 0, 1)):
        key = draws.key_of(seed, path, call, step)
        assert key == random.seeded_key(seed, path, call, step)
        whole, starts, shape = (5, 7, 6), (2, 0, 3), (3, 7, 2)
        assert torch.equal(draws.uniform(key, whole), random.uniform(key, whole, whole, (0, 0, 0)))
        assert torch.equal(draws.uniform(key, whole, starts, shape), random.uniform(key, shape, whole, starts))
        for p in (0.1, 0.5, 1 - 2**-32):
            for at in (starts, (0, 6, 1), (4, 0, 5)):
                size = tuple(min(n, w - o) for n, w, o in zip(shape, whole, at, strict=True))
                assert torch.equal(draws.kept(key, p, whole, at, size), kept(key, p, size, whole, at))
        torch.testing.assert_close(draws.normal(key, whole), random.normal(key, whole, whole, (0, 0, 0)))


def test_a_block_is_what_the_whole_has_there() -> None:
    whole = draws.normal(9, (6, 8))
    assert torch.equal(draws.normal(9, (6, 8), (2, 4), (3, 4)), whole[2:5, 4:8])
    assert draws.uniform(9, ()).shape == ()
