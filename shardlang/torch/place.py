"""A batch as the user has it -> this rank's part of it, as its steps take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.runtime import program as emitted
from shardlang.runtime.data import loader
from shardlang.runtime.program import Extent, RunProgram, dtype_of, listed


@dataclass(frozen=True)
class Field:
    """A field of a batch. shape: of the whole batch. parts: the slices of it that this rank has,
    for each microbatch; () where it reads nothing of the field. local_shape: of these parts put
    together."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    local_shape: tuple[int, ...]
    parts: tuple[tuple[slice, ...], ...]


class Batch(Mapping[str, Tensor]):
    """This rank's part of a batch, for the module `of` that has placed it. microbatches: its
    fields by name, for each."""

    def __init__(self, of: object, microbatches: loader.Batch) -> None:
        self.of, self.microbatches = of, microbatches

    def __getitem__(self, name: str) -> Tensor:
        if len(self.microbatches) > 1:
            raise apart("microbatches")
        return self.microbatches[0][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.microbatches[0])

    def __len__(self) -> int:
        return len(self.microbatches[0])


def apart(by: str) -> RunError:
    """The message that a step is no single forward pass."""
    fact = f"the program computes a step by {by}, so there is no single forward pass"
    return RunError("SH620", fact, help="net.step(net.place(batch)), which runs all of a step")


class BatchPlacement(loader.Cut):
    """Cuts batches that the user gives. fields: all that the source has, whether this rank reads
    them or not."""

    def __init__(self, program: RunProgram, source: emitted.BatchSource) -> None:
        super().__init__(program, source)
        self.time = program.mesh._time
        blocks = {f.name: [own[at] for own in self.blocks] for at, f in enumerate(self.fields)}
        self.dims = {f.name: self._time_dim(f) for f in source.fields}
        self.all = tuple(self._field(f, dtype_of(program, f), blocks.get(f.name, [])) for f in source.fields)

    def _time_dim(self, field: emitted.SourceField) -> int:
        """The dim that microbatches cut; -1 where each has the whole field."""
        return next((dim for dim, axes in field.cut.items() if self.time and self.time in listed(axes)), -1)

    def _field(self, field: emitted.SourceField, dtype: torch.dtype, blocks: list[Extent]) -> Field:
        local = list(blocks[0].shape) if blocks else []
        if blocks and self.dims[field.name] >= 0:
            local[self.dims[field.name]] = sum(block.shape[self.dims[field.name]] for block in blocks)
        return Field(field.name, dtype, tuple(field.shape), tuple(local), tuple(block.slices() for block in blocks))

    def placed(self, given: Mapping[str, Any], whole: bool, rows: int | None = None) -> loader.Batch:
        """This rank's part of a batch. whole: else the batch is this rank's part already. rows: of
        those that count, of a batch that is shorter than it should be."""
        if not isinstance(given, Mapping):
            raise TypeError(f"a batch is a mapping from the names of fields, not {type(given).__name__}")
        known = [f.name for f in self.all]
        due = known if whole else [field.name for field in self.fields]
        if unknown := sorted(str(name) for name in given if name not in known):
            raise ValueError(f"the batch has {_names(unknown)}, and the program takes {_names(known)}")
        if lacking := [name for name in due if name not in given]:
            raise ValueError(f"the batch lacks {_names(lacking)}; the program takes {_names(known)}")
        found = {f.name: self._checked(f, given[f.name], whole, rows) for f in self.all if f.name in due}
        at = dict.fromkeys(found, 0)

        def take(field: emitted.SourceField, block: Extent) -> Tensor:
            part, dim = found[field.name], self.dims[field.name]
            if whole:
                part = part[block.slices()]
            elif dim >= 0:
                part = part.narrow(dim, at[field.name], block.shape[dim])
                at[field.name] += block.shape[dim]
            return part.clone(memory_format=torch.contiguous_format)

        return self.taken(take)

    def _checked(self, field: Field, given: Any, whole: bool, rows: int | None) -> Tensor:
        """The values of a field, which are as they should be."""
        try:
            value = given.detach() if isinstance(given, Tensor) else torch.as_tensor(given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"`{field.name}` is no tensor: {error}") from None
        if _kind(value.dtype) != _kind(field.dtype):
            raise TypeError(f"`{field.name}` is {_name(value.dtype)}, and the program takes {_name(field.dtype)}")
        if rows is not None and whole and value.dim() and len(value) == rows < field.shape[0]:
            # What is computed from the rows that fill it up is left out.
            value = torch.cat([value, value[:1].expand(field.shape[0] - rows, *value.shape[1:])])
        shape = field.shape if whole else field.local_shape
        if tuple(value.shape) != shape:
            whose = "the program takes" if whole else "this rank's part is"
            raise ValueError(f"`{field.name}` is {list(value.shape)}, and {whose} {list(shape)}")
        self._require_bound(field.name, value)
        return value

    def _require_bound(self, name: str, value: Tensor) -> None:
        """ValueError where a whole number points outside the table that it indexes."""
        field = next(f for f in self.source.fields if f.name == name)
        if field.bound is None or value.is_floating_point():
            return
        outside = (value < 0) | (value >= field.bound)
        for ignored in field.ignored:
            outside &= value != ignored
        if bool(outside.any()):
            index = [int(i) for i in outside.nonzero()[0]]
            number = int(value[tuple(index)])
            raise ValueError(f"`{name}` is {number} at {index}, and has to be from 0 to {field.bound - 1}")


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_complex or dtype == torch.bool:
        return str(dtype)
    return "float" if dtype.is_floating_point else "int"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _names(names: Any) -> str:
    return ", ".join(f"`{name}`" for name in names)
