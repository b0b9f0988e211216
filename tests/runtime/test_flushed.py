"""What gets its name once it is whole is on the disk by then, and its name is soon after."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from shardlang.checkpoints.index import SavedLayout
from shardlang.cli.files import replace, replace_all
from shardlang.disk.locks import drafted
from shardlang.runtime.state.checkpoints import Checkpoints, Piece
from shardlang.weights.export import whole_folder


@contextmanager
def watched(folder: Path, after: bool = True) -> Iterator[list[Path]]:
    """Fails where something in a folder gets a name before it is on the disk, or (after) folders do not have
    what they are given on the disk in the end. Gives the names."""
    flushed: set[tuple[int, int]] = set()
    named: list[Path] = []

    def identity(path: Any) -> tuple[int, int]:
        found = os.stat(path)
        return found.st_dev, found.st_ino

    def fsync(descriptor: int) -> None:
        flushed.add(identity(descriptor))
        real["fsync"](descriptor)

    def naming(name: str) -> Callable[..., None]:
        def moved(source: Any, target: Any) -> None:
            path = Path(source)
            for each in (path, *(path.rglob("*") if path.is_dir() else ())):
                assert identity(each) in flushed, f"{each} is not on the disk as it gets the name {target}"
            real[name](source, target)
            flushed.discard(identity(Path(target).parent))
            named.append(Path(target))

        return moved

    real: dict[str, Any] = {name: getattr(os, name) for name in ("fsync", "replace", "rename")}
    before = {folder, *folder.rglob("*")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        for name in ("replace", "rename"):
            patch.setattr(os, name, naming(name))
        yield named
    made = {path.parent for path in {folder, *folder.rglob("*")} - before} | {path.parent for path in named}
    for path in filter(Path.is_dir, made if after else ()):
        assert identity(path) in flushed, f"what is in {path} is not on the disk"


def test_a_checkpoint_is_on_the_disk(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path / "runs" / "kept", 1, 0)
    with watched(tmp_path) as named:
        for step in (1, 2, 2):
            run.write(step, [Piece("w", (2,), (0,), torch.ones(2))], {"w": SavedLayout("F32", (2,), [[2]], [0])}, {})
            run.wait()
    assert named.count(tmp_path / "runs" / "kept" / "step-2") == 2


def test_a_file_that_is_drafted_is_on_the_disk(tmp_path: Path) -> None:
    """Weights, and what else takes the place of a file."""
    for _ in range(2):
        with watched(tmp_path) as named, drafted(tmp_path / "w.safetensors", "the weights") as file:
            file.write(b"numbers")
        assert named == [tmp_path / "w.safetensors"]


def test_a_folder_that_is_exported_is_on_the_disk(tmp_path: Path) -> None:
    with watched(tmp_path) as named, whole_folder(tmp_path / "out") as draft:
        (draft / "model.safetensors").write_bytes(b"numbers")
    assert named == [tmp_path / "out"]


def test_a_program_that_is_rewritten_is_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "p.shard"
    path.write_text("before")
    # The old one or the new: either is whole.
    with watched(tmp_path, after=False) as named:
        replace(path, "after")
        replace_all({path: b"last", tmp_path / "q.shard": b"new"})
    assert named == [path, path, tmp_path / "q.shard"] and path.read_text() == "last"
