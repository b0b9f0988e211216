"""`shardc check --resume`: what a run would go on with, said before it, and the same as the run would do."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from shardlang.checkpoints.index import INDEX, Index, text_of
from shardlang.checkpoints.rank_files import file_name
from shardlang.cli.main import run
from shardlang.errors import RunError
from shardlang.folds.resumed import lines
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.launch.launcher import read_program
from shardlang.runtime.logs import Log
from shardlang.runtime.program import Parameter, RunProgram, dtype_of
from shardlang.runtime.state.checkpoints import Checkpoints, Piece
from shardlang.runtime.state.shares import StateLayouts, zero_axes
from shardlang.runtime.step.resume import facts
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.emit import sources
from tests.emit.sources import planned
from tests.reshards import LAYOUTS, TEXT

PROGRAM = """
use std.nn: Linear

dim batch = 64, pixels = 64, hidden = 8, classes = 10

model Net {
  layer up = Linear(pixels, hidden)
  layer down = Linear(hidden, classes)
  forward(image: [batch, pixels]) -> [batch, classes] { return down(relu(up(image))) }
}

train {
  model = Net()
  data = digits(split = "train", batch = batch)
  loss = cross_entropy(model(image), label)
  optimizer = adamw(lr = 0.01)
  steps = 60
}
"""
FACTS = {
    "batch": 64, "seed": 0, "data": {"source": "digits", "split": "train", "length": 1437},
    "optimizers": dict.fromkeys(("up.weight", "up.bias", "down.weight", "down.bias"), "adamw"),
}  # fmt: skip


def emitted(folder: Path, text: str, ranks: int, strategy: str | None) -> RunProgram:
    return read_program(sources.written(folder, text, ranks, strategy))


@pytest.fixture
def here(tmp_path: Path, monkeypatch) -> Path:
    """A folder with the program, and checkpoints of it after steps 20 and 30."""
    (tmp_path / "p.shard").write_text(PROGRAM)
    layouts = StateLayouts(emitted(tmp_path / "emitted", PROGRAM, 1, None)).tensors
    pieces = [Piece(name, each.shape, (0,) * len(each.shape), torch.ones(each.shape)) for name, each in layouts.items()]
    kept = Checkpoints(tmp_path / "kept", 10, 0)
    for step in (20, 30):
        kept.write(step, pieces, layouts, FACTS)
        kept.wait()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(capsys, *words: str) -> tuple[int, str]:
    code = run(["check", "p.shard", "--ranks", "1", "--resume", "kept", *words])
    return code, capsys.readouterr().out


def test_what_fits_is_told_with_its_place_in_the_data(here: Path, capsys) -> None:
    code, out = check(capsys)
    assert code == 0
    size = 4 * 3 * (8 * 64 + 8 + 10 * 8 + 10)
    assert out.splitlines()[1:] == [
        f"kept/step-30: a rank reads at most {size:,} bytes of {size:,}",
        "kept/step-30: the run goes on after step 30, at batch 9 of 22 of epoch 2 (64 each): "
        "512 of its 1,437 examples are done",
    ]
    path = here / "kept" / "step-30" / file_name(0)
    path.write_bytes(path.read_bytes()[:-4])
    code, out = check(capsys)
    assert code == 0 and "passed over: the checkpoint cannot be read: it has" in out and "after step 20" in out


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("hidden=16", "`up.weight` is [8, 64] in the checkpoint and [16, 64] in the program"),
        ("batch=32", "`batch` is 32, and the checkpoint was written with 64"),
        ("train.seed=4", "`seed` is 4, and the checkpoint was written with 0"),
    ],
)
def test_what_does_not_fit_is_an_error(here: Path, capsys, given: str, told: str) -> None:
    code, out = check(capsys, "--set", given)
    assert code == 1 and f"error[SH508]: {told}" in out
    if given == "batch=32":
        assert "with --resume-anyway it goes on after step 30, at batch 31 of 44 of epoch 1 (32 each)" in out


def test_another_model_or_optimizer_is_named(here: Path, capsys) -> None:
    text = PROGRAM.replace("layer down", "layer last").replace("down(relu", "last(relu")
    (here / "p.shard").write_text(text)
    code, out = check(capsys)
    assert code == 1 and "error[SH508]: the checkpoint lacks `last.weight`" in out
    assert "help: it is of another model: give the dims the sizes that it was written with" in out
    assert "the program does not use `down.bias` and 1 more" in out
    (here / "p.shard").write_text(PROGRAM.replace("adamw(lr = 0.01)", "sgd(lr = 0.01, momentum = 0.9)"))
    code, out = check(capsys)
    told = "`up.weight` is trained by `sgd` (which keeps 1 tensors), and the checkpoint was written with `adamw`"
    assert code == 1 and told in out


def test_a_parameter_that_was_frozen_is_called_so(here: Path, capsys) -> None:
    layouts = StateLayouts(emitted(here / "emitted", PROGRAM, 1, None)).tensors
    layouts = {name: each for name, each in layouts.items() if name.partition(":")[0] != "up.bias" or ":" not in name}
    pieces = [Piece(name, each.shape, (0,) * len(each.shape), torch.ones(each.shape)) for name, each in layouts.items()]
    kept = Checkpoints(here / "kept", 10, 0)
    kinds = {path: kind for path, kind in FACTS["optimizers"].items() if path != "up.bias"}
    kept.write(40, pieces, layouts, {**FACTS, "optimizers": kinds})
    kept.wait()
    code, out = check(capsys)
    told = "`up.bias` is trained by `adamw` (which keeps 2 tensors), and it was frozen when the checkpoint was written"
    assert code == 1 and f"error[SH508]: {told}" in out and "or begin its state anew by --resume-anyway" in out


def test_an_average_is_no_state_of_the_optimizer(here: Path, capsys) -> None:
    """As many tensors as there were are not the same ones."""
    adam = PROGRAM.replace("adamw(lr = 0.01)", "sgd(lr = 0.01)\n  ema = 0.9")
    layouts = StateLayouts(
        emitted(here / "other", adam.replace("\n  ema = 0.9", "").replace("sgd(", "sgd(momentum = 0.9, "), 1, None)
    ).tensors
    pieces = [Piece(name, each.shape, (0,) * len(each.shape), torch.ones(each.shape)) for name, each in layouts.items()]
    kept = Checkpoints(here / "kept", 10, 0)
    kept.write(40, pieces, layouts, {**FACTS, "optimizers": dict.fromkeys(FACTS["optimizers"], "sgd")})
    kept.wait()
    (here / "p.shard").write_text(adam)
    code, out = check(capsys)
    assert code == 1 and "`up.weight` is trained by `sgd` (which keeps 1 tensors)" in out


def test_other_data_to_evaluate_is_told(here: Path, capsys) -> None:
    layouts = StateLayouts(emitted(here / "emitted", PROGRAM, 1, None)).tensors
    pieces = [Piece(name, each.shape, (0,) * len(each.shape), torch.ones(each.shape)) for name, each in layouts.items()]
    kept = Checkpoints(here / "kept", 10, 0)
    kept.write(40, pieces, layouts, {**FACTS, "eval": {"source": "digits", "split": "test", "length": 360}})
    kept.wait()
    text = PROGRAM.replace("  loss =", '  eval = digits(split = "test", batch = batch)\n  loss =')
    (here / "p.shard").write_text(text)
    assert "evaluates other data" not in check(capsys)[1]
    (here / "p.shard").write_text(text.replace('"test"', '"train"'))
    code, out = check(capsys)
    assert code == 0 and "evaluates other data than before: `split` of `eval` is train, and was test" in out


def test_where_there_is_no_checkpoint_it_says_so(here: Path, capsys) -> None:
    code, out = check(capsys, "--resume", "emitted")
    assert code == 1 and "error[SH508]: there is no checkpoint" in out
    assert run(["check", "p.shard", "--resume", "kept"]) == 2


CSV = """
dim batch = 4

model Net {
  param w: [] = normal(1.0)
  forward(x: [batch]) -> [batch] { return x * w }
}

train {
  model = Net()
  data = csv("rows.csv", x: [batch], label: [batch])
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  epochs = 9
  checkpoint = every(2, to = "kept")
}
"""


def test_another_data_file_is_told_as_the_run_tells_it(tmp_path: Path, monkeypatch, capsys) -> None:
    (tmp_path / "p.shard").write_text(CSV)
    (tmp_path / "rows.csv").write_text("x,label\n" + "1,2\n" * 10)
    program = emitted(tmp_path / "emitted", CSV, 1, None)
    program.base = tmp_path
    layouts = StateLayouts(program).tensors
    written = {**facts(program, datasets(program)["data"].length), "optimizers": {"w": "sgd"}}
    kept = Checkpoints(tmp_path / "kept", 2, 0)
    kept.write(2, [Piece("w", (), (), torch.ones(()))], layouts, written)
    kept.wait()
    monkeypatch.chdir(tmp_path)
    assert check(capsys)[0] == 0
    (tmp_path / "rows.csv").rename(tmp_path / "moved.csv")
    assert check(capsys)[0] == 0  # the run says that it is gone
    (tmp_path / "p.shard").write_text(CSV.replace("rows", "moved"))
    assert check(capsys)[0] == 0  # another name
    (tmp_path / "p.shard").write_text(CSV)
    (tmp_path / "rows.csv").write_text("x,label\n" + "1,3\n" * 10)
    code, out = check(capsys)
    told = "error[SH508]: `data file 1` is rows.csv of 48 bytes (checksum "
    assert code == 1 and told in out and "and the checkpoint was written with rows.csv of 48 bytes (checksum" in out
    program.resume = True
    with pytest.raises(RunError) as raised:
        TrainingRun(program, datasets(program), Log(io.StringIO(), None)).train()
    assert raised.value.message in out


@pytest.fixture
def as_rank() -> Iterator[None]:
    yield
    world.rank = 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bytes_are_those_that_ranks_read(tmp_path: Path, layout: str, as_rank: None) -> None:
    strategy, ranks = LAYOUTS[layout]
    text = TEXT % (3, 6)
    program, plan = emitted(tmp_path / "emitted", text, ranks, strategy), planned(text, ranks, strategy)
    layouts = StateLayouts(program).tensors
    named = {each: number for number, each in enumerate(dict.fromkeys(layouts.values()))}
    (tmp_path / INDEX).write_text(text_of({
        "format": 2, "step": 3, "files": [[1, 1, 1]] * ranks, "layouts": [each.written() for each in named],
        "tensors": {name: named[each] for name, each in layouts.items()},
    }))  # fmt: skip
    read: dict[int, int] = {}
    for world.rank in range(ranks):
        at = program.mesh[program.stage_axis].index if program.stage_axis else 0
        read[at] = max(read.get(at, 0), sum(_bytes(program, t) for t in program.parameters if program.holds(t)))
    index = Index(tmp_path)
    said = [int(line.split("at most ")[1].split()[0].replace(",", "")) for line in lines(plan, index, fits=True)]
    assert said == [read[at] for at in sorted(read)]


def _bytes(program: RunProgram, tensor: Parameter) -> int:
    shape = list(program.block(tensor).shape)
    if axes := zero_axes(program, tensor):
        shape[0] = program.mesh[axes].chunk(shape[0])
    return 3 * math.prod(shape) * dtype_of(program, tensor).itemsize
