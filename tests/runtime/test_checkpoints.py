"""Checkpoints as files: blocks of one layout read back under another, unfinished folders, old ones dropped."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.checkpoints import folders, rank_files
from shardlang.checkpoints.index import INDEX, FileFacts, Index, SavedLayout, text_of
from shardlang.checkpoints.rank_files import Block, cells_of, file_name
from shardlang.errors import RunError
from shardlang.runtime.state import checkpoints as kept
from shardlang.runtime.state.checkpoints import Checkpoints, Piece, SavedRun
from tests.spent import at_most
from tests.waits import LIMIT

WHOLE = torch.arange(60.0).view(10, 6)


def layout(rows: list[int], columns: list[int]) -> SavedLayout:
    """WHOLE cut at the given lengths, each part by a rank of its own."""
    return SavedLayout("F32", (10, 6), [rows, columns], list(range(len(rows) * len(columns))))


def pieces(cut: SavedLayout) -> list[Piece]:
    """The parts of WHOLE that hold an element."""
    found = []
    for part in cut.parts():
        rows, columns = (slice(o, o + n) for o, n in zip(part.offsets, part.lengths, strict=True))
        found.append(Piece("w", (10, 6), part.offsets, WHOLE[rows, columns].clone()))
    return found


def write(folder: Path, cut: SavedLayout, **facts: Any) -> dict[str, Any]:
    """A checkpoint of WHOLE as several ranks write it; what its index says."""
    folder.mkdir(parents=True)
    files: list[Any] = [None] * len(cut.ranks)
    for part in cut.parts():
        rows, columns = (slice(o, o + n) for o, n in zip(part.offsets, part.lengths, strict=True))
        numbers = WHOLE[rows, columns].contiguous().view(torch.uint8).numpy()
        block = Block("w", "F32", part.offsets, part.lengths)
        made = rank_files.write(folder, part.rank, [block], lambda _, numbers=numbers: numbers)
        files[part.rank] = [made.size, made.header, made.crc32]
    index = {"format": 2, "step": 3, **facts, "files": files, "layouts": [cut.written()], "tensors": {"w": 0}}
    (folder / INDEX).write_text(text_of(index))
    return index


def write_all(run: Checkpoints, *given: Any) -> None:
    run.write(*given)
    run.wait()


def whole() -> Piece:
    return Piece("w", (10, 6), (0, 0), torch.full((10, 6), -1.0))


def lengths(total: int) -> st.SearchStrategy[list[int]]:
    cuts = st.lists(st.integers(0, total), max_size=3).map(sorted)
    return cuts.map(lambda at: [b - a for a, b in zip([0, *at], [*at, total], strict=True)])


@settings(deadline=None)
@given(rows=lengths(10), columns=lengths(6), other_rows=lengths(10), other_columns=lengths(6))
def test_blocks_of_one_layout_are_read_under_another(
    tmp_path_factory, rows, columns, other_rows, other_columns
) -> None:
    folder = tmp_path_factory.mktemp("kept") / "step-3"
    write(folder, layout(rows, columns))
    for piece in pieces(layout(other_rows, other_columns)):
        expected, empty = piece.local.clone(), torch.full_like(piece.local, -1.0)
        SavedRun(folder).read([Piece("w", (10, 6), piece.offsets, empty)])
        assert torch.equal(empty, expected)


SHAPES = st.lists(st.integers(1, 40), min_size=0, max_size=4)


@settings(deadline=None)
@given(shape=SHAPES, cell=st.integers(1, 5000), least=st.integers(1, 64), data=st.data())
def test_any_part_of_a_block_is_read_and_any_flipped_byte_is_found(tmp_path_factory, shape, cell, least, data) -> None:
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_files, "_CELL", cell)
        patch.setattr(rank_files, "_LEAST", least)
        given = torch.rand(shape)
        parts = {name: SavedLayout("F32", shape, [[n] for n in shape], [0]) for name in ("w", "v")}
        run = Checkpoints(folder, every=1, keep=0)
        write_all(run, 1, [Piece(name, tuple(shape), (0,) * len(shape), given) for name in parts], parts, {})
        bounds = [sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
        found = torch.full([b - a for a, b in bounds], -1.0)
        piece = Piece("v", tuple(shape), tuple(a for a, _ in bounds), found)
        SavedRun(folder / "step-1").read([piece])
        assert torch.equal(found, given[tuple(slice(a, b) for a, b in bounds)])
        assert [torch.equal(given, part) for _, _, part in joined(SavedRun(folder / "step-1"))] == [True] * 2

        path = folder / "step-1" / file_name(0)
        broken = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(broken) - 1))
        broken[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(broken)
        with pytest.raises(RunError, match="cannot be read") as raised:
            SavedRun(folder / "step-1").read(
                [Piece(name, tuple(shape), (0,) * len(shape), torch.empty(shape)) for name in parts]
            )
        assert raised.value.file == path


def joined(saved: SavedRun) -> list[tuple[str, tuple[int, ...], torch.Tensor]]:
    """What `parts` gives, by name: some rows at a time, put together."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, offsets, part in saved.parts():
        rows = sum(len(one) if one.dim() else 1 for one in found.setdefault(name, []))
        assert (offsets[0] if offsets else 0) == rows
        found[name].append(part.clone())
    return [(name, (), torch.cat(each) if each[0].dim() else each[0]) for name, each in found.items()]


@pytest.mark.parametrize("shape", [(3000, 4096), (4096,), (1, 3_000_000), (64, 3, 7, 7), (2, 1, 500_000), (50257, 64)])
def test_cells_are_neither_large_nor_many(shape: tuple[int, ...]) -> None:
    """Their checksums are a thousandth of a block, or some bytes; a part of its columns is read without others."""
    cells, size = cells_of(shape, 4), 4 * torch.Size(shape).numel()
    assert cells.rows * cells.columns * cells.column == size
    assert cells.wide * cells.column * cells.high <= max(2**18, cells.column)
    assert 4 * cells.count <= max(size / 256, 64)
    if len(shape) > 1 and shape[1] == 4096:
        assert cells.wide * cells.column == 4096 // 16 * 4


def test_what_a_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    write(tmp_path / "step-3", layout([5, 5], [6]))
    saved = SavedRun(tmp_path / "step-3")
    with pytest.raises(RunError, match="lacks `v` and 1 more"):
        saved.read([Piece(name, (2,), (0,), torch.zeros(2)) for name in ("v", "u")])
    with pytest.raises(RunError, match=r"`w` is \[10, 6\] in the checkpoint and \[6, 10\] in the program"):
        saved.read([Piece("w", (6, 10), (0, 0), torch.zeros(6, 10))])


def test_only_what_is_complete_counts_and_old_ones_go(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path, every=10, keep=2)
    assert run.latest() is None
    assert [step for step in range(1, 36) if run.due(step, 35)] == [10, 20, 30, 35]
    for step in (10, 20, 30):
        write_all(run, step, *one(step), {"seed": 0})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-20", "step-30"]
    (tmp_path / "step-40").mkdir()  # as it would be left by a run that died
    assert run.latest() == tmp_path / "step-30"
    assert SavedRun(tmp_path / "step-30").facts["seed"] == 0


def one(step: int) -> tuple[list[Piece], dict[str, SavedLayout]]:
    return [Piece("w", (2,), (0,), torch.ones(2) * step)], {"w": SavedLayout("F32", (2,), [[2]], [0])}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


THEIRS = ("step-2/notes.txt", "step-2/rank-00000.safetensors", "step-2/index.json", "step-2", ".step-2.part/x")
THEIRS += (".step-2.part/rank-00000.safetensors", ".step-2.part/index.json", ".step-2.part", ".step-2.old/x")


@pytest.mark.parametrize("name", THEIRS)
def test_what_is_not_a_checkpoint_is_never_replaced(tmp_path: Path, name: str) -> None:
    """Neither before the training, which is told, nor where it came to be during it."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"format": 2, "step": 3, "weight_map": {}}')
    before = contents(tmp_path)
    run = Checkpoints(tmp_path, every=2, keep=1)
    with pytest.raises(RunError, match="something else is in the way of a checkpoint") as raised:
        run.require_way(4, 0)
    place = tmp_path / Path(name).parts[0]
    assert (raised.value.code, raised.value.file) == ("SH512", place)
    # A file may be one that the run reads: it is not to be moved.
    assert raised.value.help.startswith("write checkpoints to another folder: `to` of `checkpoint`")
    assert (f"mv {place} {place}.mine" in raised.value.help) is place.is_dir()
    with pytest.raises(RunError, match="in the way"):
        write_all(run, 2, *one(2), {})
    assert contents(tmp_path).items() >= before.items()
    Checkpoints(tmp_path, every=3, keep=1).require_way(4, 0)  # that writes steps 3 and 4: step-2 is not in its way


def test_a_file_of_the_users_in_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path, every=1, keep=1)
    write_all(run, 1, *one(1), {})
    (tmp_path / "step-1" / "notes.txt").write_text("mine")
    before = contents(tmp_path)
    for step in (2, 3):
        write_all(run, step, *one(step), {})
    assert contents(tmp_path / "step-1") == {n.removeprefix("step-1/"): c for n, c in before.items()}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-1", "step-3"]
    with pytest.raises(RunError) as raised:
        run.require_way(4, 0)
    assert raised.value.file == tmp_path / "step-1" / "notes.txt"


def test_a_link_to_a_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path / "here", every=1, keep=1)
    write_all(Checkpoints(tmp_path / "there", every=1, keep=1), 1, *one(1), {})
    write_all(run, 2, *one(2), {})
    (tmp_path / "here" / "step-1").symlink_to(tmp_path / "there" / "step-1")
    write_all(run, 3, *one(3), {})
    assert sorted(p.name for p in (tmp_path / "here").iterdir()) == ["step-1", "step-3"]
    assert (tmp_path / "there" / "step-1" / INDEX).is_file()
    with pytest.raises(RunError, match="in the way"):
        run.require_way(3, 0)


def test_a_former_runs_checkpoints_are_replaced(tmp_path: Path) -> None:
    """As where they are broken, and a run goes on from one before them."""
    for value in (1, 7):
        run = Checkpoints(tmp_path, every=2, keep=0)
        run.require_way(4, 0)
        for step in (2, 4):
            write_all(run, step, *one(step * value), {})
    found = torch.zeros(2)
    SavedRun(tmp_path / "step-4").read([Piece("w", (2,), (0,), found)])
    assert found.tolist() == [28, 28]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-2", "step-4"]


def test_a_checkpoint_is_of_the_moment_and_written_beside_what_follows(tmp_path: Path, monkeypatch) -> None:
    """From a copy, one at a time; the next waits for the last, and an error is raised by what follows."""
    go_on, steps = threading.Event(), []

    def slow(*given: Any) -> FileFacts:
        steps.append(given[0].name)
        assert go_on.wait(LIMIT)
        return rank_files.write(*given)

    monkeypatch.setattr(kept, "write", slow)
    run = Checkpoints(tmp_path, every=1, keep=0)
    pieces, layouts = one(1)
    run.write(1, pieces, layouts, {})
    pieces[0].local.fill_(9)  # as the next step does
    assert run.latest() is None
    threading.Timer(0.2, go_on.set).start()
    run.write(2, pieces, layouts, {})
    assert run.latest() == tmp_path / "step-1" and steps in ([".step-1.part"], [".step-1.part", ".step-2.part"])
    run.wait()
    found = torch.zeros(2)
    for step, value in ((1, 1.0), (2, 9.0)):
        SavedRun(tmp_path / f"step-{step}").read([Piece("w", (2,), (0,), found)])
        assert found.tolist() == [value] * 2

    def full(*given: Any) -> FileFacts:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(kept, "write", full)
    run.write(3, pieces, layouts, {})
    for step in (lambda: run.write(4, pieces, layouts, {}), run.check, run.wait):
        with pytest.raises(RunError, match="a checkpoint cannot be written: No space left on device") as raised:
            step()
        assert raised.value.file == tmp_path / ".step-3.part"
    assert run.latest() == tmp_path / "step-2"


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
        for where, name in ((os, "replace"), (Path, "mkdir"), (Path, "unlink"), (Path, "rmdir"), (os, "fsync")):
            patch.setattr(where, name, counted(getattr(where, name)))
        write_all(run, 2, *one(2), {})
        write_all(run, 3, *one(3), {})
    return calls == call


def test_a_run_that_is_killed_leaves_a_whole_checkpoint_and_nothing_in_the_way(tmp_path: Path) -> None:
    """Wherever it dies, the next run goes on from a whole checkpoint, and cleans up."""
    for call in itertools.count(1):
        folder = tmp_path / str(call)
        for step in (1, 2):
            write_all(Checkpoints(folder, every=1, keep=1), step, *one(step), {})
        died = dies_at(call, folder)
        again = Checkpoints(folder, every=1, keep=1)
        folders.tidy(folder)
        again.require_way(9, 0)
        latest = again.latest()
        assert latest is not None and latest.name in ("step-2", "step-3"), call
        SavedRun(latest).read([Piece("w", (2,), (0,), torch.zeros(2))])
        write_all(again, 3, *one(3), {})
        assert [p.name for p in folder.iterdir()] == ["step-3"]
        if not died:
            break
    assert call > 15


def test_a_scalar_and_a_type_of_its_own(tmp_path: Path) -> None:
    run = Checkpoints(tmp_path, every=1, keep=0)
    write_all(run, 1, [Piece("count", (), (), torch.tensor(7))], {"count": SavedLayout("I64", (), [], [0])}, {})
    found = torch.tensor(0)
    SavedRun(tmp_path / "step-1").read([Piece("count", (), (), found)])
    assert found.item() == 7


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    write(tmp_path / "step-3", layout([10], [6]))
    (tmp_path / "step-3" / "rank-00000.safetensors").unlink()
    with pytest.raises(RunError, match="cannot be read: No such file") as raised:
        SavedRun(tmp_path / "step-3").read([whole()])
    assert raised.value.file == tmp_path / "step-3" / "rank-00000.safetensors"
    (tmp_path / "step-3" / INDEX).write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        SavedRun(tmp_path / "step-3")


def changed(index: dict[str, Any], **given: Any) -> str:
    return text_of({**index, **given})


def laid(*given: Any) -> dict[str, Any]:
    return {"layouts": [list(given)]}


DAMAGED = {
    "a list": ([], "format None"),
    "newer": ({"format": 3}, "format 3, and this is for 2: a newer shardlang wrote it"),
    "older": ({"format": 1}, "format 1, and this is for 2: an older shardlang wrote it"),
    "no files": ({"files": None}, "damaged: TypeError"),
    "another step": ({"step": "x"}, "damaged"),
    "a file is no list": ({"files": [7]}, "damaged"),
    "a size below 0": ({"files": [[-5, 1, 1]]}, "sizes of files"),
    "two dims": (laid("F32", [10, 6], [[10]], [0]), r"layout of 'F32' \[10, 6\]"),
    "another type": (laid("F8", [10, 6], [[10], [6]], [0]), "layout of 'F8'"),
    "outside": (laid("F32", [10, 6], [[10], [7]], [0]), "parts of a dim of 6 are not 6 in all"),
    "missing": (laid("F32", [10, 6], [[5, 4], [6]], [0, 1]), "parts of a dim of 10 are not 10"),
    "below 0": (laid("F32", [10, 6], [[11, -1], [6]], [0, 0]), "parts of a dim of 10"),
    "a part without a rank": (laid("F32", [10, 6], [[5, 5], [6]], [0]), "1 ranks for another number"),
    "twice": (laid("F32", [10, 6], [[5, 5], [6]], [0, 0]), "rank 0 has two parts of one tensor"),
    "a rank that is not there": (laid("F32", [10, 6], [[10], [6]], [9]), "rank 9 of 1"),
    "true is no number": (laid("F32", [10, 6], [[10], [6]], [False]), "1 ranks for another"),
    "a step beyond all counting": ({"step": 10**30}, "damaged: ValueError"),
    "tensors in a list": ({"tensors": ["w"]}, "damaged: AttributeError"),
    "a layout that is not there": ({"tensors": {"w": 1}}, "damaged: IndexError"),
    "nothing of the file": ({"files": [None]}, "it says nothing of `rank-00000.safetensors`"),
    "a shape of its own": (laid("F32", [6, 10], [[6], [10]], [0]), r"`w` is \[6, 10\] in the checkpoint"),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_index_is_an_error(tmp_path: Path, how: str) -> None:
    index = write(tmp_path / "step-3", layout([10], [6]))
    given, told = DAMAGED[how]
    text = changed(index, **given) if isinstance(given, dict) else json.dumps(given)
    (tmp_path / "step-3" / INDEX).write_text(text)
    with pytest.raises(RunError, match=told) as found:
        SavedRun(tmp_path / "step-3").read([whole()])
    assert found.value.code == "SH508"


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_flipped_byte_of_an_index_is_found(tmp_path_factory, data) -> None:
    folder = tmp_path_factory.mktemp("kept") / "step-3"
    write(folder, layout([4, 6], [6]), batch=64)
    text = bytearray((folder / INDEX).read_bytes())
    text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / INDEX).write_bytes(text)
    with pytest.raises(RunError) as raised:
        SavedRun(folder)
    assert raised.value.code == "SH508"


def test_an_index_that_nests_or_is_huge_is_refused(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text("[" * 200_000)
    with pytest.raises(RunError, match="cannot be read"):
        Index(tmp_path)
    with (tmp_path / INDEX).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(RunError, match="1099511627776 bytes, where at most 33554432 are due"):
        Index(tmp_path)


def test_a_header_that_lies_about_its_size_is_refused_by_its_length(tmp_path: Path) -> None:
    index = write(tmp_path / "step-3", layout([10], [6]))
    path = tmp_path / "step-3" / file_name(0)
    text = path.read_bytes()
    path.write_bytes((2**30).to_bytes(8, "little") + text[8:])
    with pytest.raises(RunError, match=f"its header has {2**30 + 8} bytes, and {index['files'][0][1]} were written"):
        SavedRun(tmp_path / "step-3").read([whole()])
    # Also where the index says the same, and the file is as long.
    with path.open("r+b") as file:
        file.truncate(2**31)
    lying = changed(index, files=[[2**31, 2**30 + 8, 0]])
    (tmp_path / "step-3" / INDEX).write_text(lying)
    with pytest.raises(RunError, match=f"its header has {2**30 + 8} bytes"):
        SavedRun(tmp_path / "step-3").read([whole()])


def test_a_header_of_another_block_is_refused(tmp_path: Path) -> None:
    """Also where its checksum is right: a folder that was put together from two."""
    write(tmp_path / "one" / "step-3", layout([10], [6]))
    index = write(tmp_path / "step-3", layout([5, 5], [6]))
    first, second = (tmp_path / "step-3" / file_name(rank) for rank in (0, 1))
    first.write_bytes(second.read_bytes())
    (tmp_path / "step-3" / INDEX).write_text(changed(index, files=[index["files"][1]] * 2))
    with pytest.raises(RunError, match="`w` in it is not the block that the index says"):
        SavedRun(tmp_path / "step-3").read([whole()])


@pytest.mark.parametrize("places", [[0.0, 240.0], [False, 240], [0, "240"], [0]])
def test_a_header_whose_places_are_no_whole_numbers_is_refused(tmp_path: Path, places: list[Any]) -> None:
    """Also where its checksum is right."""
    index = write(tmp_path / "step-3", layout([10], [6]))
    path = tmp_path / "step-3" / file_name(0)
    text = path.read_bytes()
    size = int.from_bytes(text[:8], "little")
    header = json.dumps(
        {**json.loads(text[8 : 8 + size]), "w": {"dtype": "F32", "shape": [10, 6], "data_offsets": places}}
    )
    begin = len(header).to_bytes(8, "little") + header.encode()
    path.write_bytes(begin + text[8 + size :])
    facts = [len(begin) + len(text) - 8 - size, len(begin), zlib.crc32(begin)]
    (tmp_path / "step-3" / INDEX).write_text(changed(index, files=[facts]))
    with pytest.raises(RunError, match=r"`w` in it is not the block|its header is damaged"):
        SavedRun(tmp_path / "step-3").read([whole()])


@pytest.mark.parametrize("how", ["nests", "pipe", "huge"])
def test_an_index_that_cannot_be_read_is_none_of_ours(tmp_path: Path, how: str) -> None:
    """A pipe is not waited for."""
    (tmp_path / "step-3").mkdir()
    index = tmp_path / "step-3" / INDEX
    os.mkfifo(index) if how == "pipe" else index.write_text("[" * 200_000)
    if how == "huge":
        os.truncate(index, 2**40)
    assert folders.foreign(tmp_path / "step-3") is not None and folders.kept(tmp_path) == {}
    folders.tidy(tmp_path)
    with pytest.raises(RunError, match="something else is in the way"):
        Checkpoints(tmp_path, every=3, keep=0).require_way(3, 0)


def test_a_step_has_digits_of_ascii(tmp_path: Path) -> None:
    """Python takes others for numbers too, and `step-\u0663` is no name that a run gives."""
    for name in ("step-\u0663", "step-1\u0663", ".step-1\u0663.part"):
        (tmp_path / name).mkdir()
    assert folders.steps(tmp_path) == {} and not folders.is_name(".step-1\u0663.part")


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "step-3", layout([10], [6]))
    path = tmp_path / "step-3" / file_name(0)
    path.rename(tmp_path / "outside")
    {"link": lambda: path.symlink_to("../outside"), "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[kind]()
    with pytest.raises(RunError, match="it is a link" if kind == "link" else "this is no regular file"):
        SavedRun(tmp_path / "step-3").read([whole()])


def test_an_index_of_many_parts_is_small_and_quick(tmp_path: Path) -> None:
    """2.3 million parts on 16,384 ranks: 16 stages of 1,024 ranks, 216 tensors in each that are cut in 670."""
    layouts = []
    rows = [24] * 669 + [16384 - 24 * 669]
    for stage in range(16):
        for kind in range(9):
            ranks = [stage * 1024 + kind + at for at in range(670)]
            layouts.append(SavedLayout("F32", (16384, 1024 + kind), [rows, [1024 + kind]], ranks))
    tensors = {f"blocks[{n}].weight:{n % 3}": n % len(layouts) for n in range(3456)}
    files = [[10**9, 20000, 123456789]] * 16384
    text = text_of({
        "format": 2, "step": 3, "files": files, "layouts": [each.written() for each in layouts], "tensors": tensors
    })  # fmt: skip
    (tmp_path / INDEX).write_text(text)

    def read() -> tuple[int, int]:
        index = Index(tmp_path)
        mine = [part for each in index.tensors.values() for part in each.overlapping((100, 0), (24, 1024))]
        return len(index.tensors) * 670, len(mine)

    with at_most(1):
        assert read() == (2_315_520, 2 * 3456)
    tracemalloc.start()
    read()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100e6
