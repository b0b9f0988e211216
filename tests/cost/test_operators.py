"""Seconds of operators: numbers worked out by hand, and more work that never takes less time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.cost.operators import attention, copy, product, stream, update
from tests.cost.machines import POD

SIZES = st.integers(1, 5000)
TYPES = st.sampled_from(["bf16", "f16", "f32", "f64"])


def test_a_large_product_is_bound_by_compute() -> None:
    """4096 x 4096 by tiles of 256 x 128: 16 x 32 = 512 tiles are 4 whole waves on 128 units, each
    128 x 2 x 256 x 128 x (4096 + 3 x 1000 / 3) = 42.748 GFLOP (1000 FLOP for 3 bytes of memory, and
    3 results to move) at 0.6 PFLOP/s = 71.2472 us; 4 us of launch."""
    assert product(POD, 1, 4096, 4096, 4096, "bf16") == pytest.approx(4 * 71.2472e-6 + 4e-6, rel=1e-4)


def test_a_product_with_a_vector_is_bound_by_memory() -> None:
    """A matrix of 8192 x 8192 in bf16 is 134.2 MB, the vectors 32 KB: 44.75 us at 3 TB/s."""
    assert product(POD, 1, 8192, 1, 8192, "bf16") == pytest.approx(44.7502e-6 + 4e-6, rel=1e-4)


def test_a_wave_that_is_not_full_counts_by_half() -> None:
    """129 tiles of 64 x 64, of one row of tiles, on 128 units: (2 + 129/128) / 2 waves, not 1."""
    machine = replace(POD, launch=0.0, bandwidth=1e18)
    one, more = (product(machine, batch, 64, 64, 65536, "bf16") for batch in (128, 129))
    assert more / one == pytest.approx((2 + 129 / 128) / 2, rel=1e-9)


def test_attention_fused_forward_and_backward() -> None:
    """32 heads of 4096 x 4096 x 128, causal: 4 x 32 x 4096^2 x 128 / 2 = 137.4 GFLOP, at half a
    PFLOP/s 274.9 us; backward 2.5 times as many at 0.42: 818.1 us. Cut, nothing is skipped."""
    given_ = (32, 4096, 4096, 128)
    assert attention(POD, *given_, True, False, True, "bf16", False) == pytest.approx(278.878e-6, rel=1e-4)
    assert attention(POD, *given_, True, False, True, "bf16", True) == pytest.approx(822.085e-6, rel=1e-4)
    cut = attention(POD, *given_, True, True, True, "bf16", False)
    assert cut == attention(POD, *given_, False, False, True, "bf16", False) == pytest.approx(553.756e-6, rel=1e-4)


def test_attention_in_pieces_pays_for_its_scores() -> None:
    """Scores of 32 x 4096^2 in bf16 are 1.07 GB: written, masked, taken through a softmax and read
    they take longer than the fused kernel takes for all."""
    given_ = (32, 4096, 4096, 128, True, False)
    for backward in (False, True):
        pieces = attention(POD, *given_, False, "bf16", backward)
        assert pieces > 2 * attention(POD, *given_, True, "bf16", backward)


def test_streams_updates_and_copies() -> None:
    """3 GB at 0.85 x 3 TB/s = 1176.47 us. AdamW: 28 bytes of each of 10^8: 1098.04 us. 1 GB from
    the host at 25 GB/s: 40 ms."""
    assert stream(POD, "add", 2e9, 1e9) == pytest.approx(1180.47e-6, rel=1e-5)
    assert update(POD, "adamw", 100_000_000) == pytest.approx(1102.04e-6, rel=1e-5)
    assert copy(POD, 1e9) == pytest.approx(40.004e-3, rel=1e-6)


@settings(max_examples=150, deadline=None)
@given(SIZES, SIZES, SIZES, SIZES, SIZES, TYPES)
def test_more_of_a_product_is_never_faster(batch: int, m: int, n: int, k: int, more: int, dtype: str) -> None:
    least = product(POD, batch, m, n, k, dtype)
    assert least > 0
    for larger in ((batch + more, m, n, k), (batch, m + more, n, k), (batch, m, n + more, k), (batch, m, n, k + more)):
        assert product(POD, *larger, dtype) >= least


@settings(max_examples=100, deadline=None)
@given(SIZES, SIZES, SIZES, st.sampled_from([32, 64, 128]), st.booleans(), st.booleans(), st.booleans(), SIZES)
def test_more_of_attention_is_never_faster(
    heads: int, queries: int, keys: int, width: int, causal: bool, fused: bool, backward: bool, more: int
) -> None:
    def time(heads: int, queries: int, keys: int) -> float:
        return attention(POD, heads, queries, keys, width, causal, False, fused, "bf16", backward)

    least = time(heads, queries, keys)
    for larger in ((heads + more, queries, keys), (heads, queries + more, keys), (heads, queries, keys + more)):
        assert time(*larger) >= least


@pytest.mark.parametrize("field", ["compute", "bandwidth"])
def test_a_faster_device_is_never_slower(field: str) -> None:
    faster = replace(POD, **{field: 2 * getattr(POD, field)})
    for sizes in ((1, 4096, 4096, 4096), (1, 8192, 1, 8192), (64, 128, 128, 64)):
        assert product(faster, *sizes, "bf16") <= product(POD, *sizes, "bf16")
