"""The programs of specs/extensions.md with Python of a user's that is no operator: checked without it, run with it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from shardlang.cli.main import run as shardc
from tests import mdtest, warm
from tests.cli.process import SHARDC
from tests.documents.bless import SPECS

PAGE = (SPECS / "extensions.md").read_text("utf-8")
# Program -> the Python file that it names.
PROGRAMS = {"clicked.shard": "my_data.py", "rising.shard": "my_lr.py", "muon.shard": "my_opt.py"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of the page."""
    for block in [*mdtest.blocks(PAGE), *mdtest.texts(PAGE)]:
        if name := block.option("file"):
            (tmp_path / name).write_text(block.text)
    return tmp_path


@pytest.mark.parametrize("name", PROGRAMS)
def test_checking_planning_and_formatting_never_run_the_python(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / PROGRAMS[name]).write_text("raise SystemExit('this was run')\n")
    net, declared = str(folder / name), str(folder / PROGRAMS[name].replace(".py", ".shard"))
    for words in (["check", net], ["check", net, "--ranks", "2"], ["plan", net, "--ranks", "2"],
                  ["fmt", "--check", net], ["fmt", "--check", declared], ["check", declared]):  # fmt: skip
        code = shardc(words)
        found = capsys.readouterr()
        assert code == 0 and "this was run" not in found.out + found.err, (words, found)


@pytest.mark.parametrize("words", [["run", "-", "--ranks", "2"], ["verify", "-", "--ranks", "2"]])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_from_a_pipe_loads_no_file(
    words: list[str], name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (folder / PROGRAMS[name]).write_text("raise SystemExit('this was run')\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((folder / name).read_bytes())))
    assert shardc(words) == 1
    assert "a program from a pipe loads no file" in capsys.readouterr().err


@pytest.fixture
def verified(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert shardc(["verify", str(folder / "my_opt.shard")]) == 0
    assert "muon: 222 splits at 7 shapes agree (" in capsys.readouterr().out
    assert "muon: 222 splits at 7 shapes agree (" in PAGE
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_computes_under_its_strategy_what_one_device_does(name: str, verified: Path) -> None:
    done = warm.run([*SHARDC, "verify", name, "--ranks", "2", "--json"], cwd=verified)
    assert done.returncode == 0, done.stdout + done.stderr
    (check,) = json.loads(done.stdout)["checks"]
    assert check["ok"] and check["emitted"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_lists_the_files_that_it_loads(name: str, verified: Path) -> None:
    done = warm.run([*SHARDC, "run", name, "--ranks", "2"], cwd=verified)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"runs {PROGRAMS[name]}, sha256 " in done.stdout
    simulated = warm.run([*SHARDC, "run", name, "--ranks", "2", "--simulate"], cwd=verified)
    assert simulated.returncode == 0, simulated.stdout + simulated.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_link_that_leads_out_is_refused(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner, declared = folder / "inner", PROGRAMS[name].replace(".py", ".shard")
    inner.mkdir()
    (inner / declared).write_text((folder / declared).read_text())
    (inner / PROGRAMS[name]).symlink_to(folder / PROGRAMS[name])
    assert shardc(["check", str(inner / declared)]) == 1
    assert "is a link to a file elsewhere" in capsys.readouterr().out
