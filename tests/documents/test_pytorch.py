"""The page "the same in PyTorch": its three parts, run in one folder, give the same losses in float64."""

from __future__ import annotations

import sys
from pathlib import Path

from tests import warm
from tests.documents.bless import SPECS
from tests.mdtest import fences

SHARDC = [sys.executable, "-c", "from shardlang.cli.main import main; main()"]


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    for _, _, words, text in fences((SPECS / "pytorch.md").read_text("utf-8")):
        names = [word.removeprefix("file=") for word in words if word.startswith("file=")]
        if names:
            (tmp_path / names[0]).write_text(text, "utf-8")
    for command in (
        [sys.executable, "before.py"],
        [*SHARDC, "run", "net.shard", "--ranks", "4", "--metrics", "figures.jsonl", "--save-weights",
         "trained.safetensors"],
        [sys.executable, "beside.py"],
    ):  # fmt: skip
        done = warm.run(command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
