"""Records are as the standard library's dataclasses, but that frozen ones are so for the type checker alone."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import field
from typing import Any

import pytest

from shardlang.frozen.records import dataclass

KINDS: list[dict[str, Any]] = [
    dict(zip(("frozen", "slots", "eq"), chosen, strict=True)) for chosen in itertools.product((False, True), repeat=3)
]


class Plain:
    a: int
    b: tuple[int, ...] = (1, 2)
    c: str = field(default="c", compare=False, repr=False)


class Single:
    a: float


class Empty:
    pass


class Own:
    a: int

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


def both(cls: type, kind: dict[str, Any]) -> tuple[Any, Any]:
    """A record and a dataclass of the same text."""
    names, annotations = vars(cls), {"__annotations__": vars(cls).get("__annotations__", {})}
    body = {name: value for name, value in names.items() if name not in ("__dict__", "__weakref__", "__annotations__")}
    copies = [type(cls.__name__, (), {**body, **annotations}) for _ in range(2)]
    return dataclass(**kind)(copies[0]), dataclasses.dataclass(**kind)(copies[1])


def hashed(value: object) -> object:
    try:
        return hash(value)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("arguments", [(3,), (3, (4,)), (3, (4,), "d")])
def test_as_dataclasses(kind: dict[str, Any], arguments: tuple[Any, ...]) -> None:
    record, plain = both(Plain, kind)
    for other in ((3,), (3, (4,)), (3, (4,), "e"), (5,)):
        same = [cls(*arguments) == cls(*other) for cls in (record, plain)]
        assert same[0] == same[1]
        if kind["frozen"] and kind["eq"]:
            assert (hash(record(*arguments)) == hash(record(*other))) == same[0]
    assert repr(record(*arguments)) == repr(plain(*arguments))
    assert record(*arguments) != plain(*arguments)
    assert hasattr(record(1), "__dict__") == hasattr(plain(1), "__dict__")
    changed = dataclasses.replace(record(*arguments), a=9)
    assert changed.a == 9
    assert [f.name for f in dataclasses.fields(record)] == ["a", "b", "c"]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_few_fields(kind: dict[str, Any]) -> None:
    record, plain = both(Single, kind)
    nan = float("nan")
    assert (record(nan) == record(nan)) == (plain(nan) == plain(nan))
    if not (kind["eq"] and kind["frozen"]):
        assert (hashed(record(1)) == "unhashable type: 'Single'") == (hashed(plain(1)) == "unhashable type: 'Single'")
    else:
        assert hash(record(1.0)) == hash(plain(1.0))
    empty, plainly = both(Empty, kind)
    assert (empty() == empty()) == (plainly() == plainly())
    assert repr(empty()) == repr(plainly()) == "Empty()"


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_methods_of_a_class_stay(kind: dict[str, Any]) -> None:
    record, _ = both(Own, kind)
    assert record(1) == record(2)
    assert hash(record(1)) == 7
    assert repr(record(1)) == "own"
