"""`shardc new`: each folder that it writes runs at once; it replaces nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardlang.cli.main import run
from tests.cli.process import shardc

FILES = {
    "digits": {"README.md", "train.shard"},
    "text": {"README.md", "train.shard", "text.txt", "text.bin"},
    "clicks": {"README.md", "train.shard", "clicks.txt"},
    "module": {"README.md", "train.shard", "net.py", "net.shard", "net.map"},
}


@pytest.mark.slow
@pytest.mark.parametrize("start", FILES)
def test_it_runs_at_once_and_learns(start: str, tmp_path: Path) -> None:
    """From the commands of its output and its README, on two ranks, under each strategy."""
    done = shardc("new", "mine", "--from", start, folder=tmp_path)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "run it: shardc run mine/train.shard --ranks 2"
    assert {path.name for path in (tmp_path / "mine").iterdir()} == FILES[start]
    text = (tmp_path / "mine" / "train.shard").read_text()
    for strategy in [line.split()[1] for line in text.splitlines() if line.startswith("strategy ")]:
        ran = shardc("run", "train.shard", "--ranks", "2", "--strategy", strategy, "--metrics", "figures.jsonl",
                     folder=tmp_path / "mine")  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        lines = (tmp_path / "mine" / "figures.jsonl").read_text().splitlines()
        losses = [figures["loss"] for figures in map(json.loads, lines) if "loss" in figures]
        assert sum(losses[-5:]) < 0.95 * sum(losses[:5]), strategy


@pytest.mark.parametrize("start", FILES)
def test_its_files_are_in_their_one_form(start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["new", "mine", "--from", start]) == 0
    assert run(["fmt", "--check", "mine/train.shard"]) == 0
    readme = (tmp_path / "mine" / "README.md").read_text().splitlines()
    assert len(readme) == 3 and all(len(line) <= 100 for line in readme)


@pytest.mark.slow
def test_the_files_of_the_module_are_what_import_writes(tmp_path: Path) -> None:
    assert shardc("new", "mine", "--from", "module", folder=tmp_path).returncode == 0
    names = [tmp_path / "mine" / name for name in ("net.shard", "net.map")]
    before = [path.read_text() for path in names]
    words = (tmp_path / "mine" / "README.md").read_text().splitlines()[1].split("`")[1].split()
    assert words[0] == "shardc"
    done = shardc(*words[1:], folder=tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in names] == before


@pytest.mark.slow
def test_the_tokens_are_those_of_shardc_tokens(tmp_path: Path) -> None:
    assert shardc("new", "mine", "--from", "text", folder=tmp_path).returncode == 0
    before = (tmp_path / "mine" / "text.bin").read_bytes()
    done = shardc("tokens", "text.txt", "-o", "text.bin", folder=tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "mine" / "text.bin").read_bytes() == before


def test_it_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("folder", "file", "link"):
        assert run(["new", name, "--from", "digits"]) == 2
        assert f"`{name}` exists already: give another name" in capsys.readouterr().err
    assert run(["new", "not/there", "--from", "digits"]) == 2
    assert "there is no folder `not`" in capsys.readouterr().err
    assert run(["new", "mine"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"folder", "file", "link"}
    assert (tmp_path / "file").read_text() == "mine" and not list((tmp_path / "folder").iterdir())
