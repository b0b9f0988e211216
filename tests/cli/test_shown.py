"""What commands print of names that hold escapes for a terminal, ends of lines or markup: it can only be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardlang.cli.main import run
from shardlang.errors import RunError

NAME = "\x1b[31m\x9b2J[red]:smile:{x}\u202e\n\u2028error[SH999].shard"
SHOWN = "<U+001B>[31m<U+009B>2J[red]:smile:{x}<U+202E>"
FINE = """\
use "./\x1b[1m\r\u202e.shard": act
dim batch = 8, d = 4
model Net {
  param w: [d] = normal(0.1)
  forward(x: [batch, d]) -> [batch, d] { return act(x) * w }
}
strategy s {
  mesh dp = auto
  split batch over dp
}
train {
  model = Net()
  data = csv("\x1b[2J\u202e.csv", x: [batch, d], label: [batch, d])
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""
IMPORTED = "fn act(x: [n, m]) -> [n, m] { return relu(x) }\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).write_text(FINE, "utf-8", newline="")
    (tmp_path / "\x1b[1m\r\u202e.shard").write_text(IMPORTED)
    (tmp_path / f"broken{NAME}").write_text("dim  a = ?\x1b[31m\u202e\n")
    (tmp_path / f"loose{NAME}").write_text("dim  a = 1\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["check", NAME], 0, f"{SHOWN}<U+000A><U+2028>error[SH999].shard: fine"),
        (["check", NAME, "--output", "concise"], 0, f"{SHOWN}<U+000A>"),
        (["check", f"broken{NAME}"], 1, f"--> broken{SHOWN}<U+000A>"),
        (["check", f"broken{NAME}", "--output", "concise"], 1, f"broken{SHOWN}<U+000A>"),
        (["check", f"broken{NAME}", "--output", "json"], 1, "broken\\u001b"),
        (["check", f"broken{NAME}", "--output", "sarif"], 1, "broken%1B"),
        (["check", NAME, "--strategy", "\x1b[31m"], 2, "`<U+001B>[31m`"),
        (["check", NAME, "--set", "\x1b[31m=2"], 2, "`<U+001B>[31m=2`"),
        (["check", NAME, "--set", "batch=\x1b[31m"], 1, "<U+001B>[31m"),
        (["check", f"no{NAME}"], 2, f"`no{SHOWN}<U+000A>"),
        (["check", NAME, "--\x1b[31m"], 2, "[31m"),
        (["\x1b[31m"], 2, "<U+001B>[31m"),
        (["explain", "\x1b[31m"], 2, "`<U+001B>[31m`"),
        (["plan", NAME, "--ranks", "2"], 0, f"{SHOWN}<U+000A><U+2028>error[SH999].shard on 2 ranks"),
        (["plan", NAME, "--ranks", "2", "--json"], 0, "\\u001b"),
        (["compile", NAME, "--ranks", "2", "-o", "\x1b[31m\n"], 0, "wrote <U+001B>[31m<U+000A>/main.py"),
        (["compile", NAME, "--ranks", "2", "-o", f"{NAME}/out"], 2, SHOWN),
        (["fmt", "--check", f"loose{NAME}"], 1, f"loose{SHOWN}<U+000A>"),
        (["fmt", f"loose{NAME}"], 0, f"formatted loose{SHOWN}<U+000A>"),
        (["run", NAME, "--ranks", "2", "--metrics", "\x1b[31m/m"], 2, "<U+001B>[31m"),
        (["run", NAME, "--ranks", "2", "--log-dir", "logs\x1b"], 3, "<U+001B>[2J<U+202E>.csv"),
        (["run", NAME, "--ranks", "2", "--simulate"], 3, "<U+001B>[2J<U+202E>.csv"),
        (["verify", NAME, "--ranks", "2", "--simulated-only"], 0, SHOWN),
        (["tokens", "no\x1b", "-o", "t\x1b.bin"], 2, "no<U+001B>"),
        (["tokens", NAME, "-o", "t\x1b.bin"], 0, "wrote t<U+001B>.bin"),
    ],
)  # fmt: skip
def test_no_name_reaches_a_terminal_as_it_is(
    here: Path, capfd: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert run(words) == code
    out, err = capfd.readouterr()
    assert said in out + err
    assert (out + err).replace("\n", "").isprintable()
    assert "\nerror[SH999]" not in out + err


def test_a_mistake_in_a_run_is_shown_alike() -> None:
    text = str(RunError("SH503", "no `\x1b[31m`", file=Path("a\x1b\n"), line=1, help="\u202e"))
    assert text == "error[SH503]: no `<U+001B>[31m`\n  --> a<U+001B><U+000A>:1\nhelp: <U+202E>"


def test_sarif_of_a_name_that_is_no_utf_8(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "\udcff.shard").write_text("dim a = ?\n")
    assert run(["check", "\udcff.shard", "--output", "sarif"]) == 1
    (result,) = json.loads(capfd.readouterr().out)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "%FF.shard"


def test_a_diff_of_what_only_python_takes_for_ends_of_lines(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "a.shard").write_text("dim  a = 1  # b\u2028c\x0cd\n", newline="")
    assert run(["fmt", "--diff", "a.shard"]) == 0
    assert capfd.readouterr().out.count("\n") == 5
