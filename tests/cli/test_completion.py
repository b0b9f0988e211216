"""What a shell offers while a command is typed: the words, and real shells with the scripts of `shardc completion`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardlang.cli import main, shells
from tests.cli.process import NET
from tests.cli.typed import ROOT, offered

LAYERS = """\
use std.clusters: h100_pod

model Net(d: dim, deep: int = 2) {
  dim wide = 4 * d
  param w: [d] = normal(0.5)

  forward(x: [batch, d]) -> [batch, d] {
    return x * w
  }
}

device laptop {
  memory = 8GB
}

cluster home {
  device = laptop
}
"""
# Its last strategy has a mistake, and `train` is cut off.
MAIN = """\
use "my layers.shard": Net, home

dim batch = 8, d = 4

strategy fast {
  mesh dp = auto, mp = 2
  split batch over dp
}

strategy slow {
  mesh dp = auto
  splt batch over dp
}

train {
  model = Net(d = d)
  data = random(x: [batch, d], batches = 3)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  epochs =
"""
ODD = "a b's (1), $HOME: x=1.shard"
# A line -> what is offered at its end.
LINES = {
    "shardc expl": ["explain"],
    "shardc plan net.shard --rank": ["--rank", "--ranks"],
    "shardc run net.shard --ranks 2 --device ": ["cpu", "cuda"],
    "shardc completion ": ["bash", "fish", "zsh"],
    "shardc plan ": ["deeper/", "main.shard", "my layers.shard", "net.shard", ODD],
    "shardc fmt net.shard ma": ["main.shard"],
    "shardc plan my\\ l": ["my layers.shard"],
    'shardc plan "my l': ["my layers.shard"],
    'shardc plan "a b': [ODD],
    "shardc plan a\\ b": [ODD],
    "shardc plan ./dee": ["./deeper/"],
    "shardc plan deeper/": ["deeper/é.shard"],
    "shardc run net.shard --metrics tex": ["text.txt"],
    "shardc plan main.shard --strategy ": ["fast", "slow"],
    "shardc plan main.shard --strategy f": ["fast"],
    "shardc plan main.shard --strategy=s": ["--strategy=slow"],
    "shardc diff main.shard net.shard --strategy ": ["dp", "fast", "slow"],
    "A=1 shardc plan main.shard --strategy f": ["fast"],
    'shardc plan "my layers.shard" --cluster h': ["h100_pod", "home"],
    "shardc plan main.shard --cluster ho": ["home"],
    "shardc plan main.shard --cluster std.clusters.b": ["std.clusters.b200_pod"],
    "shardc plan main.shard --set f": ["fast.dp=", "fast.mp="],
    "shardc plan main.shard --set model.d": ["model.d=", "model.deep="],
    "shardc plan main.shard --set=model.w": ["--set=model.wide="],
    "shardc plan main.shard --set b": ["batch="],
    "shardc plan main.shard --set train.optimizer.m": ["train.optimizer.momentum="],
    "shardc explain SH30": [f"SH30{n}" for n in range(1, 10)],
    "shardc explain sh304": ["SH304"],
    "shardc explain matm": ["matmul"],
    "shardc explain std.gpt": ["std.gpt2"],
}  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    (folder / "deeper").mkdir(parents=True)
    texts = {"net.shard": NET, "main.shard": MAIN, "my layers.shard": LAYERS, "deeper/é.shard": NET, "text.txt": "."}
    for name, text in {**texts, ODD: NET, ".hidden.shard": NET}.items():
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    return folder


def complete(head: str, typed: str = "", shell: str = "bash") -> list[str]:
    """The answer to a script: `head` is the line up to the word that the shell replaces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMP_WORDS", head)
        patch.setenv("COMP_CWORD", typed)
        return shells.SHELLS[shell](main.shardc, {}, "shardc", "_SHARDC_COMPLETE").complete().splitlines()


@pytest.mark.parametrize("shell", shells.SHELLS)
def test_a_real_shell_offers_each_kind_of_word(shell: str, here: Path, tmp_path: Path) -> None:
    found = offered(shell, tmp_path / "home", here, LINES)
    assert {line: _plain(words) for line, words in found.items()} == {
        line: _plain(words) for line, words in LINES.items()
    }


def _plain(words: list[str]) -> list[str]:
    """Without what shells do in ways of their own: their order, the `/` of a folder, which zsh takes away with the next
    key, and an option before `=`, which bash inserts once."""
    return sorted(word.removeprefix("--strategy=").removeprefix("--set=").rstrip("/") for word in words)


def test_the_words_need_no_shell(here: Path) -> None:
    """The value behind `=` is what bash replaces; fish replaces the option with it."""
    assert complete("shardc plan main.shard --strategy ") == ["plain,fast", "plain,slow"]
    assert complete("shardc plan main.shard --strategy=", "f") == ["plain,fast"]
    assert complete("shardc plan main.shard ", "--strategy=f", "fish") == ["plain,--strategy=fast"]
    assert complete('shardc plan "', "my") == ["program,my layers.shard"]
    assert complete("shardc plan a:", "b") == []
    assert complete("shardc plan 'a b'\\''s (1), $HOME:", " x") == ["program, x=1.shard"]
    assert complete("shardc plan ", "x", "zsh") == ["program", "x", "_"]
    assert complete("shardc explain ", "SH304", "fish") == ["plain,SH304\ta dim does not divide over an axis"]
    assert "plain,softmax" in (begun := complete("shardc explain ", "s")) and "plain,SH304" not in begun
    assert {"plain,shard", "plain,SH304"} <= set(complete("shardc explain ", "sh"))
    assert complete("shardc explain ", "SH304", "zsh")[1:] == ["SH304", "a dim does not divide over an axis"]


@pytest.mark.parametrize("name", ["digits", "transformer", "wide_deep", "llama"])
def test_what_is_offered_behind_set_is_taken(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(ROOT / "examples" / f"{name}.shard")
    paths = [line.removeprefix("plain,") for line in complete(f"shardc check {file} --set ")]
    assert len(paths) > 20
    main.run(["check", file, *(word for path in paths for word in ("--set", f"{path}1"))])
    assert "SH224" not in capsys.readouterr().out


def test_a_file_that_cannot_be_read_offers_nothing(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(here / "pipe")
    (here / "latin.shard").write_bytes(b"strategy \xe9 {\n")
    (here / "large.shard").write_bytes(b"#" * 4_000_001)
    for name in ("-", "nowhere.shard", "deeper", "pipe", "latin.shard", "large.shard", "''"):
        assert complete(f"shardc plan {name} --strategy ") == []
        assert complete(f"shardc plan {name} --set ") == []
        assert complete(f"shardc plan {name} --cluster ", "x") == []
    assert capfd.readouterr() == ("", "")


def test_a_file_of_which_a_part_is_there_offers_what_it_has(here: Path) -> None:
    for cut in range(0, len(MAIN), 7):
        (here / "main.shard").write_text(MAIN[:cut])
        named = [name for name in ("fast", "slow") if f"strategy {name} {{\n" in MAIN[:cut]]
        assert complete("shardc plan main.shard --strategy ") == [f"plain,{name}" for name in named]
        if named:
            assert complete("shardc plan main.shard --set ")[:2] == ["plain,batch=", "plain,d="]


def test_imports_that_go_round_offer_nothing(here: Path) -> None:
    (here / "one.shard").write_text('use "two.shard": Net, home\ntrain {\n  model = Net()\n}\n')
    (here / "two.shard").write_text('use "one.shard": Net, home\n')
    assert complete("shardc plan one.shard --set ", "model") == []
    assert complete("shardc plan one.shard --cluster ", "home") == []


def test_a_wrong_line_tells_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    for line in ("nix ", "nix --ranks 2 ", "plan a b c ", "run --ranks no ", "plan x --set y --set ", "--"):
        for shell in shells.SHELLS:
            complete(f"shardc {line}", shell=shell)
    assert capfd.readouterr() == ("", "")


def test_a_fault_tells_nothing(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(main, "COMMANDS", None)
    assert complete("shardc ") == []
    assert capfd.readouterr() == ("", "")


_WATCHED = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from shardlang.cli.start import main
try:
    main()
finally:
    heavy = {"torch", "numpy", "lark", "shardlang.plan", "shardlang.check.check", "shardlang.check.model"}
    print(sorted(heavy & set(sys.modules)))
    print(sorted(name.rpartition("/")[2] for name in set(opened) if name.endswith((".shard", ".toml", ".map"))))
"""


@pytest.mark.parametrize(
    ("typed", "heavy", "read"),
    [
        ("--strategy", [], ["main.shard"]),
        ("--cluster", [], ["clusters.shard", "main.shard", "my layers.shard"]),
        ("--set", None, ["main.shard", "my layers.shard"]),
    ],
)
def test_it_reads_what_it_needs_of_the_program_and_is_fast(
    typed: str, heavy: list[str] | None, read: list[str], here: Path
) -> None:
    asks = {"COMP_WORDS": f"shardc plan main.shard {typed} ", "COMP_CWORD": "", "_SHARDC_COMPLETE": "bash_complete"}
    environment = {**os.environ, **asks, "PYTHONPATH": str(ROOT)}
    said = subprocess.run([sys.executable, "-c", _WATCHED], env=environment, capture_output=True, text=True, check=True)
    *words, imported, opened = said.stdout.splitlines()
    assert words and said.stderr == ""
    assert (imported == str(heavy) or heavy is None) and "torch" not in imported and opened == str(read)


def test_the_help_has_the_line_for_each_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["completion", "--help"]) == 0
    told = capsys.readouterr().out
    assert 'eval "$(shardc completion bash)"' in told and 'eval "$(shardc completion zsh)"' in told
    assert "shardc completion fish | source" in told
    for shell in shells.SHELLS:
        assert main.run(["completion", shell]) == 0
        assert f"_SHARDC_COMPLETE={shell}_complete" in capsys.readouterr().out
