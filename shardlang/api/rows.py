"""An object of JSON as a frozen value, whose keys are attributes too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn


class Row(Mapping[str, Any]):
    """`row.name` is `row["name"]`. Lists are tuples, objects within are rows."""

    __slots__ = ("_given",)
    _given: Mapping[str, Any]

    def __init__(self, given: Mapping[str, Any]) -> None:
        object.__setattr__(self, "_given", given)

    def __getitem__(self, key: str) -> Any:
        return frozen(self._given[key])

    def __getattr__(self, key: str) -> Any:
        if key not in self._given:
            raise AttributeError(f"there is no `{key}`; there are {', '.join(self._given)}", name=key, obj=self)
        return self[key]

    def __setattr__(self, key: str, value: object) -> NoReturn:
        raise AttributeError(f"`{key}` cannot be set: the value is frozen")

    def __delattr__(self, key: str) -> NoReturn:
        raise AttributeError(f"`{key}` cannot be deleted: the value is frozen")

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def __hash__(self) -> int:
        return hash(json.dumps(self._given, sort_keys=True))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._given]

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{key}={self[key]!r}' for key in self)})"

    def __reduce__(self) -> tuple[type[Row], tuple[Mapping[str, Any]]]:
        return Row, (self._given,)


def frozen(given: Any) -> Any:
    """A value of JSON that cannot be written to."""
    if isinstance(given, Mapping):
        return Row(given)
    return tuple(map(frozen, given)) if isinstance(given, list | tuple) else given
