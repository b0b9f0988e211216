"""Random numbers: the same as numpy's splitmix64, whatever the block; uniform, normal, and independent of their
neighbours.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from shardlang.runtime import random
from shardlang.runtime.data.drawn import bits
from shardlang.runtime.functions.masks import kept

COUNT = 200_000


def _line(draw, key: int, count: int = COUNT) -> np.ndarray:
    return draw(key, (count,), (count,), (0,)).double().numpy()


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF])
def test_bits_are_splitmix64_of_numpy(key: int) -> None:
    golden, first, second = (np.uint64(v) for v in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
    x = np.arange(10_000, dtype=np.uint64) * golden + np.uint64((key + int(golden)) & (2**64 - 1))
    x = (x ^ (x >> np.uint64(30))) * first
    x = (x ^ (x >> np.uint64(27))) * second
    assert (bits(key, np.arange(10_000)) == x ^ (x >> np.uint64(31))).all()


def test_splitmix64_is_the_published_one() -> None:
    """The first numbers of the reference implementation from seed 0."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert bits(0, np.arange(3)).tolist() == expected


@pytest.mark.parametrize("draw", [random.uniform, random.normal])
def test_a_block_has_the_numbers_of_its_global_indices(draw) -> None:
    whole = draw(7, (6, 5, 8), (6, 5, 8), (0, 0, 0))
    assert torch.equal(draw(7, (2, 5, 3), (6, 5, 8), (4, 0, 5)), whole[4:6, :, 5:8])
    assert draw(7, (0, 3), (4, 3), (4, 0)).shape == (0, 3)
    assert draw(7, (), (), ()).shape == ()


def test_chunks_do_not_show() -> None:
    whole = random.uniform(3, (300_000,), (300_000,), (0,))
    assert torch.equal(random.uniform(3, (10,), (300_000,), (131_070,)), whole[131_070:131_080])


def test_keys_depend_on_seed_path_call_and_step() -> None:
    random.start(1)
    keys = {random.key("a"), random.key("b"), random.key("a", 1), random.key("a", step=5)}
    random.start(2)
    keys.add(random.key("a"))
    assert len(keys) == 5
    random.at_step(5)
    assert random.key("a") == random.key("a", step=5)
    random.start(0)


def test_uniform_has_its_mean_and_variance() -> None:
    drawn = _line(random.uniform, random.seeded_key(0, "x"))
    assert drawn.min() >= 0.0 and drawn.max() < 1.0
    assert abs(drawn.mean() - 0.5) < 5 / math.sqrt(12 * COUNT)
    assert abs(drawn.var() * 12 - 1) < 0.01
    counts = np.bincount((drawn * 100).astype(int), minlength=100)
    # Chi squared of 99 degrees of freedom: mean 99, deviation 14.
    assert ((counts - COUNT / 100) ** 2 / (COUNT / 100)).sum() < 99 + 5 * 14


def test_normal_has_its_moments() -> None:
    drawn = _line(random.normal, random.seeded_key(0, "x"))
    assert abs(drawn.mean()) < 5 / math.sqrt(COUNT)
    assert abs(drawn.var() - 1) < 0.02
    assert abs((drawn**3).mean()) < 0.05
    assert abs((drawn**4).mean() - 3) < 0.15


def test_neighbouring_indices_paths_calls_and_steps_are_uncorrelated() -> None:
    base = _line(random.uniform, random.seeded_key(0, "fc1.weight"))
    others = {
        "index": np.roll(base, 1),
        "row": np.roll(base, 64),
        "path": _line(random.uniform, random.seeded_key(0, "fc2.weight")),
        "call": _line(random.uniform, random.seeded_key(0, "fc1.weight", 1)),
        "step": _line(random.uniform, random.seeded_key(0, "fc1.weight", 0, 1)),
        "seed": _line(random.uniform, random.seeded_key(1, "fc1.weight")),
    }
    for name, other in others.items():
        assert abs(np.corrcoef(base, other)[0, 1]) < 5 / math.sqrt(COUNT), name


def test_keys_as_tensors_draw_the_same_of_values_beyond_32_bits() -> None:
    whole, offsets, shape = (1 << 20, 1 << 14), (1 << 19, 3), (5, 1001)
    random.start(7)
    [tensor], key = random.key_tensor([("blocks[3].h", 0)]), random.seeded_key(7, "blocks[3].h")
    for draw in (random.uniform, random.normal):
        assert torch.equal(draw(tensor, shape, whole, offsets), draw(key, shape, whole, offsets))
    assert torch.equal(kept(tensor, 0.3, shape, whole, offsets), kept(key, 0.3, shape, whole, offsets))
