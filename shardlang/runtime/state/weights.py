"""Parameters and states to and from safetensors files, whole and under their paths, whatever layout
they have here.

Saving holds one whole tensor at a time; loading reads on each rank only the slices it keeps. The
file appears only once it is complete. Optimizer state and the step are not in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlang.checkpoints import headers
from shardlang.checkpoints.index import ITEM_BYTES, Saved
from shardlang.checkpoints.weight_files import SafetensorsFiles
from shardlang.disk.locks import drafted
from shardlang.disk.overwrite_guard import CATEGORIES, SAVED_MARK, WORDS_MARK
from shardlang.errors import RunError
from shardlang.facts.dtypes import INTEGERS
from shardlang.hints.nearest import nearest, offer
from shardlang.hints.paths import OF_PROGRAM
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.blocks import chunk_sizes, gathered
from shardlang.runtime.comm.host_copies import device_of
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.messages import begin_receive, begin_send
from shardlang.runtime.program import DTYPES, Extent, RunProgram, RunTensor, dtype_of, listed
from shardlang.runtime.state.checkpoints import NAMES, bytes_of, tensor_of
from shardlang.runtime.weight_names import FileTensor, Names
from shardlang.runtime.words import require_same

# What numbers of a type are: those of one kind are converted, and rounded where they are narrower.
_KINDS = {name: "truth values" if name == "bool" else "whole numbers" if name in INTEGERS else "floating-point numbers"
          for name in DTYPES}  # fmt: skip


def whole(program: RunProgram, tensor: RunTensor, local: Tensor) -> Tensor:
    """All blocks of a tensor joined; every rank gets it. All ranks must call it."""
    mesh = tensor.mesh or program.mesh
    for dim, axes in tensor.cut.items():
        group = mesh[listed(axes)]
        if group.size > 1:
            given = tensor.sizes.get(dim) if tensor.sizes else None
            sizes = tuple(given) if given else chunk_sizes(tensor.shape[dim], group.size)
            local = gathered(local, dim, group, sizes if len(set(sizes)) > 1 else None)
    return local


def whole_of(program: RunProgram, tensor: RunTensor, local: Tensor | None) -> Tensor:
    """The whole of a tensor on every rank. local: this rank's block; None where its stages have
    none. All ranks must call it."""
    found = whole(program, tensor, local) if local is not None else None
    if program.pipeline is None:
        assert found is not None
        return found
    # The first rank that has it sends it to all.
    first = _source(program, tensor)
    nothing = torch.zeros(tensor.shape, dtype=dtype_of(program, tensor), device=world.device)
    mine = found if found is not None and world.rank == first else nothing
    return primitives.put_together(mine.to(world.device))


def save(program: RunProgram, path: Path, tensors: Sequence[tuple[RunTensor, Callable[[], Tensor] | None]]) -> None:
    """Writes every tensor whole; each comes with a function that gives this rank's block, or None
    where another stage has it. All ranks must call it."""
    with drafted(path, "the weights") if world.rank == 0 else nullcontext() as file:
        if file is not None:
            file.write(_header(program, [tensor for tensor, _ in tensors]))
        for value in _wholes(program, tensors):
            if file is not None and value is not None:
                file.write(bytes_of(value).data)


def _wholes(
    program: RunProgram, tensors: Sequence[tuple[RunTensor, Callable[[], Tensor] | None]]
) -> Iterator[Tensor | None]:
    """Every tensor whole, one after the other; on rank 0 none is None."""
    for source, of_one in groupby(tensors, lambda each: _source(program, each[0])):
        with world.lent(source, 0):
            for tensor, local in of_one:
                value = whole(program, tensor, local().detach()) if local is not None else None
                yield _brought(program, tensor, value, source)


def _source(program: RunProgram, tensor: RunTensor) -> int:
    """The first rank that has a tensor of its stage."""
    axis = program.stage_axis
    return program.coordinates(tensor)[0] * program.mesh._stride(axis) if axis else 0


def _brought(program: RunProgram, tensor: RunTensor, value: Tensor | None, source: int) -> Tensor | None:
    """On rank 0 the whole of a tensor, wherever its stage is."""
    if source == 0 or world.rank not in (0, source):
        return value
    if world.rank == source:
        assert value is not None
        work = begin_send(value.contiguous(), 0, 0)
    else:
        value = torch.empty(tensor.shape, dtype=dtype_of(program, tensor), device=world.device)
        work = begin_receive(value, source, 0)
    if work is not None:
        work.wait()
    return value


def _header(program: RunProgram, tensors: Sequence[RunTensor]) -> bytes:
    """The header of a file of these tensors, whole."""
    saved = {tensor.path: Saved(NAMES[dtype_of(program, tensor)], tuple(tensor.shape)) for tensor in tensors}
    words = json.dumps(json.dumps(dict(program.data.categories))) if program.data.categories else ""
    # By either mark later runs know that the file may be replaced.
    return headers.written(saved, f"{WORDS_MARK}{words}}}" if words else SAVED_MARK)


class InitialWeights:
    """Safetensors files to start from, checked against the program: same names, same shapes.

    A path with `*` in its last part is all files that it matches: large weights come in several.
    help: where there is none."""

    def __init__(
        self, path: Path, tensors: Sequence[RunTensor], names: Names | None = None, help: str = OF_PROGRAM
    ) -> None:
        self.path = path
        self.files = SafetensorsFiles(path, help)
        self.names = names or Names(())
        self.places = self.names.places([tensor.path for tensor in tensors], self.files.tensors)
        self._check(tensors)

    def require_words(self, categories: Mapping[str, str]) -> None:
        """RunError where words of the data had other numbers in training, as the files record."""
        for recorded in (file.metadata.get(CATEGORIES) for file in self.files.files):
            if recorded is not None:
                require_same(categories, _read(recorded), "the weights were saved", self.path)

    def _check(self, tensors: Sequence[RunTensor]) -> None:
        known, due = self.files.tensors.keys(), {place.name for place in self.places.values()}
        rest = sorted(name for name in known - due if not self.names.spare(name))
        for what, names in (("lacks", sorted(due - known)), ("has, and the program has not,", rest)):
            if names:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                listed = ", ".join(f"`{name}`" for name in names[:5])
                help = self._otherwise(names[0], rest if what == "lacks" else ())
                raise RunError("SH504", f"the file {what} {listed}{more}", file=self.path, help=help)
        for tensor in tensors:
            place, shape = self.places[tensor.path], list(tensor.shape)
            there = self.files.tensors[place.name]
            self._require_type(tensor, there.dtype)
            found = list(place.shape(there.shape))
            if found != shape:
                as_read = "" if place == FileTensor(tensor.path) else f", read from {place}"
                fact = f"`{tensor.path}` is {found} in the file and {shape} in the program{as_read}"
                raise RunError("SH504", fact, file=self.path)

    def _otherwise(self, name: str, others: Collection[str]) -> str:
        """The help for a tensor that the file lacks, and may have by another name."""
        if self.names.rules:
            return offer(name, others)
        near = nearest(name, others)
        beside = self.path.with_suffix(".map")
        init = f'`init = safetensors("{self.path.name}", names = "{beside.name}")`'
        if beside.is_file():
            return f"`{beside.name}` beside it may have its names: {init}"
        lines = f"a file with a line for each tensor, `{name} = {near}`, says so: {init}"
        return f"it has `{near}`; {lines}" if near else ""

    def _require_type(self, tensor: RunTensor, found: str) -> None:
        """RunError where numbers in a file are of a type that would not be read as they are meant:
        complex ones, those in 8 bits, which have a scale elsewhere, and others than the program
        has: whole numbers or truth values in place of floating-point ones, or the other way."""
        here, there = found.lower(), f"`{tensor.path}` is {found.lower()} in the file"
        help = f"save it in the type of the program: `tensor.to({DTYPES[tensor.dtype]})`"
        if found not in ITEM_BYTES:
            allowed = ", ".join(map(str.lower, ITEM_BYTES))
            raise RunError("SH504", f"{there}, and can be {allowed}", file=self.path, help=help)
        if _KINDS[here] != _KINDS[tensor.dtype]:
            fact = f"{there} and {tensor.dtype} in the program: {_KINDS[here]} in place of {_KINDS[tensor.dtype]}"
            raise RunError("SH504", fact, file=self.path, help=help)

    def read(self, tensor: RunTensor, where: Extent, dtype: torch.dtype) -> Tensor:
        """A block of a tensor, where the program has it."""
        place = self.places[tensor.path]
        block = place.block(where.slices(), tensor.shape)
        numbers = self.files.read(place.name, [at.start for at in block], [at.stop - at.start for at in block])
        # A copy, as what is mapped cannot be written to.
        found = tensor_of(numbers.copy(), self.files.tensors[place.name].dtype)
        found = found.to(device=device_of(tensor.place), dtype=dtype)
        return (found.permute(*reversed(range(found.dim()))) if place.transposed else found).contiguous()


def _read(recorded: str) -> Any:
    """The record of words in a file; None where that is broken, as foreign metadata may be."""
    try:
        return json.loads(recorded)
    except (ValueError, RecursionError):
        return None
