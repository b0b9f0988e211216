"""`shardc verify` says what it does, with and without a terminal."""

from __future__ import annotations

import io

import pytest

from shardlang.cli.main import run
from shardlang.terminal.display import QUIET, Live
from tests.cli.test_commands import QUICKSTART


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_lines_stand_one_below_the_other_and_are_few() -> None:
    now, out = [100.0], io.StringIO()
    live = Live(out, lambda: now[0])
    live.head = "dp"
    for step in range(40):
        live(f"step {step}")
        now[0] += QUIET / 10
    live.clear()
    assert out.getvalue() == "dp: step 0\ndp: step 10\ndp: step 20\ndp: step 30\n"


def test_on_a_terminal_a_line_takes_the_place_of_the_one_before() -> None:
    out = Terminal()
    live = Live(out)
    live("a long line")
    live("short")
    live.clear()
    assert out.getvalue() == "\ra long line\rshort      \r     \r"


OPTIONS = ["verify", QUICKSTART, "--ranks", "8", "--steps", "1", "--simulated-only"]


def test_verify_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", QUICKSTART, "--ranks", "8", "--steps", "1", "--simulated-only"]) == 0
    assert "planning" in capsys.readouterr().err
