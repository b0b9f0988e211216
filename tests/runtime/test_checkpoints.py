"""Checkpoints as files: blocks of one layout read back under another, unfinished folders, old ones dropped."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from shardlang.errors import RunError
from shardlang.runtime.state import checkpoints as kept
from shardlang.runtime.state.checkpoints import Checkpoints, Piece, SavedRun

WHOLE = torch.arange(60.0).view(10, 6)


def pieces(rows: list[int], columns: list[int]) -> list[Piece]:
    """WHOLE cut at the given lengths, a piece a block."""
    found, top = [], 0
    for height in rows:
        left = 0
        for width in columns:
            block = WHOLE[top : top + height, left : left + width].clone()
            found.append(Piece("w", (10, 6), (top, left), block, True))
            left += width
        top += height
    return found


def write(folder: Path, cut: list[Piece]) -> None:
    """A checkpoint as several ranks write it: each piece in a file of its own."""
    folder.mkdir(parents=True)
    blocks = [b for i, p in enumerate(cut) for b in kept._write_files(folder, f"rank-{i:05d}", [p])]
    (folder / kept.INDEX).write_text(json.dumps({"format": 1, "step": 3, "blocks": blocks}))


def lengths(total: int) -> st.SearchStrategy[list[int]]:
    cuts = st.lists(st.integers(0, total), max_size=3).map(sorted)
    return cuts.map(lambda at: [b - a for a, b in zip([0, *at], [*at, total], strict=True)])


@settings(deadline=None)
@given(rows=lengths(10), columns=lengths(6), other_rows=lengths(10), other_columns=lengths(6))
def test_blocks_of_one_layout_are_read_under_another(
    tmp_path_factory, rows, columns, other_rows, other_columns
) -> None:
    folder = tmp_path_factory.mktemp("kept") / "step-3"
    write(folder, pieces(rows, columns))
    for piece in pieces(other_rows, other_columns):
        expected, empty = piece.local.clone(), torch.full_like(piece.local, -1.0)
        SavedRun(folder).read([Piece("w", (10, 6), piece.offsets, empty, False)])
        assert torch.equal(empty, expected)


@settings(deadline=None)
@given(limit=st.integers(1, 600))
def test_files_have_a_greatest_size(tmp_path_factory, limit: int) -> None:
    folder = tmp_path_factory.mktemp("kept")
    given = [
        Piece("w", (10, 6), (0, 0), WHOLE.clone(), True),
        Piece("count", (), (), torch.tensor(7.0), True),
        Piece("v", (10, 6), (0, 0), WHOLE + 1, True),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "_FILE_BYTES", limit)
        Checkpoints(folder, every=1, keep=0).write(1, given, {})
    files = [load_file(file) for file in (folder / "step-1").glob("*.safetensors")]
    row = WHOLE[0].nbytes
    assert all(sum(x.nbytes for x in file.values()) <= max(limit, row) for file in files)
    assert len(files) >= (2 * WHOLE.nbytes + 4) / max(limit, row)
    read = [replace(piece, local=torch.full_like(piece.local, -1.0)) for piece in given]
    SavedRun(folder / "step-1").read(read)
    assert all(torch.equal(found.local, due.local) for found, due in zip(read, given, strict=True))


def test_what_a_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    write(tmp_path / "step-3", pieces([5, 5], [6])[:1])
    saved = SavedRun(tmp_path / "step-3")
    with pytest.raises(RunError, match="lacks a part of `w`"):
        saved.read([Piece("w", (10, 6), (0, 0), torch.zeros(10, 6), False)])
    with pytest.raises(RunError, match="lacks `v` and 1 more"):
        saved.read([Piece(name, (2,), (0,), torch.zeros(2), False) for name in ("v", "u")])
    with pytest.raises(RunError, match=r"`w` is \[10, 6\] in the checkpoint and \[6, 10\] in the program"):
        saved.read([Piece("w", (6, 10), (0, 0), torch.zeros(6, 10), False)])
    with pytest.raises(RunError, match="`batch` is 64, and the checkpoint was written with None"):
        saved.require({"batch": 64})


def test_only_what_is_complete_counts_and_old_ones_go(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path, every=10, keep=2)
    assert run.latest() is None
    assert [step for step in range(1, 36) if run.due(step, 35)] == [10, 20, 30, 35]
    for step in (10, 20, 30):
        run.write(step, [Piece("w", (2,), (0,), torch.ones(2) * step, True)], {"seed": 0})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-20", "step-30"]
    (tmp_path / "step-40").mkdir()  # as it would be left by a run that died
    assert run.latest() == tmp_path / "step-30"
    assert SavedRun(tmp_path / "step-30").index["seed"] == 0


def one(step: int) -> list[Piece]:
    return [Piece("w", (2,), (0,), torch.ones(2) * step, True)]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


THEIRS = ("step-2/notes.txt", "step-2/rank-00000.safetensors", "step-2/index.json", "step-2", ".step-2.part/x")
THEIRS += (".step-2.part/rank-00000.safetensors", ".step-2.part/index.json", ".step-2.part", ".step-2.old/x")


@pytest.mark.parametrize("name", THEIRS)
def test_what_is_not_a_checkpoint_is_never_replaced(tmp_path: Path, name: str) -> None:
    """Neither before the training, which is told, nor where it came to be during it."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"format": 1, "step": 3, "weight_map": {}}')
    before = contents(tmp_path)
    run = Checkpoints(tmp_path, every=2, keep=1)
    with pytest.raises(RunError, match="something else is in the way of a checkpoint") as raised:
        run.require_way(4)
    place = tmp_path / Path(name).parts[0]
    assert (raised.value.code, raised.value.file) == ("SH512", place)
    # A file may be one that the run reads: it is not to be moved.
    assert raised.value.help.startswith("write checkpoints to another folder: `to` of `checkpoint`")
    assert (f"mv {place} {place}.mine" in raised.value.help) is place.is_dir()
    with pytest.raises(RunError, match="in the way"):
        run.write(2, one(2), {})
    assert contents(tmp_path).items() >= before.items()
    Checkpoints(tmp_path, every=3, keep=1).require_way(4)  # that writes steps 3 and 4: step-2 is not in its way


def test_a_file_of_the_users_in_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path, every=1, keep=1)
    run.write(1, one(1), {})
    (tmp_path / "step-1" / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    for step in (2, 3):
        run.write(step, one(step), {})
    assert contents(tmp_path / "step-1") == {n.removeprefix("step-1/"): c for n, c in before.items()}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1", "step-3"]
    with pytest.raises(RunError) as raised:
        run.require_way(4)
    assert raised.value.file == tmp_path / "step-1" / "notes.txt"


def test_a_link_to_a_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path / "here", every=1, keep=1)
    Checkpoints(tmp_path / "there", every=1, keep=1).write(1, one(1), {})
    run.write(2, one(2), {})
    (tmp_path / "here" / "step-1").symlink_to(tmp_path / "there" / "step-1")
    run.write(3, one(3), {})
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["step-1", "step-3"]
    assert (tmp_path / "there" / "step-1" / kept.INDEX).is_file()
    with pytest.raises(RunError, match="in the way"):
        run.require_way(3)


def test_a_former_runs_checkpoints_are_replaced(tmp_path: Path) -> None:
    for value in (1, 7):
        run = Checkpoints(tmp_path, every=2, keep=0)
        run.tidy()
        run.require_way(4)
        for step in (2, 4):
            run.write(step, one(step * value), {})
    found = torch.zeros(2)
    SavedRun(tmp_path / "step-4").read([Piece("w", (2,), (0,), found, False)])
    assert found.tolist() == [28, 28]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-2", "step-4"]


class Killed(BaseException):
    """In the place of SIGKILL."""


def dies_at(call: int, folder: Path) -> bool:
    """Writes two checkpoints, and dies at the change of a file or folder with this number, if it comes so far."""
    calls = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def killed(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == call:
                raise Killed
            return real(*given, **named)

        return killed

    run = Checkpoints(folder, every=1, keep=1)
    with contextlib.suppress(Killed), pytest.MonkeyPatch.context() as patch:
        for where, name in ((os, "replace"), (Path, "mkdir"), (Path, "unlink"), (Path, "rmdir"), (Path, "write_text")):
            patch.setattr(where, name, counted(getattr(where, name)))
        run.write(2, one(2), {})
        run.write(3, one(3), {})
    return calls == call


def test_a_run_that_is_killed_leaves_a_whole_checkpoint_and_nothing_in_the_way(tmp_path: Path) -> None:
    """Wherever it dies, the next run goes on from a whole checkpoint, and cleans up."""
    for call in itertools.count(1):
        folder = tmp_path / str(call)
        for step in (1, 2):
            Checkpoints(folder, every=1, keep=1).write(step, one(step), {})
        died = dies_at(call, folder)
        again = Checkpoints(folder, every=1, keep=1)
        again.tidy()
        again.require_way(9)
        latest = again.latest()
        assert latest is not None and latest.name in ("step-2", "step-3"), call
        SavedRun(latest).read([Piece("w", (2,), (0,), torch.zeros(2), False)])
        again.write(3, one(3), {})
        assert [p.name for p in folder.iterdir()] == ["step-3"]
        if not died:
            break
    assert call > 15


def test_a_scalar_and_a_type_of_its_own(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path, every=1, keep=0)
    run.write(1, [Piece("count", (), (), torch.tensor(7), True)], {})
    found = torch.tensor(0)
    SavedRun(tmp_path / "step-1").read([Piece("count", (), (), found, False)])
    assert found.item() == 7


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    write(tmp_path / "step-3", pieces([10], [6]))
    (tmp_path / "step-3" / "rank-00000.safetensors").unlink()
    with pytest.raises(RunError, match="cannot be read") as raised:
        SavedRun(tmp_path / "step-3").read([Piece("w", (10, 6), (0, 0), torch.zeros(10, 6), False)])
    assert raised.value.file == tmp_path / "step-3" / "rank-00000.safetensors"
    (tmp_path / "step-3" / kept.INDEX).write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        SavedRun(tmp_path / "step-3")


BLOCK = {"name": "w", "shape": [10, 6], "offsets": [0, 0], "lengths": [10, 6], "file": "rank-00000.safetensors"}


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ([], "format None"),
        ({"format": 2}, "format 2"),
        ({"format": 1, "step": 3}, "damaged: KeyError"),
        ({"format": 1, "step": "x", "blocks": []}, "damaged"),
        ({"format": 1, "step": 3, "blocks": [7]}, "damaged"),
        ({"format": 1, "step": 3, "blocks": [{**BLOCK, "offsets": [0]}]}, "shape, offsets and lengths of 'w'"),
        ({"format": 1, "step": 3, "blocks": [{**BLOCK, "offsets": [0, -1]}]}, "shape, offsets and lengths of 'w'"),
        ({"format": 1, "step": 3, "blocks": [{**BLOCK, "file": "../rank-00000.safetensors"}]}, "no file of a rank"),
        ({"format": 1, "step": 3, "blocks": [{**BLOCK, "lengths": [10, 5]}]}, "by the index"),
        ({"format": 1, "step": 3, "blocks": [{**BLOCK, "file": "rank-00009.safetensors"}]}, "cannot be read"),
    ],
)
def test_a_damaged_index_is_an_error(tmp_path: Path, index: object, told: str) -> None:
    write(tmp_path / "step-3", pieces([10], [6]))
    (tmp_path / "step-3" / kept.INDEX).write_text(json.dumps(index))
    with pytest.raises(RunError, match=told) as found:
        SavedRun(tmp_path / "step-3").read([Piece("w", (10, 6), (0, 0), torch.empty(10, 6), False)])
    assert found.value.code == "SH508"


def test_a_file_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "step-3", pieces([10], [6]))
    file = tmp_path / "step-3" / "rank-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(RunError, match="cannot be read"):
        SavedRun(tmp_path / "step-3").read([Piece("w", (10, 6), (0, 0), torch.empty(10, 6), False)])
