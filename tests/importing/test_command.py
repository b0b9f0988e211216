"""`shardc import` as a user meets it, and an imported program that trains as its module does."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shardlang.cli.main import run
from tests.cli.process import shardc
from tests.importing import modules

SAVED = ["-o", "net.shard", "--weights", "net.safetensors"]
TRAIN = """
strategy data_parallel {
  mesh dp = 2
  split batch over dp
}

dim batch = 8

train {
  model = Net()
  data = numpy("data.npz", input: [batch, 12], y: [batch, 1], shuffle = false)
  loss = mse_loss(model(input), y)
  optimizer = sgd(lr = 0.1)
  steps = 3
  init = safetensors("net.safetensors", names = "net.map")
}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(modules.__file__, tmp_path / "theirs.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_all_files_are_written_and_may_be_written_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["import", "theirs:words", *SAVED, "--report", "net.json", "--dims", "ids=batch,place"]
    assert run(line) == 0
    assert "wrote net.shard, net.map, net.safetensors: values and gradients are" in capsys.readouterr().out
    names = ["net.shard", "net.map", "net.safetensors"]
    written = [(here / name).read_bytes() for name in names]
    assert b"forward(ids: i64[batch, place])" in written[0]
    assert json.loads((here / "net.json").read_text())["second sizes"] == {"ids": [3, 9]}
    assert run(line) == 0
    assert written == [(here / name).read_bytes() for name in names]


@pytest.mark.parametrize("name", ["net.shard", "net.map"])
def test_a_file_that_was_changed_by_hand_is_not_replaced(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["import", "theirs:words", *SAVED]
    assert run(line) == 0
    text = (here / name).read_text("utf-8")
    (here / name).write_text(
        text.replace("\n\n", "\n# My own.\n\n", 1) if name == "net.map" else f"{text}\ndim a = 2\n"
    )
    changed = (here / name).read_bytes()
    assert run([*line, "--train"]) == 2
    told = capsys.readouterr().err
    assert f"error[SH512]: an import would replace changes that were made to `{name}`" in told
    help = f"help: keep them: mv {name} {name}.mine; or name another file for -o"
    assert help in told and (here / name).read_bytes() == changed
    os.replace(here / name, here / f"{name}.mine")
    assert run([*line, "--train"]) == 0 and run(line) == 0


def test_nothing_is_written_where_a_module_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "theirs:missing", *SAVED]) == 1
    assert "error[SH600]: `theirs` has no function `missing`" in capsys.readouterr().err
    assert sorted(path.name for path in here.iterdir() if path.suffix != ".py" and path.is_file()) == []


@pytest.mark.parametrize(("place", "fact", "help"), [
    ("thiers:words", "there is no module `thiers`", "help: did you mean `theirs`?"),
    ("thiers.py:words", "there is no file `thiers.py`", "help: did you mean `theirs.py`?"),
    ("else.where:words", "there is no module `else.where`", "help: a file, `models/small.py:build`, or a module"),
])  # fmt: skip
def test_a_module_that_is_not_there_is_told(
    place: str, fact: str, help: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", place, *SAVED]) == 1
    said = capsys.readouterr().err
    assert f"error[SH600]: {fact}\n" in said and help in said


def test_no_file_changes_where_one_cannot_be_written(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["import", "theirs:words", *SAVED[:2]]) == 0
    before = {path.name: path.read_bytes() for path in here.iterdir() if path.is_file()}
    move = os.replace

    def full(source: str, to: str) -> None:
        if Path(to).name == "net.safetensors":
            raise OSError(28, "No space left on device", str(to))
        move(source, to)

    monkeypatch.setattr(os, "replace", full)
    assert run(["import", "theirs:mlp", *SAVED]) == 2
    assert "cannot be written, and no file was: no space left" in capsys.readouterr().err
    assert before == {path.name: path.read_bytes() for path in here.iterdir() if path.is_file()}


def test_parameters_that_are_left_out_are_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "theirs:statistics", *SAVED, "--accept", "SH604"]) == 0
    assert "note: no result depends on `unused.weight`, `unused.bias`: left out\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import theirs:mlp -o net.txt", "`net.txt` must end in `.shard`"),
        ("import theirs:mlp -o none/net.shard", "there is no folder `none`"),
        ("import theirs:mlp -o mine.shard", "the imported program would replace a file that holds something else"),
        ("import theirs:mlp -o net.shard --dims x", "`x` is not INPUT=DIM,DIM"),
        ("import theirs:mlp -o net.shard --accept SH601", "'SH601' is not one of"),
    ],
)
def test_a_command_used_wrongly_says_so(here: Path, capsys: pytest.CaptureFixture[str], line: str, said: str) -> None:
    (here / "mine.shard").write_text("dim batch = 2\n")
    assert run(line.split()) == 2
    assert said in capsys.readouterr().err


def test_an_imported_program_trains_as_its_module_does(here: Path) -> None:
    """Three steps from the module's own weights on two ranks: its losses to 1e-6."""
    assert run(["import", "theirs:sequential", *SAVED]) == 0
    torch.manual_seed(1)
    net, _ = modules.sequential()
    draws = np.random.default_rng(0)
    x, y = draws.random((24, 12), np.float32), draws.random((24, 1), np.float32)
    np.savez("data.npz", input=x, y=y)
    (here / "train.shard").write_text((here / "net.shard").read_text() + TRAIN)
    done = shardc("run", "train.shard", "--ranks", "2", "--metrics", "figures.jsonl", folder=here)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (here / "figures.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if "step" in line]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, loss in enumerate(losses):
        rows = slice(8 * step, 8 * step + 8)
        expected = F.mse_loss(net(torch.from_numpy(x[rows])), torch.from_numpy(y[rows]))
        assert loss == pytest.approx(expected.item(), abs=1e-6)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
    assert len(losses) == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--dims", "idx=batch,place"], 1, "error[SH600]: the module has no input `idx`, which --dims names"),
        (["--dims", "=batch,place"], 2, "`=batch,place` is not INPUT=DIM,DIM"),
        (["--dims", "ids=batch,place", "--dims", "ids=a,b"], 2, "the dims of `ids` are given twice"),
        (["--dims", "ids=if,place"], 2, "`if` is a word of the language, not a name"),
        (["--weights", "net.shard"], 2, "`net.shard` would be both the program and --weights"),
        (["--report", "./net.map"], 2, "`net.map` would be both its name map and --report"),
    ],
)  # fmt: skip
def test_options_that_say_nothing_or_two_things(
    words: list[str], code: int, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["import", "theirs:words", "-o", "net.shard", *words]) == code
    assert said in capsys.readouterr().err
    assert not (here / "net.shard").exists()
