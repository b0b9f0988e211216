"""The contents of a checkpoint, and whether it is whole: turns a folder into facts, without torch.

A folder is that of one checkpoint, or of a run's: then its newest is meant."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from shardlang.checkpoints import folders
from shardlang.checkpoints.index import INDEX, Damaged, Index
from shardlang.checkpoints.parts import Parts
from shardlang.checkpoints.rank_files import RankFile, file_name


def chosen(folder: Path) -> list[Path]:
    """The checkpoints that a folder means, the newest first; Damaged where there is none."""
    if (folder / INDEX).exists():
        return [folder]
    found = folders.steps(folder)
    if not found:
        raise Damaged(f"there is no checkpoint: neither `{INDEX}` nor a folder `step-N` is in it", folder)
    return [found[step] for step in sorted(found, reverse=True)]


def opened_newest(folder: Path) -> tuple[Index, list[Damaged]]:
    """The index of the newest checkpoint whose files are as long as the index says, and what is
    wrong with those that are newer. Damaged where none is."""
    passed: list[Damaged] = []
    for path in chosen(folder):
        try:
            index = Index(path)
            look(index)
        except Damaged as error:
            passed.append(error)
        else:
            return index, passed
    raise passed[0]


def look(index: Index, first: int = 0, each: int = 1) -> None:
    """Damaged where a file of a checkpoint, of each so many ranks from the first on, is not as long
    as was written, or begins with something else."""
    for rank, facts in list(enumerate(index.files))[first::each]:
        if facts is not None:
            RankFile(index.folder, rank, facts).file.close()


def shown(folder: Path) -> dict[str, Any]:
    """The facts of a checkpoint, as far as its index tells."""
    index = Index(folder)
    files = {file_name(rank): file.size for rank, file in enumerate(index.files) if file is not None}
    tensors = [
        {
            "name": name, "type": layout.dtype, "shape": list(layout.shape), "bytes": layout.type.nbytes,
            "parts": sum(1 for _ in layout.parts()),
        }
        for name, layout in index.tensors.items()
    ]  # fmt: skip
    return {"folder": str(folder), **index.facts, "ranks": len(index.files), "files": files, "tensors": tensors}


def broken(folder: Path) -> Iterator[Damaged]:
    """Reads every byte of a checkpoint; what is not as it was written, for each file the first."""
    try:
        index = Index(folder)
    except Damaged as error:
        yield error
        return
    with closing(Parts(index)) as parts:
        for file in parts.all():
            try:
                deque(file, 0)
            except Damaged as error:
                yield error
