"""Paths that lead nowhere: what was meant is offered, and what a help says works where the command was typed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardlang import runtime as rt
from shardlang.cli.main import run
from shardlang.errors import RunError
from shardlang.runtime.data.loader import load
from shardlang.runtime.state.weights import InitialWeights

NET = """\
dim n = 4, batch = 2

model Net {
  param w: [n]

  forward(x: [batch, n]) -> [batch, n] {
    return x * w
  }
}

train {
  model = Net()
  data = random(x: [batch, n], count = 8, seed = 1)
  y = model(x)
  loss = mean(y)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a program and data in folders of their own."""
    monkeypatch.chdir(tmp_path)
    for name in ("net", "data"):
        (tmp_path / name).mkdir()
    (tmp_path / "net/net.shard").write_text(NET)
    (tmp_path / "data/story.txt").write_text("Once upon a time.\n")
    return tmp_path


@pytest.fixture
def refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command says that is used wrongly."""

    def said(*words: str) -> str:
        assert run([*words]) == 2
        return capsys.readouterr().err

    return said


def help_of(source: rt.Source, base: Path) -> str:
    with pytest.raises(RunError) as raised:
        load(source, base)
    return raised.value.help


def tokens(path: str) -> rt.Source:
    return rt.Source("tokens", batch=2, path=path, fields=[rt.Field(n, "i64", (2, 4)) for n in ("tokens", "label")])


def numpy(path: str) -> rt.Source:
    return rt.Source("numpy", batch=2, path=path, fields=[rt.Field("x", "f32", (2,))])


def test_an_option_is_relative_to_the_current_folder(refused: Callable[..., str]) -> None:
    predict = ("predict", "net/net.shard", "--ranks", "1", "--out", "y.npz")
    said = "does not exist; paths in a command are relative to the current folder"
    assert f"`w.safetensors` {said}" in refused(*predict, "--weights", "w.safetensors")
    assert f"`kept` {said}" in refused(*predict, "--checkpoint", "kept")
    assert f"`data/nothere.txt` {said}" in refused("tokens", "data/nothere.txt", "-o", "x.bin")
    assert f"`kept` {said}" in refused("checkpoint", "show", "kept")
    assert f"`kept` {said}" in refused("export", "kept", "--map", "a.map", "-o", "out")
    assert f"`kept` {said}" in refused("check", "net/net.shard", "--ranks", "1", "--resume", "kept")
    assert f"`texts` {said}" in refused(*predict, "--checkpoint", "net", "--generate", "--prompts", "texts")


def test_what_an_option_means_is_beside_it_or_beside_the_program(refused: Callable[..., str]) -> None:
    predict = ("predict", "net/net.shard", "--ranks", "1", "--out", "y.npz", "--weights")
    Path("net/zero.safetensors").touch()
    assert "did you mean `net/zero.safetensors`?" in refused(*predict, "zero.safetensors")
    assert "did you mean `net/zero.safetensors`?" in refused(*predict, "net/zeor.safetensors")
    assert "did you mean `data/story.txt`?" in refused("tokens", "data/stroy.txt", "-o", "x.bin")


@pytest.mark.parametrize("here", [".", "net"])
def test_the_command_for_tokens_works_where_it_is_typed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    monkeypatch.chdir(folder / here)
    help = help_of(tokens("data/story.txt"), folder)
    command = help.removeprefix("make one of tokens from it: ")
    assert run(shlex.split(command)[1:]) == 0
    assert (folder / "data/story.bin").is_file()
    assert here != "." or command == "shardc tokens data/story.txt -o data/story.bin"


def test_a_misspelt_file_of_a_program(folder: Path) -> None:
    (folder / "data/story.bin").touch()
    assert help_of(tokens("data/stroy.bin"), folder) == "did you mean `story.bin`?"
    assert help_of(tokens("dta/story.bin"), folder) == "did you mean `data`?"
    np.savez(folder / "data/train.npz", x=np.zeros(4, np.float32))
    assert help_of(numpy("data/trian.npz"), folder) == "did you mean `train.npz`?"
    (folder / "net.safetensors").touch()
    with pytest.raises(RunError) as raised:
        InitialWeights(folder / "nett.safetensors", [])
    assert raised.value.help == "did you mean `net.safetensors`?"


def test_no_file_of_another_kind_is_meant(folder: Path) -> None:
    assert help_of(tokens("data/story.bin"), folder) == "make one from text: shardc tokens TEXT -o data/story.bin"
    of_program = "paths are relative to the program's file"
    assert help_of(numpy("data/story.npz"), folder) == of_program
    assert help_of(numpy("far/off/story.npz"), folder) == f"there is no folder far; {of_program}"
