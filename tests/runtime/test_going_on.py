"""What a run that is to go on says: of a finished one, of another optimizer, of a broken newest checkpoint."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.runtime.logs import Log
from shardlang.runtime.step.train import Run, datasets


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
    Run(given, datasets(given), Log(out, None)).train()
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


def test_a_new_run_beside_checkpoints_of_an_earlier_one_says_so(done: Path) -> None:
    told = f"{done / 'kept' / 'step-6'} is of an earlier run, which --resume goes on from; this run begins anew"
    assert told in said(program(done, resume=False)).splitlines()


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
        index.write_text(json.dumps({k: v for k, v in json.loads(index.read_text()).items() if k != "optimizers"}))
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


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


BREAKS: dict[str, Callable[[Path], object]] = {
    "a file is cut short": lambda step: cut(step / "rank-00000.safetensors"),
    "a file is gone": lambda step: (step / "rank-00000.safetensors").unlink(),
    "the index is cut short": lambda step: cut(step / "index.json"),
    "the index is another's": lambda step: (step / "index.json").write_text('{"weight_map": {}}'),
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_broken_newest_checkpoint_names_the_whole_one_before_it(done: Path, how: str) -> None:
    kept = done / "kept"
    BREAKS[how](kept / "step-6")
    with pytest.raises(RunError) as raised:
        said(program(done))
    assert raised.value.code == "SH508" and kept / "step-6" in (raised.value.file, Path(str(raised.value.file)).parent)
    told, command = raised.value.help.split(": ", 1)
    assert told == f"the newest whole one is {kept / 'step-4'}; to go on from it, move the broken one away"
    subprocess.run(shlex.split(command), check=True)
    assert f"goes on after step 4, from {kept / 'step-4'}" in said(program(done))
    assert (kept / "step-6.broken").is_dir() and (kept / "step-6" / "index.json").is_file()


def test_where_the_one_before_is_broken_too_it_is_passed_over(done: Path) -> None:
    kept = done / "kept"
    for step in (6, 4):
        cut(kept / f"step-{step}" / "rank-00000.safetensors")
    with pytest.raises(RunError) as raised:
        said(program(done))
    assert str(kept / "step-2") in raised.value.help
    cut(kept / "step-2" / "rank-00000.safetensors")
    with pytest.raises(RunError) as raised:
        said(program(done))
    assert raised.value.help == "no other checkpoint is whole: start anew without --resume"
