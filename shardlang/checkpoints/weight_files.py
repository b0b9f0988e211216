"""Safetensors files, and checkpoints, as tensors that are read in place, block by block.

The safetensors library decides whether a header is sound: its length, its offsets, which cover the
file and do not overlap, its shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from shardlang.checkpoints.headers import require_plain
from shardlang.checkpoints.index import Damaged, Saved
from shardlang.checkpoints.looked_at import opened_newest
from shardlang.checkpoints.optimizers import EMA, averaged, of_weights
from shardlang.checkpoints.parts import STORED, Parts
from shardlang.errors import RunError
from shardlang.hints.paths import instead


class SafetensorsFile:
    """A safetensors file. begin: bytes of its header, with the length that stands before it;
    places: where the bytes of each tensor are behind it. help: where the file is missing and none
    beside it is meant. RunError SH504."""

    def __init__(self, path: Path, help: str = "") -> None:
        from safetensors import SafetensorError, safe_open

        self.path = path
        try:
            require_plain(path)
            with safe_open(str(path), framework="np"):
                pass
            with path.open("rb") as file:
                self.begin = 8 + int.from_bytes(file.read(8), "little")
                told = json.loads(file.read(self.begin - 8))
            self.metadata: Mapping[str, str] = told.pop("__metadata__", None) or {}
            self.tensors = {name: Saved(each["dtype"], tuple(each["shape"])) for name, each in told.items()}
            self.places = {name: tuple(each["data_offsets"]) for name, each in told.items()}
        except FileNotFoundError:
            raise RunError("SH504", "the weights are missing", file=path, help=instead(path, help)) from None
        except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:  # or it changes
            raise RunError("SH504", f"the file is no safetensors file: {error}", file=path) from None

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
    that match. help: where there is none. RunError SH504."""

    def __init__(self, path: Path, help: str = "") -> None:
        self.files = [SafetensorsFile(each, help) for each in named(path) or [path]]
        self._of: dict[str, SafetensorsFile] = {}
        for file in self.files:
            again = next((name for name in file.tensors if name in self._of), None)
            if again is not None:
                raise RunError("SH504", f"two of the files hold `{again}`", file=file.path)
            self._of.update(dict.fromkeys(file.tensors, file))
        self.tensors: Mapping[str, Saved] = {name: file.tensors[name] for name, file in self._of.items()}

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        return self._of[name].read(name, offsets, lengths)


def named(path: Path) -> list[Path]:
    """The files that a path means, whose last part may have a `*`."""
    return sorted(path.parent.glob(path.name)) if "*" in path.name else [path]


class CheckpointWeights:
    """The parameters and states of a checkpoint, or of the newest whole one of a folder. ema: of
    parameters the averages, where it has any. passed: why newer ones are not taken. Damaged."""

    def __init__(self, folder: Path, ema: bool = False) -> None:
        self.index, self.passed = opened_newest(folder)
        self._parts = Parts(self.index)
        self.tensors: Mapping[str, Saved] = of_weights(self.index)
        help = "leave out --ema; `ema = 0.999` in `train` keeps averages from then on"
        self._averages = averaged(self.index, help) if ema else set()

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        return self._parts.read(f"{name}:{EMA}" if name in self._averages else name, offsets, lengths)


def weights(path: Path, ema: bool = False) -> tuple[Weights, Sequence[Damaged]]:
    """The weights that a path names, and why newer checkpoints are passed over. ema: their averages
    in a checkpoint."""
    if path.is_dir():
        kept = CheckpointWeights(path, ema)
        return kept, kept.passed
    if ema:
        raise RunError("SH508", "a file of weights has no average of them", file=path, help="name a checkpoint")
    found = SafetensorsFiles(path)
    for name, saved in found.tensors.items():
        if saved.dtype not in STORED:
            fact = f"`{name}` is {saved}; the language has no such element type"
            raise RunError("SH504", fact, file=path)
    return found, ()
