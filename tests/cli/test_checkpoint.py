"""`shardc checkpoint`: what it shows of a checkpoint, and which it finds whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardlang.checkpoints import rank_files
from shardlang.checkpoints.index import INDEX, SavedLayout, text_of
from shardlang.checkpoints.rank_files import Block, file_name
from shardlang.cli.main import run

FACTS = {"batch": 64, "seed": 0, "optimizers": {"w": "adamw"}, "data": {
    "source": "csv", "length": 1437, "fields": {"x": ["f32", 8, 2], "id": ["i64", "below 9"], "y": ["f32"]},
    "files": [["rows.csv", 1048, "0a1b2c3d"]],
}}  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Checkpoints of steps 2 and 4: `w` [6, 3], four rows by rank 0 and two by rank 1."""
    layout = SavedLayout("F32", (6, 3), [[4, 2], [3]], [0, 1])
    for step in (2, 4):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        files = []
        for part in layout.parts():
            block = Block("w", "F32", part.offsets, part.lengths)
            numbers = np.full(part.lengths, step, np.float32).view(np.uint8)
            made = rank_files.write(folder, part.rank, [block], lambda _, numbers=numbers: numbers)
            files.append([made.size, made.header, made.crc32])
        index = {"format": 2, "step": step, **FACTS, "files": files, "layouts": [layout.written()], "tensors": {"w": 0}}
        (folder / INDEX).write_text(text_of(index))
    return tmp_path


def test_show_tells_of_the_newest_or_of_the_one_that_is_named(kept: Path, capsys) -> None:
    for folder, step in ((kept, 4), (kept / "step-2", 2)):
        assert run(["checkpoint", "show", str(folder)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"{kept}/step-{step}: step {step}, format 2"
        assert lines[1].startswith("written by 2 ranks: ") and "in 2 files, the largest 1.0" in lines[1]
        assert {"batch: 64", "data.length: 1437", "optimizers: adamw", "1 tensor:"} <= set(lines)
        assert {
            "data.fields: x f32[8, 2], id i64[] below 9, y f32[]",
            "data.files: rows.csv of 1048 bytes (checksum 0a1b2c3d)",
        } <= set(lines)
        assert lines[-1] == "  w  f32[6, 3]  in 2 parts"
    assert run(["checkpoint", "show", str(kept), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tensors"] == [{"name": "w", "type": "F32", "shape": [6, 3], "bytes": 72, "parts": 2}]
    assert facts["step"] == 4 and facts["data"] == FACTS["data"] and set(facts["files"]) == {file_name(0), file_name(1)}


def test_verify_reads_every_byte(kept: Path, capsys) -> None:
    assert run(["checkpoint", "verify", str(kept)]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{kept}/step-4: whole", f"{kept}/step-2: whole"]
    broken = kept / "step-2" / file_name(1)
    broken.write_bytes(broken.read_bytes()[:-1] + b"x")
    assert run(["checkpoint", "verify", str(kept)]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines() == [f"{kept}/step-4: whole", f"{kept}/step-2: broken"]
    assert shown.err.startswith("error[SH508]: the checkpoint cannot be read: `w` in it is damaged")
    assert str(broken) in shown.err
    assert run(["checkpoint", "verify", str(kept / "step-2"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["whole"] and [each["file"] for each in told["broken"]] == [str(broken)]


@pytest.mark.parametrize("data", [[], {"fields": 3}, {"fields": {"x": [], "y": 4}}, {"files": [["a", 1, "b"], 7]}])
def test_show_takes_what_another_program_has_recorded(kept: Path, data: object, capsys) -> None:
    index = json.loads((kept / "step-4" / INDEX).read_text())
    index.pop("crc32")
    (kept / "step-4" / INDEX).write_text(text_of({**index, "data": data}))
    assert run(["checkpoint", "show", str(kept)]) == 0
    assert "1 tensor:" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["show", "verify"])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, word: str, capsys) -> None:
    assert run(["checkpoint", word, str(tmp_path)]) == 1
    assert "error[SH508]: there is no checkpoint" in capsys.readouterr().err
    (tmp_path / INDEX).write_text('{"weight_map": {}}')
    assert run(["checkpoint", word, str(tmp_path)]) == 1
    assert "error[SH508]: the checkpoint has format None" in capsys.readouterr().err


def test_no_torch_is_needed(kept: Path) -> None:
    script = "import sys\nfrom shardlang.cli.main import run\nprint(run(sys.argv[1:]), 'torch' in sys.modules)"
    command = [sys.executable, "-c", script, "checkpoint", "verify", str(kept)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False"
