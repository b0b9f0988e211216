"""The form into which a data source is read: examples by number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from shardlang.runtime.data.fit import Origin, fitted
from shardlang.runtime.errors import RunError
from shardlang.runtime.program import Block, Field, Source


class Dataset(Protocol):
    """Examples by number, 0 to length - 1. `notes` tell the user what was read, and what of it is
    not in the examples as it stands in the file."""

    length: int
    notes: Sequence[str] = ()

    def take(self, field: Field, examples: np.ndarray, block: Block) -> np.ndarray:
        """The given examples of a field [len(examples), *block.shape[1:]], dims past the batch
        sliced as `block` says."""


class Arrays:
    """Equally long numpy arrays, one per field name: [examples, ...]. Errors name `origin`."""

    def __init__(self, source: Source, arrays: Mapping[str, np.ndarray], origin: Origin) -> None:
        self.arrays = {field.name: fitted(field, arrays, origin) for field in source.fields}
        lengths = {name: len(array) for name, array in self.arrays.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"`{name}` has {length}" for name, length in lengths.items())
            raise origin.wrong(f"the fields are not equally long: {listed}", help="save as many examples of each")
        self.length, self.origin = next(iter(lengths.values()), 0), origin
        self.notes: list[str] = []

    def take(self, field: Field, examples: np.ndarray, block: Block) -> np.ndarray:
        array = self.arrays[field.name]
        if block.shape[1:] == array.shape[1:]:
            # Whole examples are copied at once; by slices numpy goes through the elements.
            return array.take(examples, 0)
        return array[(examples, *block.slices()[1:])]


def require(arguments: dict[str, Any], name: str, kind: str) -> Any:
    """An argument that a source cannot do without."""
    if name not in arguments:
        raise RunError("SH502", f"data source `{kind}` needs `{name}`")
    return arguments[name]
