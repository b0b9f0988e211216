"""`shardc run --profile`: a trace of each stage's first rank, whose ranges have the program's names and lines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.process import NET, shardc
from tests.device.test_device import STAGED

pytestmark = pytest.mark.slow


def _names(trace: Path) -> list[str]:
    found = json.loads(trace.read_text())
    assert found["written_by"] == "shardlang"
    return [event["name"] for event in found["traceEvents"] if event.get("cat") == "user_annotation"]


def losses(figures: str) -> list[float]:
    return [json.loads(line)["loss"] for line in figures.splitlines()]


def test_ranges_of_each_stage(tmp_path: Path) -> None:
    (tmp_path / "net.shard").write_text(STAGED)
    words = ("run", "net.shard", "--ranks", "4", "--device", "cpu", "--log-dir", "logs", "--metrics", "m.jsonl")
    assert shardc(*words, folder=tmp_path).returncode == 0
    plain = (tmp_path / "m.jsonl").read_text()
    done = shardc(*words, "--profile", "2..4", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert losses(plain) == losses((tmp_path / "m.jsonl").read_text())
    # Mesh pp = 2, dp = 2: the first rank of each stage.
    assert sorted(p.name for p in (tmp_path / "logs").glob("*.json")) == ["trace-rank-0.json", "trace-rank-2.json"]
    for rank, blocks in ((0, ("blocks[0]", "blocks[1]")), (2, ("blocks[2]", "blocks[3]"))):
        names = _names(tmp_path / "logs" / f"trace-rank-{rank}.json")
        assert [n for n in names if n.startswith("step ")] == ["step 2", "step 3"]
        assert names.count("update") == 2
        for block in blocks:
            # Of four microbatches in two steps.
            assert sum(name.startswith(f"{block}: block") for name in names) == 8
        assert any(name.startswith("net.shard:10  ") and " = x @ p.w  (" in name for name in names)
    assert "the trace of steps 2 to 3 is logs/trace-rank-0.json" in done.stdout
    assert "net.shard:10  " in done.stdout
    assert any("reduction='sum'" in name for name in names)  # torch writes names into JSON as they are
    # The next run there replaces its own trace, and no other file.
    assert shardc(*words, "--profile", "1", folder=tmp_path).returncode == 0
    (tmp_path / "logs" / "trace-rank-0.json").write_text("{}")
    told = shardc(*words, "--profile", "1", folder=tmp_path)
    assert told.returncode == 3 and "SH512" in told.stderr and "trace-rank-0.json" in told.stderr


@pytest.mark.parametrize(
    ("steps", "code", "told"),
    [("0", 2, "no step"), ("5..5", 2, "no step"), ("x", 2, "no step"), ("6..8", 3, "there is no step 7 to profile")],
)
def test_steps_that_are_none(steps: str, code: int, told: str, tmp_path: Path) -> None:
    (tmp_path / "net.shard").write_text(NET)
    done = shardc("run", "net.shard", "--ranks", "2", "--device", "cpu", "--profile", steps, folder=tmp_path)
    assert done.returncode == code and told in done.stderr and "Traceback" not in done.stderr
