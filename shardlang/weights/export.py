"""Weights of ours -> a folder like that of another library's model: `shardc export` on one page.

The folder has the same files, tensors, element types and metadata. It is written under another name
until it is whole. Some rows are in memory at a time, of at most about a quarter of a GiB."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from shardlang.check.program import NameMap
from shardlang.checkpoints import headers
from shardlang.checkpoints.index import ITEM_BYTES
from shardlang.checkpoints.parts import by_rows
from shardlang.checkpoints.weight_files import SafetensorsFile, Weights
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.locks import Claims, drafted, synced, unwritable
from shardlang.disk.overwrite_guard import SAVED_MARK, WEIGHTS
from shardlang.errors import RunError
from shardlang.frozen.records import dataclass
from shardlang.sources.files import umask
from shardlang.terminal import signals
from shardlang.weights.backwards import Backwards, backwards
from shardlang.weights.like import INDEX, Like
from shardlang.weights.theirs import TheirWeights

# Bytes of numbers in memory at one time, about.
_SOME = 2**26


@dataclass(frozen=True)
class Export:
    """A folder to write, all of which fits together."""

    weights: Weights
    like: Like
    way: Backwards

    @property
    def bytes(self) -> int:
        return sum(each.type.nbytes for each in self.way.filled.values())


def export(weights: Weights, names: NameMap, like: Like, sink: Sink) -> Export | None:
    """The folder to write; None after reports."""
    way = backwards(names, weights.tensors, like.tensors, sink, like.dtype)
    for name in way.kept:
        home = like.files[like.homes[name]]
        if home is None:
            fact = f"the map ignores `{name}`, and --like lacks its file to take it from"
            sink.report("SH609", fact, None, help="name a folder that has the files of the weights")
            continue
        same = _equal(name, home, like, way)
        if same is not None:
            short, other = name.removeprefix(names.prefix), same.removeprefix(names.prefix)
            sink.report(
                "SH609", f"the map ignores `{name}`, which --like has with the numbers of `{same}`", None,
                help=f"if they are one tensor, say so in the map: `tied {short} = {other}`",
            )  # fmt: skip
    return None if sink.failed else Export(weights, like, way)


def _equal(name: str, home: SafetensorsFile, like: Like, way: Backwards) -> str | None:
    """A tensor that is filled, and that in --like has the very numbers of one that is not."""
    mine = home.bytes_of(name)
    for other, filling in way.filled.items():
        file = like.files[like.homes[other]]
        if file is None or filling.type != home.tensors[name] or not filling.type.dtype.startswith(("F", "BF")):
            continue
        if mine.size and np.array_equal(mine, file.bytes_of(other)):
            return other
    return None


def write(wanted: Export, folder: Path, told: Callable[[int], None] = lambda _: None) -> None:
    """Writes the folder, whole or not at all. RunError SH512 where something is there. told: is
    given the bytes of each part that is written."""
    with whole_folder(folder) as draft:
        _fill(wanted, draft, told)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which has its name once it is whole. RunError SH512."""
    require_free(folder)
    with ExitStack() as stack:
        try:
            with signals.held():
                draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
                stack.enter_context(signals.at_once(lambda: shutil.rmtree(draft, ignore_errors=True)))
                stack.callback(shutil.rmtree, draft, ignore_errors=True)
            yield draft
            draft.chmod(0o777 & ~umask())
            for path in (*draft.iterdir(), draft):
                synced(path)
            os.rename(draft, folder)
            synced(folder.parent)
        except OSError as error:
            raise unwritable(folder, "the folder", error) from None


def require_free(folder: Path) -> None:
    """RunError SH512 where a folder to write is there already, or cannot be."""
    if os.path.lexists(folder):
        fact = "the folder would replace what is there"
        raise RunError("SH512", fact, file=folder, help="name another folder for -o, or remove this one")
    if not folder.absolute().parent.is_dir():
        raise RunError("SH512", f"there is no folder `{folder.parent}` to write to", file=folder)


def _fill(wanted: Export, draft: Path, told: Callable[[int], None]) -> None:
    for name, file in wanted.like.files.items():
        with (draft / name).open("xb") as stream:
            for some in _file(wanted, name, file):
                told(stream.write(some))
    for path in wanted.like.besides:
        shutil.copyfile(path, draft / path.name)
    index = wanted.like.folder / INDEX if wanted.like.folder is not None else None
    if index is not None and index.is_file():
        (draft / INDEX).write_text(_index(wanted, index), "utf-8")


def _index(wanted: Export, index: Path) -> str:
    """The index of --like; the size of all tensors anew where that was not known."""
    text = index.read_text("utf-8")
    if None not in wanted.like.files.values():
        return text
    found = json.loads(text)
    found["metadata"] = {**found.get("metadata", {}), "total_size": wanted.bytes}
    return json.dumps(found, indent=2) + "\n"


def _file(wanted: Export, name: str, file: SafetensorsFile | None) -> Iterator[Any]:
    """The bytes of a file of weights, in order."""
    mine = {each: wanted.way.filled[each].type for each, home in wanted.like.homes.items()
            if home == name and each in wanted.way.filled}  # fmt: skip
    yield headers.written(mine) if file is None else file.header
    order = list(mine) if file is None else sorted(file.places, key=lambda each: file.places[each])
    weights = TheirWeights(wanted.weights, wanted.way.filled)
    for each in order:
        if each in wanted.way.filled:
            yield from rows_of(each, weights)
        elif file is not None:
            yield file.bytes_of(each)


def rows_of(name: str, weights: Weights) -> Iterator[Any]:
    """The bytes of a tensor, some rows at a time."""
    saved = weights.tensors[name]
    for offsets, lengths in by_rows(saved.shape, _SOME // ITEM_BYTES[saved.dtype]):
        yield np.ascontiguousarray(weights.read(name, offsets, lengths)).reshape(-1).view(np.uint8)


def write_file(
    weights: Weights, names: Mapping[str, str], path: Path, told: Callable[[int], None] = lambda _: None
) -> None:
    """Writes tensors to a file that appears when it is whole. names: what each is called there.
    told: is given the bytes of each part that is written. RunError SH512 where it cannot be."""
    head = headers.written({called: weights.tensors[name] for name, called in names.items()}, SAVED_MARK)
    with Claims() as claims, drafted(claims.file(path, WEIGHTS), "the weights") as file:
        file.write(head)
        for name in names:
            for some in rows_of(name, weights):
                told(file.write(some))
