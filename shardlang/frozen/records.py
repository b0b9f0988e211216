"""`dataclass` as the standard library's, made in a third of the time: every command makes a hundred
and fifty at its start.

To the type checker it is the standard library's. At run time no text is compiled to compare, hash,
show or freeze a class; that frozen ones are not written to is left to the type checker."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar

Record = TypeVar("Record")
Result = TypeVar("Result")

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True):
        """The class with an `__init__` of its fields, compared and hashed by their values."""

        def made(cls: type) -> type:
            own = {name for name, value in vars(cls).items() if value is not None}
            # Without a text of its own a dataclass works out its signature for one.
            cls.__doc__ = cls.__doc__ or cls.__name__
            record = dataclasses.dataclass(slots=slots, eq=False, repr=False)(cls)
            given = {"__repr__": _shown, **(_compared(record, frozen) if eq else {})}
            for name in given.keys() - own:
                setattr(record, name, given[name])
            return record

        return made if cls is None else made(cls)


def remembered(function: Callable[[Record], Result]) -> Callable[[Record], Result]:
    """`function` of a frozen record (without slots), computed once: the record keeps the result."""
    name = f"{function.__module__}.{function.__qualname__}"

    @wraps(function)
    def found(record: Record) -> Result:
        kept = vars(record)
        if name not in kept:
            kept[name] = function(record)
        return kept[name]  # type: ignore[no-any-return]

    return found


@recursive_repr()
def _shown(self: Any) -> str:
    fields = (field for field in self.__dataclass_fields__.values() if field.repr)
    return f"{type(self).__qualname__}({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in fields)})"


def _compared(cls: Any, frozen: bool) -> dict[str, Any]:
    """The comparison of two of a class, and its hash: None if not frozen, for it may change."""
    values = _values([field.name for field in cls.__dataclass_fields__.values() if field.compare])

    def __eq__(self: Any, other: object) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}


def _values(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """A function that gives the attributes of these names."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple(getattr(record, name) for name in names)
