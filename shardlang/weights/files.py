"""Safetensors files as tensors that are read in place, block by block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from shardlang.checkpoints import headers
from shardlang.checkpoints.headers import Saved
from shardlang.checkpoints.index import Damaged
from shardlang.checkpoints.looked_at import opened_newest
from shardlang.checkpoints.parts import STORED, Parts
from shardlang.errors import RunError


class SafetensorsFile:
    """A safetensors file. begin: bytes of its header, with the length that stands before it;
    places: where the bytes of each tensor are behind it. RunError SH504."""

    def __init__(self, path: Path) -> None:
        found = headers.header(path)
        self.path, self.begin, self.tensors, self.places = path, found.begin, found.tensors, found.places

    @property
    def header(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(self.begin)

    @cached_property
    def _mapped(self) -> np.ndarray:
        return np.memmap(self.path, np.uint8, "r")

    def bytes_of(self, name: str) -> np.ndarray:
        first, last = self.places[name]
        return self._mapped[self.begin + first : self.begin + last]

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        """A block of a tensor; bf16 as u16."""
        saved = self.tensors[name]
        if math.prod(saved.shape) == 0:
            return np.empty(tuple(lengths), STORED[saved.dtype])
        whole = self.bytes_of(name).view(STORED[saved.dtype]).reshape(saved.shape)
        return np.asarray(whole[tuple(slice(a, a + n) for a, n in zip(offsets, lengths, strict=True))])


class Weights(Protocol):
    """Tensors by our names, to be read block by block."""

    tensors: Mapping[str, Saved]

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        """A block of a tensor; bf16 as u16."""


class SafetensorsFiles:
    """Safetensors files that together hold weights; a path with `*` in its last part means all
    that match. RunError SH504."""

    def __init__(self, path: Path) -> None:
        self._files: dict[str, SafetensorsFile] = {}
        for each in (sorted(path.parent.glob(path.name)) if "*" in path.name else []) or [path]:
            file = SafetensorsFile(each)
            again = next((name for name in file.tensors if name in self._files), None)
            if again is not None:
                raise RunError("SH504", f"two of the files hold `{again}`", file=each)
            self._files.update(dict.fromkeys(file.tensors, file))
        self.tensors: Mapping[str, Saved] = {name: file.tensors[name] for name, file in self._files.items()}
        _require_known(self.tensors, path)

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        return self._files[name].read(name, offsets, lengths)


class CheckpointWeights:
    """The parameters and states of a checkpoint, or of the newest whole one of a folder. ema: of
    parameters the averages, where it has any. passed: why newer ones are not taken. Damaged."""

    def __init__(self, folder: Path, ema: bool = False) -> None:
        index, self.passed = opened_newest(folder)
        self.index, self._parts = index, Parts(index)
        self.tensors: Mapping[str, Saved] = {
            name: Saved(layout.dtype, layout.shape) for name, layout in index.tensors.items() if ":" not in name
        }
        self._averages = {f"{name}:ema" for name in self.tensors if ema} & index.tensors.keys()
        if ema and not self._averages:
            help = "leave out --ema; `ema = 0.999` in `train` keeps averages from then on"
            raise RunError("SH508", "the checkpoint has no average of the weights", file=index.folder, help=help)

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        average = f"{name}:ema"
        return self._parts.read(average if average in self._averages else name, offsets, lengths)


def weights(path: Path, ema: bool = False) -> tuple[Weights, Sequence[Damaged]]:
    """The weights that a path names, and why newer checkpoints are passed over. ema: their averages
    in a checkpoint."""
    if not path.is_dir() and ema:
        raise RunError("SH508", "a file of weights has no average of them", file=path, help="name a checkpoint")
    if not path.is_dir():
        return SafetensorsFiles(path), ()
    found = CheckpointWeights(path, ema)
    return found, found.passed


def _require_known(tensors: Mapping[str, Saved], path: Path) -> None:
    for name, saved in tensors.items():
        if saved.dtype not in STORED:
            fact = f"`{name}` is {saved}; the language has no such element type"
            raise RunError("SH504", fact, file=path)
