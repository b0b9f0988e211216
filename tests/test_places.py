"""Places: a pattern covers there what it covers path by path, and the nearest name keeps its layers."""

from __future__ import annotations

import random

import pytest

from shardlang.graph.places import PathIndex
from shardlang.paths.patterns import SingleLayers, matcher
from tests.spent import at_most


def test_a_pattern_covers_in_places_what_it_covers_path_by_path() -> None:
    draws = random.Random(0)
    some = 0
    for _ in range(3000):
        parts = ["a", "ab", "b", "a[0]", "a[1]", "a[12]", "b[1]", "ab[2]:1"]
        paths = [".".join(draws.choices(parts, k=draws.randint(1, 4))) for _ in range(12)]
        wanted = [*parts[:-1], "*", "**", "a*", "*b", "a[*]", "*[1]", "a[0..2]", "*[*]"]
        pattern = ".".join(draws.choices(wanted, k=draws.randint(1, 4)))
        match = matcher(pattern)
        expected = [(path, own) for path in dict.fromkeys(paths) if (own := match(path))]
        assert PathIndex(paths).covered(pattern) == expected, (pattern, paths)
        some += bool(expected)
    assert some > 500


def test_a_number_of_a_layer_asks_for_a_cut_of_its_run() -> None:
    run = PathIndex(["a[0].w", "a[3-120].w", "b.w"])
    assert run.covered("a[*].w") == [("a[0].w", "a[0].w"), ("a[3-120].w", "a[3-120].w")]
    assert run.covered("a[0].w") == [("a[0].w", "a[0].w")] and not run.covered("b[1]")
    assert run.covered("a[3..120]") == [("a[3-120].w", "a[3-120]")]
    for numbered, cuts in (("a[5].w", {5, 6}), ("a[0..4]", {0, 4})):
        with pytest.raises(SingleLayers) as asked:
            run.covered(numbered)
        assert asked.value.cuts == {"a": cuts}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("blocs[*].w", "blocks[*].w"),
        ("blocs[3].w", "blocks[3].w"),
        ("blocks[9].w", "blocks[7].w"),
        ("embd.w", "embed.w"),
        ("other", None),
    ],
)
def test_the_nearest_name_keeps_the_layers_that_are_written(written: str, meant: str | None) -> None:
    assert PathIndex([*(f"blocks[{n}].w" for n in range(8)), "embed.w"]).nearest(written) == meant


def test_many_patterns_take_no_time_for_what_they_do_not_cover() -> None:
    with at_most(2.0):
        places = PathIndex(f"a[{n}].{name}" for n in range(14_000) for name in ("w", "b"))
        for n in range(2_000):
            assert places.covered(f"a[{n}]") and not places.covered(f"a[*].q{n}") and not places.covered(f"b[{n}].**")
            assert places.nearest(f"b[{n}].q{n}") is None


def test_a_number_that_no_layer_has_is_offered_the_nearest() -> None:
    places = PathIndex([f"blocks[{n}].experts[{m}].up" for n in range(3) for m in range(8)])
    assert places.nearest("blocks[200].experts[4].up") == "blocks[2].experts[4].up"
    assert places.nearest("blocks[1].experts[9].up") == "blocks[1].experts[7].up"
    assert places.nearest("blocks[*].experts[9].up") == "blocks[0].experts[7].up"
