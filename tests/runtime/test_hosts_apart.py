"""Ranks that see different folders, as hosts with a disk each do, do not start: each case on two real ranks."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.logs import Log
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.runtime.forked import on_ranks


def program(base: Path, *, resume: bool = True, seed: int = 0) -> rt.Program:
    mesh = rt.Mesh(dp=2)
    x = rt.Field("x", "f32", (4,), cut={0: "dp"})
    return rt.Program(
        name="t.shard", strategy="", ranks=2, mesh=mesh, seed=seed, resume=resume, base=base,
        parameters=[
            rt.Parameter("w", (40,), init=("normal", 1.0), reduce="dp"), rt.Parameter("b", (2,), reduce="dp"),
            rt.Parameter("own", (4,), cut={0: "dp"}, mesh=mesh),
        ],
        data=rt.Source("numpy", batch=4, path="a.npz", fields=[x]), optimizers=[rt.Optimizer("adam", lr=0.001)],
        forward=lambda p, x: ((x.sum() * p.w.sum() + p.b.sum() + p.own.sum()).square(), {}), steps=4,
        loss_pending=("dp",), groups=[("dp",)], checkpoint=rt.Checkpoint(2, 3, "kept"),
    )  # fmt: skip


def said(given: rt.Program) -> str:
    out = io.StringIO()
    TrainingRun(given, datasets(given), Log(out, None)).train()
    primitives.meet()  # rank 0 has named the last checkpoint
    return out.getvalue()


def refused(given: rt.Program) -> RunError:
    try:
        said(given)
    except RunError as error:
        return error
    raise AssertionError("it went on")


def on_rank_0(work: Callable[[], object]) -> None:
    primitives.meet()
    if world.rank == 0:
        work()
    primitives.meet()


def disks() -> None:
    root = Path(tempfile.gettempdir()) / f"disks-{os.getppid()}"
    one, other = root / "0", root / "1"
    on_rank_0(lambda: [folder.mkdir(parents=True) for folder in (one, other)])
    on_rank_0(lambda: [np.savez(folder / "a.npz", x=np.arange(8.0)) for folder in (one, other)])
    said(program(one, resume=False))
    mine, host = root / str(world.rank), socket.gethostname()
    first, second = (f"rank {rank} on {host}" for rank in (0, 1))

    error = refused(program(mine))
    assert error.message == f"the ranks see different checkpoints: {second} does not see `step-4`, which {first} sees"
    assert error.code == "SH508" and error.file == mine / "kept" / "step-4" and "--base" in error.help

    # A run of another seed left one of the same name there.
    said(program(other, resume=False, seed=1))
    error = refused(program(mine))
    assert error.message == f"the ranks see different checkpoints: {second} sees another `step-4` than {first}"

    # A run whose ranks write to different folders ends with its first checkpoint.
    on_rank_0(lambda: [shutil.rmtree(folder / "kept") for folder in (one, other)])
    given = program(mine, resume=False)
    given.steps = 2
    error = refused(given)
    assert error.message == (
        "a checkpoint cannot be written: No such file or directory" if world.rank
        else "a checkpoint cannot be written: rank 1 cannot write its part: No such file or directory"
    )  # fmt: skip

    on_rank_0(lambda: shutil.rmtree(one / "kept"))
    said(program(other, resume=False))
    error = refused(program(mine))
    assert error.message == f"the ranks see different checkpoints: {second} sees step-4, and {first} sees no checkpoint"

    # What one rank alone finds broken is passed over by all: of `own` each rank reads its half.
    part = other / "kept" / "step-4" / "rank-00001.safetensors"
    text = bytearray(part.read_bytes())
    begin = 8 + int.from_bytes(text[:8], "little")
    text[begin + json.loads(text[8:begin])["own"]["data_offsets"][0]] ^= 1
    on_rank_0(lambda: part.write_bytes(text))
    out = said(program(other))
    if world.rank == 0:
        assert "step-4 is passed over" in out and f"seen by {second}" in out and "goes on after step 2" in out, out
    on_rank_0(lambda: shutil.rmtree(root))


def test_ranks_that_see_different_checkpoints_do_not_start() -> None:
    on_ranks(__file__, "disks", 2)
