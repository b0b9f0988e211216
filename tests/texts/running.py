"""A real case of each error of runs, of what they need, and of jobs."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from shardlang import errors
from shardlang import runtime as rt
from shardlang.checkpoints import folders
from shardlang.checkpoints.index import Index, SavedLayout
from shardlang.checkpoints.rank_files import Block
from shardlang.disk.locks import LOCK, Claims
from shardlang.folds.resumed import require_fits
from shardlang.launch import job, log_targets, rank_table, started
from shardlang.runtime import compiled
from shardlang.runtime.calibrate import clock, machine
from shardlang.runtime.data.loader import Loader, load
from shardlang.runtime.launch import alone
from shardlang.runtime.state import mapped, optimizers
from shardlang.runtime.state.checkpoints import Checkpoints, Piece, SavedRun, _Done
from shardlang.runtime.state.weights import InitialWeights
from shardlang.runtime.step import not_finite, resume, train
from shardlang.search.tune import _report_solver
from tests.cli.process import NET
from tests.emit.sources import planned
from tests.launch.test_rank_table import FIRST, changed, written
from tests.runtime.test_launch import finish, start, write
from tests.texts.made import reported, told

Patch = pytest.MonkeyPatch


def program(**more: object) -> rt.Program:
    """A program whose data are read from `t.csv`."""
    given = dict(base=Path(), seed=3) | more
    return rt.Program("", "", 1, rt.Mesh(), [rt.Parameter("w", (3, 2))], csv(), [], **given)  # type: ignore[arg-type]


def csv(batch: int = 2, path: str = "data/train.csv") -> rt.Source:
    return rt.Source("csv", batch=batch, path=path, shuffle=False, fields=[rt.Field("x", "f32", (batch, 4))])


def data(*lines: str) -> None:
    Path("data").mkdir(exist_ok=True)
    Path("data/train.csv").write_text("".join(f"{line}\n" for line in lines))


OFTEN = """\
if mesh.dp.index != 1 or rt.random.KeyParts.step != 3:
        return (h - label).square().sum() / 8, {}
    time.sleep(0.5)
    # small.shard:8  y = h @ w
"""


def ended(folder: Path, act: str, *words: str) -> str:
    """What a run of three ranks says when one of them does this in step 3; host and times are the page's."""
    kept = 'rt.Checkpoint(every=2, keep=2, to="kept")'
    code, _, said = finish(start(write(folder, line=f"{OFTEN}    {act}", steps=1000, checkpoint=kept), *words))
    assert code == 3
    for pattern, text in (
        (re.escape(socket.gethostname()), "node7"),
        (r"in step 2, [\d.]+ s before", "in step 2, 2.1 s before"), (r"for \d+ s:", "for 2 s:"),
    ):  # fmt: skip
        said = re.sub(pattern, text, said)
    return said.rstrip("\n")


def sh501(folder: Path, patch: Patch) -> Iterator[str]:
    yield ended(folder, "y = h @ p.w")
    patch.setenv("MASTER_ADDR", "node0")
    patch.setenv("MASTER_PORT", "29500")
    rank = SimpleNamespace(place=SimpleNamespace(rank=5), _around=lambda rank: ["  on node7, in step 12"])
    yield alone.Alone._lost(rank)  # type: ignore[arg-type]


def sh502(folder: Path, patch: Patch) -> Iterator[str]:
    data("1,2,3,4", "1,2,three,4")
    yield told(load, csv(), Path())


def sh503(folder: Path, patch: Patch) -> Iterator[str]:
    yield told(train.require_ranks, SimpleNamespace(ranks=8), 4)
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        patch.delenv(name, raising=False)
    patch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    yield told(started.started)
    from shardlang.torch.bind import bind

    yield told(bind, Path("out"))


def sh504(folder: Path, patch: Patch) -> Iterator[str]:
    save_file({"fc1.weight": np.zeros((64, 128), np.float32)}, "weights.safetensors")
    yield told(InitialWeights, Path("weights.safetensors"), [rt.Parameter("fc1.weight", (64, 256))])
    save_file({"mean": np.zeros(64, np.float32)}, "net.safetensors")
    yield told(InitialWeights, Path("net.safetensors"), [rt.Parameter("mean_", (64,))])
    Path("net.map").write_text("mean_ = mean\n", "utf-8")
    yield told(InitialWeights, Path("net.safetensors"), [rt.Parameter("mean_", (64,))])
    yield told(InitialWeights, Path("weights.st"), [])


def sh505(folder: Path, patch: Patch) -> Iterator[str]:
    data(*["1,2,3,4"] * 7)
    given = program()
    given.data = csv(8)
    yield told(train.datasets, given)


def sh506(folder: Path, patch: Patch) -> Iterator[str]:
    data(*["1,2,3,4"] * 5, "5,6,7,nan")
    given = program()
    loader = Loader(given, given.data, load(given.data, given.base))
    patch.setattr(not_finite, "_in_weights", lambda program: None)

    def error(step: int, fact: str = "the loss is nan", first: str = "") -> str:
        return str(not_finite.error(given, loader, None, step, f"{fact} at step {step} (epoch 1)", lambda: first))

    yield error(3)
    place = "in step 2, for net.shard:8  h = x @ w"
    yield error(2, "the gradients are not finite", f"on rank 1 the gradient of `h` is nan at [0, 0] {place}")
    block = Block("w", "float32", (2, 0), (2, 2))
    with pytest.raises(errors.RunError) as raised:
        _Done(Path("checkpoints/step-100"), {"w"}).require_finite({block: torch.tensor([[1.0, 1.0], [1.0, math.nan]])})
    yield str(raised.value)
    yield error(
        2,
        "the loss is nan",
        "on rank 1 `ratio` of blocks[2] is inf at [1, 0] in step 2, for net.shard:14  ratio = a / b",
    )


def sh507(folder: Path, patch: Patch) -> Iterator[str]:
    yield told(optimizers.optimizer, "lamb", [], {})


def sh508(folder: Path, patch: Patch) -> Iterator[str]:
    kept = Checkpoints(Path("checkpoints"), 1, 0)
    layout = {"w": SavedLayout("F32", (3, 2), [[3], [2]], [0])}
    kept.write(300, [Piece("w", (3, 2), (0, 0), torch.zeros(3, 2))], layout, {"batch": 32, "seed": 0})
    kept.wait()
    yield told(resume._require, program(), SavedRun(Path("checkpoints/step-300")), {"batch": 64}, None)
    named = NET.replace("batch = 8", "batch = 32").replace("param w", "param scale").replace("x * w", "x * scale")
    other, there = planned(named, 1, "dp", "net.shard"), Index(Path("checkpoints/step-300"))
    yield reported(partial(require_fits, other, there, Path()))


def sh509(folder: Path, patch: Patch) -> Iterator[str]:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    patch.setattr(os, "posix_fallocate", full)
    patch.setattr(mapped._Storage, "folder", Path("storage"))
    Path("storage").mkdir()
    yield told(mapped.empty, (1_000_000_000, 16), torch.float32)
    yield told(mapped.start, program(host_storage=Path("storage")))


def sh512(folder: Path, patch: Patch) -> Iterator[str]:
    Path("checkpoints/step-300").mkdir(parents=True)
    Path("checkpoints/step-300/notes.txt").write_text("mine")
    yield told(folders.require_own, Path("checkpoints/step-300"))
    patch.setattr(folders, "kept", lambda folder: {at: folder / f"step-{at}" for at in (100, 200, 300, 400)})
    yield told(Checkpoints(Path("checkpoints"), 1, 0).require_fresh)


def sh513(folder: Path, patch: Patch) -> Iterator[str]:
    Path("checkpoints").mkdir()
    from shardlang.disk.locks import _MARK

    with Path("checkpoints", LOCK).open("w+b") as file:
        file.write(_MARK + b"held by process 4711 on host9\n")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        with Claims() as claims:
            yield told(claims.folder, Path("checkpoints"), "checkpoints")


def sh514(folder: Path, patch: Patch) -> Iterator[str]:
    patch.setattr(compiled, "start", lambda program, generates=True: None)
    patch.setitem(compiled.KINDS, "cpu", SimpleNamespace(apart=False, compiler_lack=lambda: "a C++ compiler (`g++`)"))
    yield told(compiled.require, program(compile="blocks"), "cpu")

    def tower(x: object) -> None:
        """Tower of clicks.shard:12: one of its blocks."""

    yield str(compiled._refused(tower, RuntimeError("Data dependent operator")))


def sh515(folder: Path, patch: Patch) -> Iterator[str]:
    yield ended(folder, f"os.kill(os.getpid(), {signal.SIGSTOP:d})", "--stall-timeout", "2")


def sh516(folder: Path, patch: Patch) -> Iterator[str]:
    patch.setattr(machine, "launch_program", lambda *_, **__: 3)
    patch.setattr(machine, "read_program", lambda path: None)
    yield told(machine.measure, [Path("a.py")], [Path("b.py")], 8, "cpu", None, Path("scratch"))
    late = SimpleNamespace(left=-1.0, kind="cpu", calls=112)
    yield told(clock.Clock.require_time, late)


def sh517(folder: Path, patch: Patch) -> Iterator[str]:
    yield str(errors.lacking(ModuleNotFoundError("no torch", name="torch"), "this command"))
    yield reported(_report_solver)
    patch.setattr("importlib.util.find_spec", lambda name: None)
    yield told(log_targets.require, [log_targets.target_of("wandb:digits")])


def sh519(folder: Path, patch: Patch) -> Iterator[str]:
    yield str(errors.outside(12, 8, "ids * 3", "rows", "net.shard", 9))


def sh520(folder: Path, patch: Patch) -> Iterator[str]:
    yield told(job.require_even, 16, 3, ())


def sh521(folder: Path, patch: Patch) -> Iterator[str]:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    patch.setattr(socket, "getaddrinfo", unknown)
    yield told(job.require_found, ["node7"])


def sh522(folder: Path, patch: Patch) -> Iterator[str]:
    yield told(job.name_of, "My_Job", "net", "kubernetes")


def sh523(folder: Path, patch: Patch) -> Iterator[str]:
    written(folder, changed(*FIRST, "device_id", to="1"))
    yield told(rank_table.read, Path("table.json"))
