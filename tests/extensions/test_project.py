"""The declarations that a project names: others are refused by every command, as is a project file that is wrong."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from shardlang.cli.main import run as shardc
from tests.extensions.test_schedules import NET, PYTHON

LISTED = '[extensions]\nfiles = ["{}"]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program in a folder of its own, and the declaration of its schedule above it."""
    made = tmp_path / "programs"
    made.mkdir()
    (tmp_path / "my_lr.py").write_text(PYTHON)
    (tmp_path / "my_lr.shard").write_text('schedule mine(warmup: int, power: float = 2) { python "my_lr.py": mine }\n')
    (tmp_path / "other.shard").write_text('schedule other() { python "my_lr.py": mine }\n')
    (made / "net.shard").write_text(NET.replace("./my_lr", "../my_lr"))
    return tmp_path


def said(folder: Path, capsys: pytest.CaptureFixture[str], *words: str, command: str = "check") -> tuple[int, str]:
    code = shardc([command, str(folder / "programs" / "net.shard"), *words])
    return code, "".join(capsys.readouterr())


def test_what_is_listed_may_be_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in (LISTED.format("my_lr.shard"), LISTED.format("./my_lr.shard"), "", "# nothing\n"):
        (folder / "shard.toml").write_text(text)
        code, text = said(folder, capsys)
        assert code == 0, text


def test_what_is_not_listed_is_refused_by_each_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "shard.toml").write_text(LISTED.format("other.shard"))
    for command, words in (("check", []), ("plan", ["--ranks", "2"]), ("run", ["--ranks", "2"]),
                           ("compile", ["--ranks", "2", "-o", str(folder / "out")]),
                           ("verify", ["--ranks", "2"])):  # fmt: skip
        code, text = said(folder, capsys, *words, command=command)
        assert code == 1 and "error[SH623]: schedule `mine` is declared in `" in text, (command, text)
    assert not (folder / "out").exists()


def test_a_command_names_one_more(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "shard.toml").write_text(LISTED.format("other.shard"))
    mine, other = str(folder / "my_lr.shard"), str(folder / "other.shard")
    assert said(folder, capsys, "--extension", mine)[0] == 0
    (folder / "shard.toml").unlink()
    assert said(folder, capsys, "--extension", mine, "--extension", other)[0] == 0
    code, text = said(folder, capsys, "--extension", other)
    assert code == 1 and "which --extension does not name" in text
    for wrong in (str(folder / "none.shard"), str(folder / "my_lr.py"), str(folder)):
        code, text = said(folder, capsys, "--extension", wrong)
        assert code == 2 and "is no .shard file" in text


def test_the_nearest_project_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "shard.toml").write_text(LISTED.format("my_lr.shard"))
    (folder / "programs" / "shard.toml").write_text("[extensions]\nfiles = []\n")
    assert said(folder, capsys)[0] == 1


WRONG = {
    "no toml": ("[extensions\n", "the file is no TOML: "),
    "nested": ("a = " + "[" * 100_000, "the file is no TOML: "),
    "a long number": ("a = " + "9" * 10_000, "the file is no TOML: "),
    "a slip": (
        LISTED.replace("extensions", "extension").format("my_lr.shard"),
        "`extension` says nothing: a project has",
    ),
    "capitals": (
        "[Extensions]\nfiles = []\n",
        "`Extensions` says nothing: a project has `extensions` and nothing else",
    ),
    "without its table": ("files = []\n", "`files` says nothing: a project has `extensions` and nothing else"),
    "no table": ("extensions = 3\n", "`extensions` is a table with `files` and nothing else"),
    "another key": ("[extensions]\nfile = []\n", "`extensions` is a table with `files` and nothing else"),
    "no list": ('[extensions]\nfiles = "my_lr.shard"\n', "`files` of `extensions` is a list of texts"),
    "numbers": ("[extensions]\nfiles = [1]\n", "`files` of `extensions` is a list of texts"),
    "not there": (LISTED.format("none.shard"), "there is no file `none.shard`"),
    "above": (LISTED.format("../my_lr.shard"), "`../my_lr.shard` is no .shard file beside the project file"),
    "from the root": (LISTED.format("/my_lr.shard"), "`/my_lr.shard` is no .shard file beside the project file"),
    "python": (LISTED.format("my_lr.py"), "`my_lr.py` is no .shard file"),
    "a folder": (LISTED.format("x.shard"), "there is no file `x.shard`"),
    "a nul": ('[extensions]\nfiles = ["a\\u0000.shard"]\n', "is no .shard file"),
    "a link": (LISTED.format("link.shard"), "`link.shard` is no .shard file beside the project file or below it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_project_file_is_told(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, says = WRONG[name]
    home = folder / "programs"
    (home / "shard.toml").write_text(text)
    (home / "x.shard").mkdir()
    (home / "link.shard").symlink_to(folder / "my_lr.shard")
    code, found = said(folder, capsys)
    assert code == 1 and "error[SH623]: " in found and says in found, found


def test_bytes_that_are_no_text_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "shard.toml").write_bytes(b"\xff\xfe")
    code, found = said(folder, capsys)
    assert code == 1 and "is not UTF-8" in found


def test_a_program_from_a_pipe_has_no_project(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / "shard.toml").write_text(LISTED.format("my_lr.shard"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(NET.encode())))
    assert shardc(["run", "-", "--ranks", "2"]) == 1
    assert "a program from a pipe loads no file" in "".join(capsys.readouterr())
