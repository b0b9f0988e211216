"""Headers of safetensors files, of whoever wrote them: the one place where they are read, and where
those of whole tensors are written.

The safetensors library decides whether a header is sound: its length, its offsets, which cover the
file and do not overlap, its shapes. The files of a checkpoint have checksums besides, see
rank_files.py."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardlang.checkpoints.index import ITEM_BYTES
from shardlang.errors import RunError
from shardlang.frozen.records import dataclass
from shardlang.hints.paths import instead

# What a header begins with that tells of nothing but torch's layout of numbers.
PLAIN_MARK = '{"__metadata__":{"format":"pt"}'


@dataclass(frozen=True)
class Saved:
    """The element type (by safetensors' name) and the shape of a saved tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype.lower()}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Header:
    """begin: bytes of the header, with the length that stands before it; places: where the bytes of
    each tensor are behind it."""

    begin: int
    tensors: Mapping[str, Saved]
    places: Mapping[str, tuple[int, int]]


def opened(path: Path, framework: str, help: str = "") -> Any:
    """A file by the safetensors library, whose header is sound. help: where it is missing and none
    beside it is meant. RunError SH504."""
    from safetensors import SafetensorError, safe_open

    try:
        require_plain(path)
        return safe_open(str(path), framework=framework)
    except FileNotFoundError:
        raise RunError("SH504", "the weights are missing", file=path, help=instead(path, help)) from None
    except (OSError, SafetensorError) as error:
        raise RunError("SH504", f"the file is no safetensors file: {error}", file=path) from None


def require_plain(path: Path) -> None:
    """OSError where a path leads to what is no plain file: a pipe would be waited for."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError("it is no plain file")


def header(path: Path) -> Header:
    """The header of a file. RunError SH504."""
    with opened(path, "np"):
        pass
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            told = json.loads(file.read(length))
        told.pop("__metadata__", None)
        tensors = {name: Saved(each["dtype"], tuple(each["shape"])) for name, each in told.items()}
        return Header(8 + length, tensors, {name: tuple(each["data_offsets"]) for name, each in told.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # it changes meanwhile
        raise RunError("SH504", f"the file is no safetensors file: {error}", file=path) from None


def written(tensors: Mapping[str, Saved], mark: str = PLAIN_MARK) -> bytes:
    """The header of a file of whole tensors, one behind the other: its length, then JSON, padded to
    a multiple of 8. mark: what the JSON begins with, without its end."""
    entries, start = {}, 0
    for name, saved in tensors.items():
        end = start + saved.nbytes
        entries[name] = {"dtype": saved.dtype, "shape": saved.shape, "data_offsets": (start, end)}
        start = end
    text = ",".join([mark, *[json.dumps(entries, separators=(",", ":"))[1:-1]] * bool(entries)]).encode() + b"}"
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
