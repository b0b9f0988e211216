"""Checkpoints that are damaged: a run passes them over, moves them aside and comes through their steps."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardlang.checkpoints import folders, rank_files
from shardlang.checkpoints.index import text_of
from shardlang.checkpoints.rank_files import Block
from shardlang.errors import RunError
from shardlang.runtime.state.checkpoints import Checkpoints
from tests.runtime.test_going_on import claimed, program, said


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A folder with checkpoints after steps 2, 4 and 6 of 6."""
    said(program(tmp_path, resume=False))
    return tmp_path


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path, at: int) -> None:
    text = bytearray(path.read_bytes())
    text[at] ^= 4
    path.write_bytes(text)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


FILE = "rank-00000.safetensors"
BREAKS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "a file is cut short": (lambda step: cut(step / FILE), FILE, "were written"),
    "a file is gone": (lambda step: (step / FILE).unlink(), FILE, "No such file or directory"),
    "a byte is another": (lambda step: flip(step / FILE, -1), FILE, "`w` in it is damaged: a checksum is another"),
    "a byte of a header is another": (lambda step: flip(step / FILE, 20), FILE, "the checksum of its header"),
    "the index is cut short": (lambda step: cut(step / "index.json"), "index.json", "the checkpoint cannot be read"),
    "a number of the index is another": (
        lambda step: flip(step / "index.json", (step / "index.json").read_text().index("batch") + 8),
        "index.json", "its checksum is another",
    ),
    "the index is gone": (lambda step: (step / "index.json").unlink(), "index.json", "No such file or directory"),
    "the index is empty": (lambda step: os.truncate(step / "index.json", 0), "index.json", "cannot be read"),
    "the index is zeros": (
        lambda step: (step / "index.json").write_bytes(bytes((step / "index.json").stat().st_size)),
        "index.json", "cannot be read",
    ),
    "the format is another": (lambda step: flip(step / "index.json", 11), "index.json", "has format 6"),
    "the name of the checksum is another": (
        lambda step: flip(step / "index.json", (step / "index.json").read_text().index("crc32")),
        "index.json", "its checksum is another",
    ),
    "it is of another step": (
        lambda step: shutil.copytree(step.with_name("step-4"), step, dirs_exist_ok=True),
        "index.json", "this is the index of step 4, and the folder is `step-6`",
    ),
    "a file is of another step": (lambda step: shutil.copy(step.with_name("step-4") / FILE, step), FILE, "checksum of"),
}  # fmt: skip


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_newest_checkpoint_is_passed_over(done: Path, how: str) -> None:
    """It is moved aside with all that is in it, and the run comes through its step."""
    kept = done / "kept"
    breaks, file, why = BREAKS[how]
    breaks(kept / "step-6")
    (kept / "step-6" / "notes.txt").write_text("mine")
    before = contents(kept / "step-6")
    lines = said(program(done)).splitlines()[1:]
    passed = f"{kept / 'step-6'} is passed over: "
    assert lines[0].startswith(passed) and f"({kept / 'step-6' / file}, seen by rank 0 on " in lines[0]
    assert why in lines[0]
    aside = kept / "step-6.damaged"
    assert lines[1:3] == [f"{kept / 'step-6'} is damaged, and was moved to {aside}",
                          f"goes on after step 4, from {kept / 'step-4'}"]  # fmt: skip
    assert contents(aside) == before
    assert f"finished: {kept / 'step-6'}" in said(program(done))
    breaks(kept / "step-6")
    assert f"was moved to {aside}-2" in said(program(done)) and contents(aside) == before


@pytest.mark.parametrize("how", BREAKS)
def test_a_run_that_begins_anew_is_told_of_a_damaged_one_and_comes_through(done: Path, how: str) -> None:
    """`--overwrite` moves it aside where it cannot be told any more that it is a checkpoint's."""
    BREAKS[how][0](done / "kept" / "step-6")
    for step in (2, 4):
        shutil.rmtree(done / "kept" / f"step-{step}")
    before = contents(done / "kept" / "step-6")
    given = program(done, resume=False)
    with pytest.raises(RunError, match="of an earlier run is here, the newest after step 6"):
        claimed(given)
    given.overwrite = True
    out = said(given)
    aside = done / "kept" / "step-6.damaged"
    removed = "1 checkpoint of an earlier run removed" in out
    assert removed or (f"was moved to {aside}" in out and contents(aside) == before)
    assert f"finished: {done / 'kept' / 'step-6'}" in said(program(done))


def test_a_damaged_one_that_cannot_be_moved_is_named(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    flip(done / "kept" / "step-6" / FILE, -1)
    monkeypatch.setattr(folders.os, "rename", refuses)
    with pytest.raises(RunError, match="a damaged checkpoint cannot be moved aside: Operation not permitted") as raised:
        said(program(done))
    assert (raised.value.code, raised.value.file) == ("SH512", done / "kept" / "step-6")
    assert raised.value.help == f"mv {done / 'kept' / 'step-6'} {done / 'kept' / 'step-6.damaged'}"


def test_only_steps_to_come_can_be_in_the_way(done: Path) -> None:
    """A user's file in an older checkpoint, or a link to where it was moved, is not."""
    kept = done / "kept"
    (kept / "step-2" / "notes.txt").write_text("mine")
    (kept / "step-4").rename(done / "moved")
    (kept / "step-4").symlink_to(done / "moved")
    assert "goes on after step 6" in said(program(done, steps=12))
    assert (kept / "step-2" / "notes.txt").read_text() == "mine" and (kept / "step-4").is_symlink()
    (kept / "step-14").mkdir()
    (kept / "step-14" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="something else is in the way of a checkpoint"):
        said(program(done, steps=14))


def test_a_run_does_not_end_well_whose_last_checkpoint_is_cut_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cuts(to: Checkpoints) -> None:
        to.wait()
        cut(tmp_path / "kept" / "step-6" / FILE)
        finish(to)

    finish = Checkpoints.finish
    monkeypatch.setattr(Checkpoints, "finish", cuts)
    with pytest.raises(RunError, match=r"the checkpoint cannot be read: it has \d+ bytes, and \d+ were written"):
        said(program(tmp_path, resume=False))
    monkeypatch.undo()
    assert "goes on after step 4" in said(program(tmp_path))


def test_a_finished_run_is_one_whose_files_are_all_as_long_as_they_were(done: Path) -> None:
    """Also those that hold nothing that this program reads."""
    step = done / "kept" / "step-6"
    block, numbers = Block("other", "F32", (0,), (4,)), np.zeros(16, np.uint8)
    made = rank_files.write(step, 1, [block], lambda _: numbers)
    facts = {name: value for name, value in json.loads((step / "index.json").read_text()).items() if name != "crc32"}
    facts["files"].append([made.size, made.header, made.crc32])
    facts["layouts"].append(["F32", [4], [[4]], [1]])
    facts["tensors"]["other"] = len(facts["layouts"]) - 1
    (step / "index.json").write_text(text_of(facts))
    assert "finished: " in said(program(done))
    cut(step / "rank-00001.safetensors")
    out = said(program(done))
    assert "step-6 is passed over" in out and "goes on after step 4" in out


def test_where_the_one_before_is_broken_too_it_is_passed_over(done: Path) -> None:
    kept = done / "kept"
    for step in (6, 4):
        cut(kept / f"step-{step}" / FILE)
    out = said(program(done))
    assert out.count("is passed over") == 2 and f"goes on after step 2, from {kept / 'step-2'}" in out
    for step in (2, 4, 6):
        cut(kept / f"step-{step}" / FILE)
    with pytest.raises(RunError) as raised:
        said(program(done))
    assert raised.value.message.startswith("no checkpoint is whole; of the newest: the checkpoint cannot be read")
    assert raised.value.file == kept / "step-6" / FILE
    assert raised.value.help == "start anew by --overwrite"
