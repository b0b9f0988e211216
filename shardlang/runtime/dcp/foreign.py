"""A checkpoint that torch.distributed.checkpoint wrote -> tensors that are read block by block.

Its `.metadata` is a pickle, which could run anything: it is opened by an unpickler that knows the
classes of such metadata and nothing else (SH616). Its tensors are opened by torch's own
`weights_only`."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.utils import _create_file_view

from shardlang.checkpoints.headers import require_plain
from shardlang.checkpoints.index import Part, Saved, SavedLayout, layout_of
from shardlang.checkpoints.parts import STORED, shared
from shardlang.errors import RunError
from shardlang.runtime.state.checkpoints import NAMES, bytes_of

METADATA = ".metadata"
_RECORDS = ("Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "BytesStorageMetadata",
            "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")  # fmt: skip
_HELP = "take checkpoints only from those whom you trust; save this one anew by torch.distributed.checkpoint"


def _path(*parts: str) -> str:
    """In place of a path, which nothing here follows."""
    return "/".join(parts)


def _layout(name: str) -> torch.layout:
    return torch.strided


# All that a `.metadata` may name, and what it is.
_KNOWN: dict[tuple[str, str], Any] = {
    **{(metadata.__name__, name): getattr(metadata, name) for name in _RECORDS},
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _layout,
    **{("torch", name): each for name, each in vars(torch).items() if isinstance(each, torch.dtype)},
    **{("pathlib", name): _path for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")},
    ("pathlib._local", "PosixPath"): _path,
}


# Python's own: to that in C, eight bytes can say that it is to make room for 2**32 places.
class _Unpickler(pickle._Unpickler):
    """Gives what is known, and nothing else."""

    path: Path

    def find_class(self, module_name: str, global_name: str) -> Any:
        if (module_name, global_name) not in _KNOWN:
            fact = f"the metadata names `{module_name}.{global_name}`, which is none of its own classes"
            raise RunError("SH616", fact, file=self.path, help=_HELP)
        return _KNOWN[module_name, global_name]


@dataclass(frozen=True)
class _Chunk:
    """A block of a tensor: `lengths` at `offsets`, and where its bytes are."""

    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    file: str
    first: int
    size: int


class Foreign:
    """The tensors of a folder with a `.metadata`. others: names of what is no tensor."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / METADATA
        found = _read(path)
        try:
            told = found.state_dict_metadata
            tensors = {name: each for name, each in told.items() if _is_tensor(each)}
            self.others = [name for name in told if name not in tensors]
            self._chunks = {name: _chunks(name, each, found.storage_data) for name, each in tensors.items()}
            self.tensors: Mapping[str, Saved] = {
                name: Saved(_type(name, each), _ints(each.size)) for name, each in tensors.items()
            }
            # The numbers of chunks stand for ranks.
            self._layouts = {name: _layout_of(name, saved, self._chunks[name]) for name, saved in self.tensors.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RunError("SH616", f"the metadata is damaged, or of another kind: {error!r}", file=path) from None
        self._last: tuple[_Chunk, Tensor] | None = None

    def read(self, name: str, offsets: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
        into = np.empty(tuple(lengths), STORED[self.tensors[name].dtype])
        for part in self._layouts[name].overlapping(offsets, lengths):
            there, here = shared(part, offsets, lengths)
            found = self._tensor(name, self._chunks[name][part.rank])[there]
            into[here] = bytes_of(found).view(into.dtype).reshape(found.shape)
        return into

    def _tensor(self, name: str, chunk: _Chunk) -> Tensor:
        """A chunk; the last one stays in memory."""
        if self._last is None or self._last[0] != chunk:
            self._last = (chunk, self._opened(name, chunk))
        return self._last[1]

    def _opened(self, name: str, chunk: _Chunk) -> Tensor:
        path = self.folder / chunk.file
        try:
            require_plain(path)
            with path.open("rb") as file:
                view = _create_file_view(file, chunk.first, chunk.size)
                found = torch.load(view, map_location="cpu", weights_only=True)
        except Exception as error:  # torch's reader of damaged bytes can fail in any way
            text = str(error).partition("\n")[0] or type(error).__name__
            raise RunError("SH616", f"`{name}` cannot be read: {text}", file=path) from None
        saved = self.tensors[name]
        if not isinstance(found, Tensor) or found.shape != chunk.lengths or NAMES.get(found.dtype) != saved.dtype:
            raise RunError("SH616", f"`{name}` in it is not what the metadata says", file=path)
        return found.detach()


def _read(path: Path) -> Any:
    try:
        require_plain(path)
        with path.open("rb") as file:
            unpickler = _Unpickler(file)
            unpickler.path = path
            found = unpickler.load()
    except FileNotFoundError:
        raise RunError("SH616", f"there is no `{METADATA}`", file=path.parent) from None
    except RunError:
        raise
    except Exception as error:  # a pickle can fail in any way
        raise RunError("SH616", f"the metadata cannot be read: {error!r}", file=path) from None
    if type(found) is not metadata.Metadata:
        raise RunError("SH616", "the metadata is no record of a checkpoint", file=path)
    return found


def _is_tensor(found: Any) -> bool:
    if not isinstance(found, metadata.TensorStorageMetadata | metadata.BytesStorageMetadata):
        raise TypeError(f"{type(found).__name__} in place of a tensor")
    return isinstance(found, metadata.TensorStorageMetadata)


def _type(name: str, found: Any) -> str:
    dtype = found.properties.dtype
    if dtype not in NAMES:
        raise ValueError(f"`{name}` is of {dtype}, and can be {', '.join(each.lower() for each in NAMES.values())}")
    return NAMES[dtype]


def _ints(given: Any) -> tuple[int, ...]:
    found = tuple(given)
    if not all(type(each) is int and 0 <= each < 2**60 for each in found):
        raise ValueError(f"{found} in place of a shape")
    return found


def _chunks(name: str, found: Any, storage: Any) -> list[_Chunk]:
    chunks = []
    for each in found.chunks:
        offsets, lengths = _ints(each.offsets), _ints(each.sizes)
        info = storage[metadata.MetadataIndex(name, offsets)]
        first, size, file = info.offset, info.length, info.relative_path
        _ints((first, size))
        if not isinstance(file, str) or os.path.isabs(file) or ".." in Path(file).parts:
            raise ValueError(f"{file!r} in place of a file of the folder")
        if getattr(info, "transform_descriptors", None):
            raise ValueError(f"`{name}` is packed by {info.transform_descriptors}")
        chunks.append(_Chunk(offsets, lengths, file, first, size))
    return chunks


def _layout_of(name: str, saved: Saved, chunks: Sequence[_Chunk]) -> SavedLayout:
    """How a tensor is cut into its chunks. ValueError where these are not, each element once, all
    of it."""
    for chunk in chunks:
        inside = zip(chunk.offsets, chunk.lengths, saved.shape, strict=True)
        if any(first + size > all for first, size, all in inside):
            raise ValueError(f"a part of `{name}` is outside of {list(saved.shape)}")
    parts = [Part(number, chunk.offsets, chunk.lengths) for number, chunk in enumerate(chunks)]
    found = layout_of(saved.dtype, saved.shape, parts)
    if found is None:
        raise ValueError(f"the parts of `{name}` are no grid that is all of {list(saved.shape)}")
    return found
