"""The page for those who come from another library: their programs, run as they are, have the losses of ours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.cli.process import shardc
from tests.documents.bless import SPECS
from tests.mdtest import fences
from tests.runtime.apart import apart

_ABORTED = "terminate called without an active exception"


@pytest.mark.slow
def test_their_losses_are_ours(tmp_path: Path) -> None:
    for _, _, words, text in fences((SPECS / "coming_from.md").read_text("utf-8")):
        for name in (word.removeprefix("file=") for word in words if word.startswith("file=")):
            (tmp_path / name).write_text(text, "utf-8")
    ended(warm.run([sys.executable, "loop.py"], cwd=tmp_path))
    for name in ("ddp", "fsdp", "tensor"):
        # Each of the two ranks prints them.
        said = [ended(rank) for rank in apart(2, f"{name}.py", folder=tmp_path)]
        losses = [float(number) for number in re.findall(r"loss (\d+\.\d+)", "\n".join(said))]
        done = shardc("run", "net.shard", "--ranks", "2", "--strategy", name, "--metrics", name, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        ours = [json.loads(line)["loss"] for line in (tmp_path / name).read_text().splitlines()]
        assert len(ours) == 4 and len(losses) == 8
        assert sorted([*ours, *ours]) == pytest.approx(sorted(losses), rel=1e-12)


def ended(done: subprocess.CompletedProcess[str]) -> str:
    """What it printed."""
    # Now and then a thread of torch outlives its interpreter and aborts the process, after all was printed.
    assert done.returncode == 0 or _ABORTED in done.stderr, done.stdout + done.stderr
    return done.stdout
