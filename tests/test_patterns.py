"""Paths that stand for several: what each pattern covers, and ranges in order."""

from __future__ import annotations

import random
import re

import pytest

from shardlang.paths.patterns import (
    Cuts,
    SingleLayers,
    count,
    covered,
    cut_as_asked,
    expanded,
    indexes,
    matcher,
    places,
)
from tests.spent import at_most

PATHS = ["norm.w", "a.norm.w", "a.norm2.b", "a.b[0].w", "a.b[3].w", "a.b[12].norm.w", "a.bc"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("**", PATHS),
        ("a", PATHS[1:]),
        ("a.b", PATHS[3:6]),
        ("a.b[*]", PATHS[3:6]),
        ("a.b[0..4]", PATHS[3:5]),
        ("a.b[3].w", ["a.b[3].w"]),
        ("**.norm", ["norm.w", "a.norm.w", "a.b[12].norm.w"]),
        ("**.*norm*.**", ["norm.w", "a.norm.w", "a.norm2.b", "a.b[12].norm.w"]),
        ("*.b*", PATHS[3:]),
        ("**.w", [path for path in PATHS if path.endswith(".w")]),
    ],
)
def test_a_pattern_covers_what_is_below_what_it_names(pattern: str, found: list[str]) -> None:
    assert [path for path in PATHS if path in covered([pattern], PATHS)] == found


def test_a_match_is_the_part_that_is_named() -> None:
    assert matcher("**.norm")("a.b[12].norm.w") == "a.b[12].norm" and not matcher("a.norm")("a.norm2")


def test_the_first_range_changes_slowest() -> None:
    assert expanded("a[1..3].b[0..2].w") == ["a[1].b[0].w", "a[1].b[1].w", "a[2].b[0].w", "a[2].b[1].w"]
    assert (expanded("a.w"), expanded("a[2..2]")) == (["a.w"], [])


def test_a_run_of_layers_is_told_at_one_place() -> None:
    run = "a.b[3-6].c[0].d[7-9].w"
    assert count(run) == 6 and count("a-b.c[3]") == count("w") == 1
    assert places(run) == [f"a.b[{i}].c[0].d[{j}].w" for i in (3, 4, 5) for j in (7, 8)] and places("w") == ["w"]
    assert (indexes("3"), indexes("3-6")) == (range(3, 4), range(3, 6))
    assert covered(["a.b[*].c"], [run]) == covered(["**.w"], [run]) == {run}
    assert covered(["a.b[3..6]"], [run]) == covered(["a.b[0..9].c[0]"], [run]) == {run}
    assert not covered(["a.b[2]", "a.b[6..9]", "a.b[3].c[1]", "a.b[*].c[0].d[0..7]"], [run])
    asked = {"a.b[3].c": {"a.b": {3, 4}}, "a.b[0..4]": {"a.b": {0, 4}}, "**.c[0].d[8]": {"a.b[3-6].c[0].d": {8, 9}}}
    for numbered, cuts in asked.items():
        with pytest.raises(SingleLayers) as raised:
            covered([numbered], [run])
        assert raised.value.cuts == cuts


def test_cuts_are_made_until_nothing_asks_for_more() -> None:
    seen = list[Cuts]()

    def work(cuts: Cuts) -> str:
        seen.append(cuts)
        if 8 not in cuts.get("a", ()):
            raise SingleLayers({"a": frozenset((4 * len(seen),))})
        return "done"

    assert cut_as_asked(work) == "done"
    assert seen == [{}, {"a": {4}}, {"a": {4, 8}}]

    def never(cuts: Cuts) -> str:
        raise SingleLayers({"a": frozenset((1,))})

    assert cut_as_asked(never) is None


def _tried_everywhere(pattern: str) -> re.Pattern[str]:
    """The plain expression of a pattern without indexes, each `*` and `**` tried at every place."""
    parts = pattern.split(".")
    names = [re.escape(part).replace(r"\*", r"[^.\[]*") for part in parts]
    texts = [r"(?:[^.]+\.)*" if part == "**" else rf"{name}\." for part, name in zip(parts, names, strict=True)]
    last = ".+" if parts[-1] == "**" else names[-1]
    return re.compile(rf"({''.join(texts[:-1])}{last})(?:$|[.\[:])")


def test_a_pattern_matches_what_trying_all_places_finds() -> None:
    draws = random.Random(0)
    for _ in range(4000):
        pattern = ".".join(
            draws.choice(["**", "**", "a", "*a", "a*b*", "*a*b", "b", "*"]) for _ in range(draws.randint(1, 9))
        )
        path = ".".join(draws.choice(["a", "b", "ab", "aab", "bab"]) for _ in range(draws.randint(1, 9)))
        wanted = _tried_everywhere(pattern).match(path)
        assert matcher(pattern)(path) == (wanted[1] if wanted else ""), (pattern, path)


@pytest.mark.parametrize(
    "pattern, path",
    [
        ("*p" * 25 + "*x", "p" * 80),
        ("**." * 25 + "x", ".".join(["a"] * 40)),
        ("**.a." * 25 + "x", ".".join(["a"] * 60)),
        ("a*a" * 2000, "a" * 2000),
    ],
)
def test_a_pattern_takes_no_time_without_a_bound(pattern: str, path: str) -> None:
    with at_most(1.0):
        assert matcher(pattern)(path) == ""
