"""Data sources of the user's own: an object with examples by number, or with a stream of them ->
examples as arrays of the program's fields.

Each example that an object gives is looked at, and a mistake names the file, the example and the
field. Order and cutting are loader.py's, streams are streams.py's."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shardlang.errors import RunError
from shardlang.extensions.loaded import OwnFunction, calling
from shardlang.runtime.data.dataset import Origin, fitted
from shardlang.runtime.program import BatchSource, Extent, SourceField

# Examples by number, ascending, and the fields of each: [numbers, ...].
Window = tuple[np.ndarray, Mapping[str, np.ndarray]]


class OwnDataset(ABC):
    """A data source of the user's own, as a `Dataset`. shuffled: whether the run orders it."""

    shuffled: bool

    def __init__(self, source: BatchSource, made: Any, file: Path) -> None:
        self.source, self.made, self.file = source, made, file
        self.name = source.arguments["call"].name
        self.length = 0
        self.notes: list[str] = []
        self.window: Window = np.empty(0, np.int64), {}

    @abstractmethod
    def fetch(self, epoch: int, numbers: np.ndarray) -> Mapping[str, np.ndarray]:
        """The fields of some examples, ascending, each once."""

    def afresh(self) -> OwnDataset:
        """The same source, whose position does not move this one's."""
        return type(self)(self.source, self.made, self.file)

    def ready(self, epoch: int, numbers: np.ndarray) -> Window:
        """Reads some examples, which `take` cuts then."""
        self.window = numbers, self.fetch(epoch, numbers) if len(numbers) else {}
        return self.window

    def take(self, field: SourceField, examples: np.ndarray, block: Extent) -> np.ndarray:
        numbers, arrays = self.window
        if not len(examples):
            return np.zeros((0, *block.shape[1:]))
        if not np.isin(examples, numbers).all():  # looked at on its own, as after a failure
            numbers, arrays = self.ready(1, np.unique(examples))
        found: np.ndarray = arrays[field.name][np.searchsorted(numbers, examples)]
        return found[(slice(None), *block.slices()[1:])]

    # --- what an object gives -> arrays ---

    def arrays(self, numbers: Sequence[int], rows: Sequence[Any]) -> dict[str, np.ndarray]:
        """The fields of examples, each given as a mapping from names."""
        origin = Origin(self.file, numbers=numbers)
        found = {}
        for field in self.source.fields:
            parts = [self._cell(field, number, row) for number, row in zip(numbers, rows, strict=True)]
            array = self._stacked(field, numbers, parts)
            found[field.name] = fitted(field, {field.name: array}, origin)
        return found

    def _cell(self, field: SourceField, number: int, row: Any) -> np.ndarray:
        if not isinstance(row, Mapping):
            help = f'give a dict: {{"{self.source.fields[0].name}": ...}}'
            raise self.wrong(f"example {number} is {_kind(row)}, where a dict by field is due", help)
        if field.name not in row:
            there = ", ".join(f"`{name}`" for name in row) or "nothing"
            raise self.wrong(f"example {number} has no field `{field.name}`; it has {there}")
        return self.array(row[field.name], f"`{field.name}` of example {number}")

    def array(self, value: Any, what: str) -> np.ndarray:
        """A value of the user's as numbers."""
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            value = value.float() if value.dtype is torch.bfloat16 else value
        with calling("SH502", what, self.file):
            array: np.ndarray = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise self.wrong(f"{what} is {_kind(value)}, where numbers are due")
        return array

    def _stacked(self, field: SourceField, numbers: Sequence[int], parts: Sequence[np.ndarray]) -> np.ndarray:
        due = tuple(field.shape[1:])
        for number, part in zip(numbers, parts, strict=True):
            if part.shape != due and [n for n in part.shape if n != 1] != [n for n in due if n != 1]:
                fact = f"`{field.name}` of example {number} has shape {list(part.shape)}, where the program has"
                raise self.wrong(f"{fact} {list(due)}")
        return np.stack([part.reshape(due) for part in parts])

    def wrong(self, fact: str, help: str = "") -> RunError:
        return RunError("SH502", fact, file=self.file, help=help)


class ByNumber(OwnDataset):
    """An object with `__len__` and `__getitem__(i)`, or `__getitems__(list)`."""

    shuffled = True

    def __init__(self, source: BatchSource, made: Any, file: Path) -> None:
        super().__init__(source, made, file)
        with calling("SH502", f"`len({self.name}(..))`", file):
            self.length = len(made)
        self.notes = [f"{source.kind}: {self.length:,} examples by `{self.name}` of {file.name}"]

    def fetch(self, epoch: int, numbers: np.ndarray) -> Mapping[str, np.ndarray]:
        asked = [int(n) for n in numbers]
        if not hasattr(type(self.made), "__getitems__"):
            return self.arrays(asked, [self._item(number) for number in asked])
        with calling("SH502", f"`{self.name}.__getitems__` of examples {_some(asked)}", self.file):
            rows = self.made.__getitems__(asked)
        if isinstance(rows, Mapping):
            columns = {name: self._column(name, column, len(asked)) for name, column in rows.items()}
            rows = [{name: column[at] for name, column in columns.items()} for at in range(len(asked))]
        if not isinstance(rows, Sequence) or len(rows) != len(asked):
            count = f"{len(rows)} examples" if isinstance(rows, Sequence) else _kind(rows)
            raise self.wrong(f"`{self.name}.__getitems__` gives {count}, where {len(asked)} are due")
        return self.arrays(asked, rows)

    def _column(self, name: Any, column: Any, count: int) -> np.ndarray:
        """A field of several examples."""
        array = self.array(column, f"`{name}` of `__getitems__`")
        if not array.ndim or len(array) != count:
            fact = f"`{name}` of `__getitems__` has shape {list(array.shape)}, for {count} examples"
            raise self.wrong(fact)
        return array

    def _item(self, number: int) -> Any:
        with calling("SH502", f"`{self.name}.__getitem__({number})`", self.file):
            return self.made[number]


def opened(source: BatchSource, base: Path) -> tuple[Any, Path]:
    """The object that a source's function makes, and its file. RunError SH502 or SH619."""
    call: OwnFunction = source.arguments["call"]
    function, file = call.found(base), base / call.file
    threads = torch.get_num_threads()
    # Ranks are forked after this; a process with threads of its own could not be.
    torch.set_num_threads(1)
    try:
        with calling("SH502", f"`{call.name}({_shown(source.arguments['settings'])})`", file):
            made = function(**source.arguments["settings"])
    finally:
        torch.set_num_threads(threads)
    if inspect.isclass(made) or made is None:
        raise RunError("SH502", f"`{call.name}` gives {_kind(made)}, where an object is due", file=file)
    return made, file


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


def _some(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:4])) + (", .." if len(numbers) > 4 else "")


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    what = f"a class, `{value.__name__}`" if inspect.isclass(value) else type(value).__name__
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else what
