"""Profiles: a text that is one is read, by the schema and by the reader alike; curves between and
outside of their points; what was measured comes before what is worked out."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.cost.collectives import Placing, seconds
from shardlang.cost.curves import curve
from shardlang.cost.hardware import MEASURED
from shardlang.cost.operators import attention, product, stream, update
from shardlang.cost.operators import copy as copied
from shardlang.cost.profile import Wrong, read_profile
from tests.cost.machines import POD

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "specs" / "profile.schema.json").read_text("utf-8"))
POINTS = [[1000, 10], [100000, 1000]]
PROFILE: dict[str, Any] = {
    "format": 1, "device": "round", "model": "Round 1", "driver": "1.2", "torch": "2.13.0", "asynchronous": False,
    "launch": 3, "step": 200, "beside": 1.2,
    "products": {"f32": {"m": [16, 64], "n": [16, 64], "k": [16, 64], "us": [1, 4, 4, 16, 4, 16, 16, 64]}},
    "attention": [{"dtype": "f32", "causal": True, "backward": False, "heads": 8, "width": 64, "points": POINTS}],
    "streams": {"": POINTS, "relu backward": [[1000, 20], [100000, 2000]]}, "updates": {"adamw": POINTS},
    "collectives": [{"kind": "all_reduce", "members": 2, "a_node": 2, "points": POINTS}], "copies": POINTS,
    "memory": {"context": 5e8},
}  # fmt: skip
US = 1e-6
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(sorted(PROFILE)), x, max_size=4),
    max_leaves=12,
)
MACHINE = replace(POD, profile=read_profile(json.dumps(PROFILE)), launch=3 * US)


def test_the_example_is_one_by_the_schema_too() -> None:
    jsonschema.validate(PROFILE, SCHEMA)


def test_a_curve_is_straight_in_logarithms_and_goes_on() -> None:
    """Twice as many decades, from 10 us at 1,000: 100 us at 10,000, and 10,000 us at a million."""
    found = curve([(x, y * US) for x, y in POINTS])
    for x, y in ((1000, 10), (10_000, 100), (100_000, 1000), (1_000_000, 10_000), (100, 10)):
        assert found.at(x) == pytest.approx(y * US, rel=1e-9)
    steep = curve([(1, 1.0), (10, 1000.0)])
    assert (steep.at(10**0.5), steep.at(100)) == (pytest.approx(1000**0.5), pytest.approx(10_000))
    falling = curve([(1, 3.0), (10, 2.0)])
    assert (falling.at(100), falling.at(0)) == (pytest.approx(2.0), pytest.approx(3.0))


def test_what_was_measured_comes_first() -> None:
    """32 is in the middle of 16 and 64: 8 us from 1 and 64, twice as long a sum twice that; and
    3 us of launch for each kernel."""
    assert product(MACHINE, 1, 32, 32, 32, "f32") == pytest.approx((8 + 3) * US)
    assert product(MACHINE, 1, 32, 32, 128, "f32") == pytest.approx((32 + 3) * US)
    assert product(MACHINE, 4, 32, 32, 32, "f32") == pytest.approx((32 + 3) * US)
    assert product(MACHINE, 1, 32, 32, 32, "bf16") == product(replace(POD, launch=3 * US), 1, 32, 32, 32, "bf16")
    assert stream(MACHINE, "gelu", 5000, 5000) == pytest.approx((100 + 3) * US)
    assert stream(MACHINE, "relu", 5000, 5000, backward=True) == pytest.approx((200 + 3) * US)
    assert update(MACHINE, "adamw", 10_000) == copied(MACHINE, 10_000) == pytest.approx(103 * US)
    assert attention(MACHINE, 16, 1000, 1000, 64, True, False, True, "f32", False) == pytest.approx(23 * US)
    assert seconds(MACHINE, "all_reduce", Placing(2, 2, 1), 1000) == pytest.approx(10 * US)
    assert seconds(MACHINE, "all_reduce", Placing(4, 4, 1), 1000) == seconds(POD, "all_reduce", Placing(4, 4, 1), 1000)


def test_work_that_is_queued_hides_its_launch() -> None:
    ahead = replace(MACHINE, profile=read_profile(json.dumps({**PROFILE, "asynchronous": True})))
    assert product(ahead, 1, 32, 32, 32, "f32") == pytest.approx(8 * US)
    assert product(ahead, 1, 16, 16, 16, "f32") == pytest.approx(3 * US)


def _changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    found = copy.deepcopy(PROFILE)
    at: Any = found
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    return found


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("format",), 2, "`format` is 2"), (("extra",), 1, "has `extra`"), (("device",), 5, "device is no text"),
        (("launch",), -1, "launch is no number"), (("launch",), True, "launch is no number"),
        (("beside",), 0, "beside is 0"), (("asynchronous",), 1, "asynchronous is neither"),
        (("streams",), [], "streams is no object"), (("streams", ""), [[1, 1]], "streams. is no list of 2"),
        (("streams", ""), [[1, 1], [2, 0]], "streams.[1][1] is 0"),
        (("streams", ""), [[1, 1], [2, "3"]], "streams.[1][1] is no number"),
        (("streams", ""), [[1, 1], [2, 3, 4]], "streams.[1] is no pair"),
        (("products", "f32", "us"), [1] * 7, "products.f32.us is no list of 8"),
        (("products", "f32", "us"), [1] * 9, "has 9 numbers, and its sizes make 8"),
        (("products", "f32", "m"), [64, 16], "products.f32.m[1] is not more"),
        (("products", "f32", "m"), [16, 64.5], "products.f32.m[1] is no whole number"),
        (("attention", 0, "heads"), 0, "attention[0].heads is no whole number"),
        (("collectives", 0, "kind"), "gossip", "collectives[0].kind is `gossip`"),
        (("collectives", 0), {}, "collectives[0] has no `kind`"), (("memory", "context"), "5", "memory.context is no"),
    ],
)  # fmt: skip
def test_a_profile_that_is_wrong_says_where(path: tuple[Any, ...], value: Any, where: str) -> None:
    with pytest.raises(Wrong) as found:
        read_profile(json.dumps(_changed(path, value)))
    assert where in str(found.value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", '{"format": 1}', '{"format": 1, "device": "a", "device": "b"}', "[" * 100_000,
     '{"format": 1, "device": "a", "launch": NaN}', '{"format": 1, "device": "a", "launch": 1e999}',
     '{"format": true, "device": "a"}', '{"format": 1, "device": "a", "launch": ' + "9" * 5000 + "}"],
)  # fmt: skip
def test_a_text_that_is_no_profile(text: str) -> None:
    with pytest.raises(Wrong):
        read_profile(text)


@settings(max_examples=60, deadline=None)
@given(ANYTHING)
def test_anything_else_is_refused_as_the_schema_refuses_it(value: Any) -> None:
    """What the reader takes, the schema takes."""
    given_ = {**PROFILE, **value} if isinstance(value, dict) else value
    try:
        read_profile(json.dumps(given_))
    except Wrong:
        return
    jsonschema.validate(given_, SCHEMA)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6), st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_of_what_was_measured_is_never_faster(m: int, n: int, more: int, moved: float, extra: float) -> None:
    assert product(MACHINE, 1, m + more, n, 32, "f32") >= product(MACHINE, 1, m, n, 32, "f32") * (1 - 1e-9)
    assert stream(MACHINE, "", moved + extra, 0) >= stream(MACHINE, "", moved, 0)
    assert seconds(MACHINE, "all_reduce", Placing(2, 2, 1), moved + extra) >= seconds(
        MACHINE, "all_reduce", Placing(2, 2, 1), moved
    )


def test_numbers_of_a_profile_are_measured(tmp_path: Path) -> None:
    from shardlang.cost.hardware import described
    from tests.cost.test_hardware import PROGRAM
    from tests.emit import sources

    (tmp_path / "round.json").write_text(json.dumps(PROFILE))
    text = 'device round {\n  memory = 1GB\n  profile = "round.json"\n}\n'
    found = described(sources.checked(text + PROGRAM, str(tmp_path / "net.shard")))
    assert found is not None
    assert (found.origin("launch"), found.step, found.shares.beside) == (MEASURED, pytest.approx(200 * US), 1.2)
    assert math.isclose(found.launch, 3 * US)
