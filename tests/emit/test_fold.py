"""Layers that are the same are written once, and what is written stands for what there was, in its order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang import runtime as rt
from shardlang.emit.text.fold import Item, Layers, folded, patterns
from shardlang.paths import patterns as read
from shardlang.runtime.program import RunTensor
from tests.emit.sources import main_file
from tests.emit.test_settings import TEXT

NAMES = ["w", "b", "blocks[0].w", "blocks[1].w", "blocks[2].w", "blocks[2].b", "blocks[4].w"]
NESTED = [f"net.a[{i}].{x}" for i in range(4) for x in ("w", *(f"e[{j}].w" for j in range(3)))]
ALL = sorted([*NAMES, *NESTED])


@st.composite
def paths(draw: st.DrawFn) -> tuple[list[str], list[bool]]:
    """Some of the paths, in order or in another, and a mark for each.

    Only truth values are drawn: of whole numbers Hypothesis also tries those in the source of all modules that are
    imported, and reads these for the first of them, which takes longer than all else here.
    """
    found: deque[tuple[str, bool]] = deque()
    shuffled = draw(st.booleans())
    for path in ALL:
        if draw(st.booleans()):
            marked = path, draw(st.booleans())
            (found.appendleft if shuffled and draw(st.booleans()) else found.append)(marked)
    return [path for path, _ in found], [mark for _, mark in found]


def declared(items: Sequence[Item | Layers]) -> Iterator[RunTensor]:
    """As the emitted program declares them."""
    for item in items:
        if isinstance(item, Layers):
            yield from rt.each(item.path, *declared(item.items))
        else:
            yield RunTensor(item.path, (), item.said)


@settings(deadline=None)
@given(paths())
def test_what_is_folded_unfolds_to_the_same_in_the_same_order(drawn: tuple[list[str], list[bool]]) -> None:
    items = [Item(path, ("odd",) if odd else ()) for path, odd in zip(*drawn, strict=True)]
    assert [(d.path, d.init) for d in declared(folded(items))] == [(item.path, item.said) for item in items]


def test_layers_that_differ_give_several_ranges() -> None:
    items = [Item(f"a[{i}].e[{j}].w", ("x",) if i == 2 else ()) for i in range(5) for j in range(3)]
    assert [item.path for item in folded(items)] == ["a[0..2]", "a[2]", "a[3..5]"]
    first = folded(items)[0]
    assert isinstance(first, Layers) and first.items == (Layers("e", 0, 3, (Item("w", ()),)),)


@given(paths())
def test_patterns_cover_what_is_chosen_and_no_more(drawn: tuple[list[str], list[bool]]) -> None:
    every, marks = drawn
    chosen = {path for path, mark in zip(every, marks, strict=True) if mark}
    found = patterns(chosen, every)
    assert read.covered(found, every) == chosen
    assert len(found) <= len(chosen)


def test_patterns_are_prefixes_and_ranges() -> None:
    paths = ["embed.w", *(f"net.blocks[{i}].{x}" for i in range(6) for x in ("q.w", "q.b", "k.b")), "head.w"]
    assert patterns([p for p in paths if not p.startswith("head")], paths) == ("embed", "net")
    assert patterns([p for p in paths if p.endswith(".b")], paths) == ("net.blocks[0..6].q.b", "net.blocks[0..6].k")
    assert patterns([p for p in paths if "[1]" in p or "[2]" in p], paths) == ("net.blocks[1..3]",)
    assert (patterns(paths, paths), patterns([], paths)) == (("**",), ())


def test_an_optimizer_is_for_the_selectors_that_are_written_unless_another_takes_of_them() -> None:
    one = TEXT.replace("optimizer at **.bias =", "optimizer at back.bias = sgd(lr = 0.1)\n  optimizer at fc, **.bias =")
    text = main_file(one, 4)
    assert 'at=("back.bias",)' in text and 'at=("fc",)' in text and "**" not in text
    assert 'at=("fc", "back.b*")' in main_file(TEXT.replace("**.bias", "fc, back.b*"), 4)


def test_a_run_is_within_neighbours_that_are_the_same() -> None:
    def listed(*layers: str) -> list[Item | Layers]:
        return folded([Item(f"a[{at}].w", (said,)) for at, _, said in (layer.partition(":") for layer in layers)])

    assert listed("0:x", "1-5:x", "5:x", "6:y") == [
        Layers("a", 0, 6, (Item("w", ("x",)),)), Layers("a", 6, 7, (Item("w", ("y",)),)),
    ]  # fmt: skip
    for alone in (("0:y", "1-5:x", "5:x"), ("0:x", "1-5:x", "5:y"), ("1-5:x",)):
        with pytest.raises(read.SingleLayers):
            listed(*alone)
    paths = ["a[0].w", "a[1-5].w", "a[5].w", "b"]
    assert patterns(paths[:3], paths) == ("a",)
    assert patterns(["a[0].w", "a[1-5].w", "a[5].w"], [*paths, "a[0].b", "a[1-5].b", "a[5].b"]) == ("a[0..6].w",)
