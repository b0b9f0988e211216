"""Options of `shardc import`: a `train` to fill in, names that a user gives, a function with a seed of its own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shardlang.cli.main import run
from shardlang.errors import RunError
from shardlang.importing.imported import Wanted, import_module
from shardlang.importing.text.renamed import parse
from tests.cli.process import shardc
from tests.importing import modules

NAMES = """\
# As the paper has them.
model Tiny = Small
dim vocab = words     # everywhere
dim Layer.hidden = ffn
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(modules.__file__, tmp_path / "theirs.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["words", "images"])
def test_a_train_to_fill_in_runs_as_it_is(name: str, here: Path) -> None:
    line = ["import", f"theirs:{name}", "-o", "net.shard", "--train", "--weights", "net.safetensors"]
    assert run(line) == 0
    text = (here / "net.shard").read_text("utf-8")
    assert '  init = safetensors("net.safetensors", names = "net.map")\n' in text
    assert "# Fill in: a source of your data, a loss, for how long.\n" in text
    assert shardc("fmt", "--check", "net.shard", folder=here).returncode == 0
    done = shardc("run", "net.shard", "--set", "train.steps=2", "--ranks", "1", folder=here)
    assert done.returncode == 0, done.stderr


SQUARES = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 10)

    def forward(self, image):
        return self.fc(torch.relu(self.conv(image)).mean((2, 3)))


def build():
    return Net(), {"image": torch.rand(4, 3, 16, 16)}
"""
BUFFERED = """\
        self.register_buffer("mean_", torch.linspace(0.5, 1.5, 8)[None] ** 3)

    def forward"""
OF_MY_OWN = """\
use "./net.shard": Net

dim batch = 64

train {
  model = Net()
  data = random(image: [batch, 3, 16, 16], label: i64[batch] < 10, batches = 4)
  loss = cross_entropy(model(image), label)
  optimizer = adamw(lr = 0.001)
  steps = 5
}
"""


def test_a_train_to_fill_in_has_the_sizes_of_the_example_and_leaves_the_model_to_others(here: Path) -> None:
    (here / "squares.py").write_text(SQUARES)
    (here / "mine.shard").write_text(OF_MY_OWN)
    assert run(["import", "squares:build", "-o", "net.shard", "--train"]) == 0
    text = (here / "net.shard").read_text("utf-8")
    assert "dim batch_size = 4\n" in text and "random(image: [batch_size, 3, 16, 16], batches = 4)" in text
    done = shardc("check", "mine.shard", "--set", "batch=32", folder=here)
    assert done.returncode == 0, done.stderr


def test_what_an_imported_model_is_given_comes_by_the_map_beside_it(here: Path) -> None:
    (here / "buffered.py").write_text(
        SQUARES.replace("    def forward", BUFFERED).replace("fc(", "fc(self.mean_[0] * ")
    )
    os.makedirs("nets")
    line = ["import", "buffered:build", "-o", "nets/net.shard", "--weights", "nets/net.safetensors"]
    assert run(line) == 0
    mine = OF_MY_OWN.replace("./net.shard", "./nets/net.shard")
    (here / "mine.shard").write_text(mine)
    told = shardc("check", "mine.shard", folder=here).stdout
    init = 'init = safetensors("nets/net.safetensors", names = "nets/net.map")'
    assert f"help: write `{init}`, or let it start" in told
    (here / "mine.shard").write_text(mine.replace("  steps", f"  {init}\n  steps"))
    assert shardc("check", "mine.shard", folder=here).returncode == 0


def test_dims_and_models_have_the_names_that_a_file_gives(here: Path) -> None:
    (here / "names.txt").write_text(NAMES)
    assert run(["import", "theirs:tiny", "-o", "net.shard", "--names", "names.txt"]) == 0
    text = (here / "net.shard").read_text("utf-8")
    assert "model Small(words: dim = 40" in text and "model Tiny(" not in text and "vocab" not in text
    assert "mlp_2 = Linear(ffn, d)" in text


WRONG = {
    "model Gone = Small": "there is no model `Gone` to name",
    "dim gone = words": "there is no dim `gone` to name",
    "dim vocab = d": "`Tiny` has a `d` already, so `vocab` cannot be that",
    "model Tiny = Layer": "two models would be `Layer`",
    "vocab: words": "line 1 of `names.txt` gives no name: `vocab: words`",
    "dim vocab = model": "line 1 of `names.txt`: `model` is a word of the language",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_name_that_cannot_be_given_is_refused(line: str) -> None:
    with pytest.raises(RunError) as error:
        import_module(modules.tiny, Wanted("modules:tiny", {}, names=parse(line, "names.txt")))
    assert error.value.code == "SH600" and WRONG[line] in error.value.message


def test_a_file_of_names_that_is_not_there_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "theirs:tiny", "-o", "net.shard", "--names", "names.txt"]) == 2
    assert "Invalid value for --names: `names.txt` does not exist" in capsys.readouterr().err


def test_a_function_that_sets_a_seed_is_told_so() -> None:
    def factory() -> modules.Example:
        torch.manual_seed(0)
        return modules.mlp()

    with pytest.raises(RunError, match="the function sets a seed of its own") as error:
        import_module(factory, Wanted("modules:mlp", {}))
    assert error.value.code == "SH608" and "take `torch.manual_seed` out of it" in str(error.value)
    found = import_module(factory, Wanted("modules:mlp", {}, frozenset(("SH608",))))
    assert "normal(" in found.text


@pytest.mark.parametrize(
    ("start", "seeded", "number"),
    [
        (lambda w: w.normal_(), True, "1"),
        (lambda w: w.normal_().mul_(0.02), True, "0.02"),
        # A fifth is 0: drawn anew, and no distribution of the language.
        (lambda w: w.normal_().mul_(torch.rand(w.shape) < 0.81), False, "0.9"),
        (lambda w: w.copy_(torch.linspace(0, 1, w.numel()).view(w.shape)), False, "0.577"),
    ],
)
def test_a_deviation_that_is_offered_has_no_digits_of_chance(
    start: Callable[[Any], Any], seeded: bool, number: str
) -> None:
    """The standard error of the deviation of 4,800 numbers is 1 %, of three times as many 0.6 %."""
    measured = []

    def factory() -> tuple[Any, dict[str, Any]]:
        if seeded:
            torch.manual_seed(7)
        table = torch.nn.Embedding(300, 16)
        with torch.no_grad():
            start(table.weight)
        measured.append(float(table.weight.detach().square().mean().sqrt()))
        return torch.nn.Sequential(table), {"input": torch.randint(0, 300, (4, 7))}

    with pytest.raises(RunError, match="starts it as normal") as error:
        import_module(factory, Wanted("net:net", {}))
    assert error.value.code == "SH608" and f"starts it as normal({number})" in str(error.value)
    assert f"{measured[0]:.3g}" != number or number == "0.577"
    found = import_module(factory, Wanted("net:net", {}, frozenset(("SH608",))))
    # With a deviation of 1 it is the library's.
    assert ("use std.nn: Embedding" if number == "1" else f"normal({number})") in found.text
