"""Options of `shardc import`: a `train` to fill in, names that a user gives, a function with a seed of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

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
    import torch

    def factory() -> modules.Example:
        torch.manual_seed(0)
        return modules.mlp()

    with pytest.raises(RunError, match="the function sets a seed of its own") as error:
        import_module(factory, Wanted("modules:mlp", {}))
    assert error.value.code == "SH608" and "take `torch.manual_seed` out of it" in str(error.value)
    found = import_module(factory, Wanted("modules:mlp", {}, frozenset(("SH608",))))
    assert "normal(" in found.text
