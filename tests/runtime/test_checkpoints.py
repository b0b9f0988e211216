"""Checkpoints as files: blocks of one layout read back under another, unfinished folders, old ones dropped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from shardlang.runtime import checkpoints as kept
from shardlang.runtime.checkpoints import Checkpoints, Piece, Saved
from shardlang.runtime.errors import RunError

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
        Saved(folder).read([Piece("w", (10, 6), piece.offsets, empty, False)])
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
    Saved(folder / "step-1").read(read)
    assert all(torch.equal(found.local, due.local) for found, due in zip(read, given, strict=True))


def test_what_a_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    write(tmp_path / "step-3", pieces([5, 5], [6])[:1])
    saved = Saved(tmp_path / "step-3")
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
    assert Saved(tmp_path / "step-30").index["seed"] == 0


def test_a_scalar_and_a_type_of_its_own(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path, every=1, keep=0)
    run.write(1, [Piece("count", (), (), torch.tensor(7), True)], {})
    found = torch.tensor(0)
    Saved(tmp_path / "step-1").read([Piece("count", (), (), found, False)])
    assert found.item() == 7


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    write(tmp_path / "step-3", pieces([10], [6]))
    (tmp_path / "step-3" / "rank-00000.safetensors").unlink()
    with pytest.raises(RunError, match="cannot be read") as raised:
        Saved(tmp_path / "step-3").read([Piece("w", (10, 6), (0, 0), torch.zeros(10, 6), False)])
    assert raised.value.file == tmp_path / "step-3" / "rank-00000.safetensors"
    (tmp_path / "step-3" / kept.INDEX).write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        Saved(tmp_path / "step-3")


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
        Saved(tmp_path / "step-3").read([Piece("w", (10, 6), (0, 0), torch.empty(10, 6), False)])
    assert found.value.code == "SH508"


def test_a_file_that_is_cut_short_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "step-3", pieces([10], [6]))
    file = tmp_path / "step-3" / "rank-00000.safetensors"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(RunError, match="cannot be read"):
        Saved(tmp_path / "step-3").read([Piece("w", (10, 6), (0, 0), torch.empty(10, 6), False)])
