"""The folders of checkpoints: which are there, which are shardlang's own, and how one takes
another's place.

A folder is shardlang's own where its index says so and nothing is in it but what the index names
(of a draft, the files of ranks). No other is ever replaced or removed. index.py and rank_files.py
read the files."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardlang.checkpoints.index import FORMAT, INDEX, STEP, Damaged, index_text, is_as_summed
from shardlang.checkpoints.rank_files import file_name
from shardlang.disk.locks import synced
from shardlang.errors import RunError

# The index while it is written.
_NEW_INDEX = "index.json.new"
RANK_FILE = re.compile(r"rank-\d{5,}\.safetensors", re.ASCII)
_ANY = re.compile(r"\.?step-(\d+)(\.part|\.old)?", re.ASCII)
# A checkpoint that is not whole yet, one that another has taken the place of, and one that a run
# has passed over.
_DRAFT, _OLD, _ASIDE = ".{}.part", ".{}.old", "{}.damaged"
_LEFT = re.compile(r"\.(step-\d+)\.(part|old)", re.ASCII)


def steps(folder: Path) -> dict[int, Path]:
    """The folders called step-N, by step."""
    found = ((STEP.fullmatch(path.name), path) for path in folder.iterdir()) if folder.is_dir() else ()
    return {int(match[1]): path for match, path in found if match}


def kept(folder: Path) -> dict[int, Path]:
    """The checkpoints in a folder by step, also those that are damaged or have further files."""
    return {step: path for step, path in steps(folder).items() if _index(path) is not None or is_damaged(path)}


def foreign(folder: Path) -> Path | None:
    """Something in a folder that shardlang did not write: the folder itself, or something in it;
    None where all is its own."""
    if folder.is_symlink() or not folder.is_dir() or folder.is_mount():
        return folder
    there = {path.name: path for path in folder.iterdir()}
    begun = there.get(_NEW_INDEX)
    if begun is not None and len(there) == 1 and begun.is_file() and not begun.is_symlink():
        # A draft's mark, or a part of it, may be all that has been written.
        return None if _mark(_step(folder)).encode().startswith(begun.read_bytes()) else folder
    if not there:
        return None
    index = _index(folder)
    if index is None:
        return folder
    known = {INDEX, _NEW_INDEX}
    known |= {name for name in there if RANK_FILE.fullmatch(name)} if index.get("draft") else _named(index)
    others = (path for name, path in there.items() if name not in known or path.is_symlink() or not path.is_file())
    return next(others, None)


def is_damaged(folder: Path) -> bool:
    """Whether a folder step-N has what only a checkpoint has, and no index says any more what is
    its. It may have files of the user's."""
    try:
        names = os.listdir(folder)
        if INDEX not in names:
            return any(map(RANK_FILE.fullmatch, names))
        text = index_text(folder)
        json.loads(text)
    except ValueError:
        return _index(folder) is None
    except (OSError, Damaged, RecursionError):
        return False
    ours = is_as_summed(text) is False or text.startswith(f'{{"format": {FORMAT}, "step": '.encode())
    return ours and _index(folder) is None


def _index(folder: Path) -> Mapping[str, Any] | None:
    """The index of a folder, if it is one of a checkpoint or a draft of that step. One that was
    cut short or damaged says no more than a draft."""
    try:
        text = index_text(folder)
    except Damaged:
        return None
    try:
        index = json.loads(text)
    except (ValueError, RecursionError):
        mark = _mark(_step(folder))
        return json.loads(mark) if text.startswith(mark[: mark.index("draft") - 1].encode()) else None
    try:
        ours = index["format"] == FORMAT and str(index["step"]) == _step(folder) and isinstance(index["files"], list)
    except (KeyError, TypeError):
        return None
    return index if ours and is_as_summed(text) is not False else None


def _step(folder: Path) -> str:
    """The N of step-N, .step-N.part or .step-N.old."""
    return folder.name.lstrip(".").split(".")[0].removeprefix("step-")


def _mark(step: str) -> str:
    """The contents of the index of a draft."""
    return f'{{"format": {FORMAT}, "step": {step}, "draft": true, "files": []}}'


def _named(index: Mapping[str, Any]) -> set[str]:
    return {file_name(rank) for rank, file in enumerate(index["files"]) if file is not None}


def is_name(name: str) -> bool:
    """Whether a checkpoint may be written under a name, or is on the way to it."""
    return _ANY.fullmatch(name) is not None


def require_own(folder: Path) -> None:
    """RunError where what is there is not shardlang's to replace."""
    other = foreign(folder) if os.path.lexists(folder) else None
    if other is not None:
        help = "write checkpoints to another folder: `to` of `checkpoint`"
        if folder.is_dir() and not folder.is_symlink():
            help += f"; or move this one away: mv {shlex.quote(str(folder))} {shlex.quote(f'{folder}.mine')}"
        raise RunError("SH512", "something else is in the way of a checkpoint", file=other, help=help)


def require_way(folder: Path, due: Callable[[int], bool]) -> None:
    """RunError if something of others has a name that a coming checkpoint will take."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _ANY.fullmatch(path.name)
        if match is not None and due(int(match[1])):
            require_own(path)


def draft_of(whole: Path) -> Path:
    return whole.with_name(_DRAFT.format(whole.name))


def _old_of(whole: Path) -> Path:
    return whole.with_name(_OLD.format(whole.name))


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """RunError where a checkpoint cannot be written."""
    try:
        yield
    except OSError as error:
        raise RunError("SH508", f"a checkpoint cannot be written: {error.strerror}", file=place) from None


def begin(draft: Path, step: int) -> None:
    """Makes the folder of a checkpoint, marked as a draft of ours before anything else is in it."""
    require_own(draft)
    _remove(draft)
    with writing(draft):
        made = [path for path in (draft, *draft.parents) if not path.exists()]
        draft.mkdir(parents=True)
        for path in made:
            synced(path.parent)
        _write_index(draft, _mark(str(step)))


def _write_index(folder: Path, index: str) -> None:
    """Writes an index, whole or not at all."""
    with (folder / _NEW_INDEX).open("w") as file:
        file.write(index)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / _NEW_INDEX, folder / INDEX)


def put(draft: Path, whole: Path, index: str) -> None:
    """Gives a finished draft its index and its name. An older one of that name, if it is ours, is
    removed once the new one is there. Whatever then happens to the machine, one of the two is on
    its disk."""
    _write_index(draft, index)
    old = _old_of(whole)
    require_own(whole)
    require_own(old)
    synced(draft)
    if os.path.lexists(whole):
        _remove(old)
        os.replace(whole, old)
    os.replace(draft, whole)
    synced(whole.parent)
    _remove(old)


def drop(whole: Path) -> None:
    """Removes a checkpoint of ours."""
    old = _old_of(whole)
    if not os.path.lexists(old):
        os.replace(whole, old)
        _remove(old)


def put_aside(whole: Path) -> Path:
    """Gives a checkpoint that is not whole a name that none is looked for under, with all that is
    in it: the new name. RunError where that cannot be."""
    aside = whole.with_name(_ASIDE.format(whole.name))
    names = itertools.chain([aside], (aside.with_name(f"{aside.name}-{number}") for number in itertools.count(2)))
    free = next(path for path in names if not os.path.lexists(path))
    try:
        os.rename(whole, free)
        synced(whole.parent)
    except OSError as error:
        fact = f"a damaged checkpoint cannot be moved aside: {error.strerror}"
        help = f"mv {shlex.quote(str(whole))} {shlex.quote(str(free))}"
        raise RunError("SH512", fact, file=whole, help=help) from None
    return free


def drop_all(found: Sequence[Path]) -> None:
    """Removes checkpoints in this order. RunError, and all stay, where one is not ours."""
    olds = list(map(_old_of, found))
    for path in (*found, *olds):
        require_own(path)
    for whole, old in zip(found, olds, strict=True):
        _remove(old)
        drop(whole)


def tidy(folder: Path) -> None:
    """Removes remains of killed runs; a checkpoint without a successor gets its name back."""
    for left in sorted(folder.iterdir()) if folder.is_dir() else ():
        match = _LEFT.fullmatch(left.name)
        if match is None or foreign(left) is not None:
            continue
        whole, index = folder / match[1], _index(left)
        has_all = index is not None and all((left / name).exists() for name in _named(index))
        if match[2] == "old" and not os.path.lexists(whole) and has_all:
            os.replace(left, whole)
        else:
            _remove(left)


def _remove(folder: Path) -> None:
    """Removes a folder of ours, its index last: until then it can be told whose it is."""
    if not os.path.lexists(folder):
        return
    for path in sorted(folder.iterdir(), key=lambda p: (p.name == INDEX, p.name)):
        path.unlink()
    folder.rmdir()
