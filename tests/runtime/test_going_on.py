"""What a run that is to go on says: of a finished one, of another optimizer, of a broken newest checkpoint."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardlang import runtime as rt
from shardlang.checkpoints import folders
from shardlang.checkpoints.index import text_of
from shardlang.disk.locks import Claims
from shardlang.errors import RunError
from shardlang.runtime.logs import Log
from shardlang.runtime.step.resume import claim_of_program
from shardlang.runtime.step.train import TrainingRun, datasets


def program(
    folder: Path, kind: str = "sgd", resume: bool = True, steps: int | None = 6, **optimizer: Any
) -> rt.Program:
    np.savez(folder / "a.npz", x=np.arange(8.0))
    source = rt.Source("numpy", batch=4, path="a.npz", fields=[rt.Field("x", "f32", (4,))])
    return rt.Program(
        name="t.shard", strategy="", ranks=1, mesh=rt.Mesh(), parameters=[rt.Parameter("w", (2,), init="ones")],
        data=source, optimizers=[rt.Optimizer(kind, lr=0.001, **optimizer)],
        forward=lambda p, x: ((x.sum() * p.w).square().mean(), {}), steps=steps, epochs=None if steps else 3,
        base=folder, resume=resume, checkpoint=rt.Checkpoint(2, 3, "kept"),
    )  # fmt: skip


def said(given: rt.Program) -> str:
    out = io.StringIO()
    TrainingRun(given, datasets(given), Log(out, None)).train()
    return out.getvalue()


@pytest.fixture
def done(tmp_path: Path) -> Path:
    """A folder with checkpoints after steps 2, 4 and 6 of 6."""
    said(program(tmp_path, resume=False))
    return tmp_path


@pytest.mark.parametrize(("steps", "more"), [(6, "steps=12"), (None, "epochs=4"), (5, "steps=12")])
def test_a_finished_run_says_so_and_how_to_train_further(done: Path, steps: int | None, more: str) -> None:
    kept = done / "kept" / "step-6"
    told = f"finished: {kept} is of step 6, and the last step is {steps or 6}; to train further: --resume --set train."
    assert f"{told}{more}" in said(program(done, steps=steps)).splitlines()
    assert f"goes on after step 6, from {kept}" in said(program(done, steps=12))


def claimed(given: rt.Program) -> None:
    with Claims() as claims:
        claim_of_program(claims, given, None)


def test_a_new_run_beside_checkpoints_of_an_earlier_one_is_refused(done: Path) -> None:
    """They would stay among its own, and `--resume` would go on from one of them."""
    before = {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}
    with pytest.raises(RunError) as raised:
        claimed(program(done, resume=False, steps=3))
    assert (raised.value.code, raised.value.file) == ("SH512", done / "kept")
    assert raised.value.message == "3 checkpoints of an earlier run are here, the newest after step 6"
    assert raised.value.help.startswith("--resume goes on from there; --overwrite removes what is here and begins anew")
    assert {path: path.read_bytes() for path in done.rglob("*") if path.is_file()} == before
    claimed(program(done))
    shutil.rmtree(done / "kept")
    (done / "kept" / "step-9").mkdir(parents=True)  # no checkpoint: `--resume` would not see it
    claimed(program(done, resume=False))


def test_one_whose_name_a_killed_run_had_taken_counts_too(done: Path) -> None:
    for step in (2, 4):
        shutil.rmtree(done / "kept" / f"step-{step}")
    (done / "kept" / "step-6").rename(done / "kept" / ".step-6.old")
    with pytest.raises(RunError, match="a checkpoint of an earlier run is here, the newest after step 6"):
        claimed(program(done, resume=False))


def test_a_run_that_overwrites_is_the_one_that_a_later_run_goes_on_from(done: Path) -> None:
    given = program(done, resume=False, steps=3)
    given.overwrite = True
    claimed(given)
    told = f"3 checkpoints of an earlier run removed from {done / 'kept'}: this run begins anew"
    assert told in said(given).splitlines()
    assert sorted(path.name for path in (done / "kept").iterdir()) == ["step-2", "step-3"]
    assert f"goes on after step 3, from {done / 'kept' / 'step-3'}" in said(program(done))


def test_a_run_that_overwrites_removes_nothing_where_something_else_is_in_a_checkpoint(done: Path) -> None:
    notes = done / "kept" / "step-4" / "notes.txt"
    for mine in (notes, done / "kept" / ".step-4.old" / "notes.txt"):
        mine.parent.mkdir(exist_ok=True)
        mine.write_text("mine")
        before = {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}
        given = program(done, resume=False, steps=3)
        given.overwrite = True
        with pytest.raises(RunError, match="something else is in the way of a checkpoint"):
            said(given)
        assert {path: path.read_bytes() for path in done.rglob("*") if path.is_file()} == before
        mine.unlink()


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("name", ["kept/step-4/rank-00000.safetensors", "kept/step-4/*.safetensors"])
def test_a_run_that_starts_from_a_checkpoint_does_not_remove_it(done: Path, name: str, linked: bool) -> None:
    if linked:
        (done / "before").symlink_to(done / "kept")
        name = name.replace("kept", "before")
    before = {path: path.read_bytes() for path in done.rglob("*") if path.is_file()}
    given = program(done, resume=False)
    given.overwrite, given.init = True, rt.Safetensors(name)
    with pytest.raises(
        RunError, match="starts from the weights in this file, and --overwrite would remove it"
    ) as raised:
        claimed(given)
    assert (raised.value.code, raised.value.file) == ("SH512", done / "kept" / "step-4" / "rank-00000.safetensors")
    assert raised.value.help.startswith("name another folder: `to` of `checkpoint`; or copy the file")
    assert {path: path.read_bytes() for path in done.rglob("*") if path.is_file()} == before
    # Where it goes on, or writes elsewhere, nothing is removed; a file beside the checkpoints stays.
    given.resume = True
    claimed(given)
    other = program(done, resume=False)
    other.overwrite, other.init, other.checkpoint = True, rt.Safetensors(name), rt.Checkpoint(2, 3, "other")
    claimed(other)
    shutil.copy(done / "kept" / "step-4" / "rank-00000.safetensors", done / "kept" / "w.safetensors")
    given.resume, given.init = False, rt.Safetensors("kept/w.safetensors")
    claimed(given)


def test_a_run_that_is_killed_as_it_overwrites_leaves_the_newest(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped: list[str] = []

    def dies(whole: Path) -> None:
        dropped.append(whole.name)
        if len(dropped) == 3:
            raise KeyboardInterrupt
        drop(whole)

    drop = folders.drop
    monkeypatch.setattr(folders, "drop", dies)
    given = program(done, resume=False)
    given.overwrite = True
    with pytest.raises(KeyboardInterrupt):
        said(given)
    assert dropped == ["step-2", "step-4", "step-6"]
    assert "goes on after step 6" in said(program(done, steps=8))


def test_a_run_that_goes_on_after_a_failure_overwrites_nothing(done: Path) -> None:
    given = program(done, steps=8)
    given.overwrite = True  # as when a launcher starts the ranks again
    assert f"goes on after step 6, from {done / 'kept' / 'step-6'}" in said(given)


@pytest.mark.parametrize(
    ("kind", "settings", "mine", "known"),
    [
        ("adam", {}, "`adam` (which keeps mean, square)", True),
        ("sgd", {"momentum": 0.9}, "`sgd` (which keeps momentum)", True),
        ("adam", {}, "`adam` (which keeps mean, square)", False),
    ],
)
def test_another_optimizer_is_named_beside_that_of_the_checkpoint(
    done: Path, kind: str, settings: dict[str, float], mine: str, known: bool
) -> None:
    index = done / "kept" / "step-6" / "index.json"
    if not known:  # as older checkpoints are
        facts = json.loads(index.read_text())
        index.write_text(text_of({k: v for k, v in facts.items() if k not in ("optimizers", "crc32")}))
    with pytest.raises(RunError) as raised:
        said(program(done, kind, steps=12, **settings))
    theirs = "`sgd` (which keeps nothing)" if known else "an optimizer (which keeps nothing)"
    assert raised.value.message == f"`w` is trained by {mine}, and the checkpoint was written with {theirs}"
    assert raised.value.file == done / "kept" / "step-6"


def test_one_that_keeps_less_is_another_too(tmp_path: Path) -> None:
    said(program(tmp_path, "adamw", resume=False))
    with pytest.raises(RunError, match=r"trained by `sgd` .*, and the checkpoint was written with `adamw`"):
        said(program(tmp_path, steps=12))
    with pytest.raises(RunError, match=r"trained by `adam` .*, and the checkpoint was written with `adamw`"):
        said(program(tmp_path, "adam", steps=12))
    assert "goes on after step 6" in said(program(tmp_path, "adamw", steps=12, weight_decay=0.5))


def test_a_folder_that_is_no_checkpoint_is_named_where_it_is_in_the_way(done: Path) -> None:
    index = done / "kept" / "step-6" / "index.json"
    index.write_text('{"weight_map": {}}')
    with pytest.raises(RunError, match="something else is in the way") as raised:
        said(program(done))
    assert raised.value.file == index.parent and index.read_text() == '{"weight_map": {}}'


OTHER_DATA: dict[str, tuple[Callable[[Path, rt.Program], object], str]] = {
    "fewer rows": (
        lambda folder, given: np.savez(folder / "a.npz", x=np.arange(6.0)),
        "`data.length` is 6, and the checkpoint was written with 8 (other too: `data file 1`)",
    ),
    "other numbers": (
        lambda folder, given: np.savez(folder / "a.npz", x=np.arange(8.0) + 1),
        "`data file 1` is a.npz of ",
    ),
    "another order": (
        lambda folder, given: given.data.arguments.update(shuffle=False),
        "`data.shuffle` is False, and the checkpoint was written with True",
    ),
    "another batch": (
        lambda folder, given: setattr(given.data, "batch", 2),
        "`batch` is 2, and the checkpoint was written with 4",
    ),
    "another seed": (lambda folder, given: setattr(given, "seed", 9), "`seed` is 9, and the checkpoint was written"),
}


@pytest.mark.parametrize("how", OTHER_DATA)
def test_other_examples_are_refused_unless_they_are_meant(done: Path, how: str) -> None:
    changes, told = OTHER_DATA[how]
    given = program(done, steps=12)
    changes(done, given)
    with pytest.raises(RunError) as raised:
        said(given)
    assert raised.value.message.startswith(told) and raised.value.code == "SH508"
    assert "--resume-anyway" in raised.value.help
    given.resume_anyway = True
    out = said(given)
    assert f"goes on with other examples: {told}" in out and "goes on after step 6" in out


@pytest.mark.parametrize("files", [[7], [None], [[]], [["a.npz"]], ["a.npz"], [{"a": 1}], [["a.npz", 1, "00", 2]], []])
def test_a_record_of_data_that_is_no_record_is_told(done: Path, files: list[Any]) -> None:
    index = done / "kept" / "step-6" / "index.json"
    facts = {name: value for name, value in json.loads(index.read_text()).items() if name != "crc32"}
    facts["data"]["files"] = files
    index.write_text(text_of(facts))
    with pytest.raises(RunError, match=r"`data file 1` is a\.npz of \d+ bytes") as raised:
        said(program(done, steps=12))
    assert raised.value.code == "SH508" and raised.value.file == done / "kept" / "step-6"


def test_a_data_file_of_another_name_is_the_same_data(done: Path) -> None:
    (done / "a.npz").rename(done / "b.npz")
    given = program(done, steps=12)
    (done / "a.npz").unlink()
    given.data.arguments["path"] = "b.npz"
    assert "goes on after step 6" in said(given)
