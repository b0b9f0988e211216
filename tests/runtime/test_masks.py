"""What a dropout keeps: the same as numpy's, whatever the block and the kind of key; in its share, and independent of
neighbours, rows and keys.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from shardlang.interpret.meaning import draws
from shardlang.runtime import random
from shardlang.runtime.functions.masks import kept

COUNT = 400_000


def _line(key: int, p: float = 0.5, count: int = COUNT) -> torch.Tensor:
    return kept(key, p, (count,), (count,), (0,))


@pytest.mark.parametrize("whole", [(5, 7, 9), (4, 6, 8), (3, 1, 2), (6, 5, 1)])
def test_a_block_has_what_the_whole_has_there(whole: tuple[int, ...]) -> None:
    """At every offset: with a number as key, and with a tensor, as compiled code has it."""
    random.start(7, 3)
    key, [given] = random.key("h"), random.key_tensor([("h", 0)])
    all_ = draws.kept(key, 0.3, whole)  # type: ignore[arg-type]
    for at in itertools.product(*map(range, whole)):
        shape = tuple(min(3, full - begin) for full, begin in zip(whole, at, strict=True))
        here = all_[tuple(slice(begin, begin + size) for begin, size in zip(at, shape, strict=True))]
        assert torch.equal(kept(key, 0.3, shape, whole, at), here)
        assert torch.equal(kept(given, 0.3, shape, whole, at), here)
    random.start(0)


def test_blocks_of_no_elements_and_of_no_dims() -> None:
    assert kept(7, 0.3, (0, 3), (4, 3), (4, 0)).shape == (0, 3)
    assert kept(7, 0.3, (4, 0), (4, 3), (0, 3)).shape == (4, 0)
    assert torch.equal(kept(7, 0.3, (), (), ()), kept(7, 0.3, (1,), (1,), (0,)).view(()))


@pytest.mark.parametrize("key", [0, 2**62, 2**64 - 1])
def test_a_value_of_more_elements_than_a_counter_has_numbers(key: int) -> None:
    """Counters go round at 2^64."""
    whole, at = (1 << 40, 6), (1 << 39, 3)
    assert torch.equal(kept(key, 0.3, (5, 3), whole, at), draws.kept(key, 0.3, whole, at, (5, 3)))
    whole, at = (1 << 34,), ((1 << 34) - 9,)
    assert torch.equal(kept(key, 0.3, (9,), whole, at), draws.kept(key, 0.3, whole, at, (9,)))


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _line(3, 0.2, 1001)
    monkeypatch.setattr(random, "CHUNK", 64)
    assert torch.equal(_line(3, 0.2, 1001), whole)


@pytest.mark.parametrize("p", [1e-12, 1e-6, 0.1, 0.3, 0.5, 0.9, 1 - 1e-6, 1 - 1e-12])
def test_the_share_that_falls_out(p: float) -> None:
    fallen = int((~_line(11, p)).sum())
    assert abs(fallen - COUNT * p) < 5 * math.sqrt(COUNT * p * (1 - p)) + 1e-3


@pytest.mark.parametrize("key", [1, 2, 3, 4])
def test_an_element_is_kept_up_to_its_number(key: int) -> None:
    """It falls out where p is more, however little: in compiled code and by numpy too."""
    random.start(key)
    number, [given] = random.key("h"), random.key_tensor([("h", 0)])
    most = _most(number)
    for p, stays in ((most / 2**32, True), ((most + 2**-8) / 2**32, False), ((most - 2**-8) / 2**32, True)):
        for of in (number, given):
            assert bool(kept(of, p, (1,), (1,), (0,))) == stays
        assert bool(draws.kept(number, p, (1,))) == stays  # type: ignore[arg-type]
    random.start(0)


def _most(key: random.Key) -> int:
    """The greatest p of an only element that keeps it, times 2^32."""
    low, high = 0, 1 << 32
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bool(draws.kept(key, middle / 2**32, (1,))) else (low, middle)  # type: ignore[arg-type]
    return low


def test_keys_depend_on_all_of_their_parts() -> None:
    """Of a key of 64 bits the lower 62 count."""
    assert len({tuple(_line(1 << bit, 0.5, 64).tolist()) for bit in range(62)}) == 62


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_masks_are_uncorrelated(p: float) -> None:
    """With those of neighbours, of a word's other half, of rows, and of other keys."""
    base = _line(random.seeded_key(0, "h"), p).double().numpy()
    others = {lag: np.roll(base, lag) for lag in (1, 2, 3, 4, 64, 768, 1024, 65536)}
    keys = {"path": ("g", 0, 0), "call": ("h", 1, 0), "step": ("h", 0, 1)}
    others |= {name: _line(random.seeded_key(0, *of), p).double().numpy() for name, of in keys.items()}
    for name, other in others.items():
        assert abs(np.corrcoef(base, other)[0, 1]) < 5 / math.sqrt(COUNT), name


def test_sixteen_neighbours_have_all_patterns_alike() -> None:
    """Chi squared of 65535 degrees of freedom."""
    bits = _line(random.seeded_key(0, "h"), 0.5, 1 << 24).numpy()
    counts = np.bincount(np.packbits(bits).view(np.uint16), minlength=1 << 16)
    expected = bits.size / 16 / (1 << 16)
    found = ((counts - expected) ** 2 / expected).sum()
    assert abs(found - 65535) < 5 * math.sqrt(2 * 65535)


def test_a_place_is_kept_as_often_as_another() -> None:
    """Over the keys of 2000 steps; chi squared of 512 degrees of freedom."""
    kept_in = sum(_line(random.seeded_key(0, "h", 0, step), 0.5, 512).double() for step in range(2000))
    found = float(((kept_in - 1000) ** 2 / 500).sum())
    assert abs(found - 512) < 5 * math.sqrt(2 * 512)
