"""Neovim with the lines of editors/README.md: mistakes, what one points at, declarations, offers, other names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.editors.cached import program
from tests.editors.conftest import ROOT

DIGITS = ROOT / "examples" / "digits.shard"
TEXT = DIGITS.read_text("utf-8")


@pytest.fixture(scope="module")
def told(shardc: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What neovim.lua saw."""
    nvim, folder = program("nvim"), tmp_path_factory.mktemp("neovim")
    lines = re.search(r"```lua\n(.*?)```", (ROOT / "editors" / "README.md").read_text("utf-8"), re.DOTALL)
    assert lines is not None and lines[1].count("\n") == 8
    (folder / "init.lua").write_text(lines[1].replace("/path/to/shardlang", str(ROOT)), "utf-8")
    shutil.copy(DIGITS, folder)
    env = {
        **os.environ, "HOME": str(folder), "PATH": f"{shardc.parent}:{os.environ['PATH']}",
        "SHARD_PROGRAM": str(folder / "digits.shard"), "SHARD_TOLD": str(folder / "told"),
    }  # fmt: skip
    script = str(Path(__file__).with_name("neovim.lua"))
    command = [nvim, "--headless", "-n", "-i", "NONE", "-u", str(folder / "init.lua"), "-S", script]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (folder / "told").is_file(), done.stderr
    found: dict[str, Any] = json.loads((folder / "told").read_text("utf-8"))
    assert "failed" not in found, found["failed"]
    return found


def test_a_mistake_is_shown_while_it_is_there(told: dict[str, Any]) -> None:
    row = next(n for n, line in enumerate(TEXT.split("\n")) if "= up(image)" in line)
    ((line, column, code, message),) = told["mistakes"]
    assert (line, column, code) == (row, TEXT.split("\n")[row].index("up("), "SH200")
    assert "there is no `upp` here" in message and "did you mean `up`?" in message
    assert told["undone"] == [] and told["filetype"] == "shard"


def test_what_one_points_at_is_told(told: dict[str, Any]) -> None:
    assert "A rank holds" in told["hover"]["contents"]["value"]


def test_a_name_leads_to_its_declaration(told: dict[str, Any]) -> None:
    assert told["definition"].strip().startswith("layer up = ")


def test_axes_are_offered_behind_over(told: dict[str, Any]) -> None:
    assert "dp" in told["completion"]


def test_a_dim_gets_another_name(told: dict[str, Any]) -> None:
    assert "\n".join([*told["renamed"], ""]) == re.sub(r"\bhidden\b", "wide", TEXT)
