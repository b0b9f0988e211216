"""Paths that stand for several: what each pattern covers, and ranges in order."""

from __future__ import annotations

import pytest

from shardlang.patterns import covered, expanded, matcher

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
