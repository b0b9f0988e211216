"""What a run shows: one live line on a terminal, plain lines elsewhere, figures as JSON lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from shardlang.runtime.logs import Log
from shardlang.runtime.speed import Speed, Work


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def follow(out: io.StringIO, metrics: Path | None = None) -> str:
    log = Log(out, metrics)
    log.start(total=4, per_epoch=2, speed=Speed(16))
    for step in range(1, 5):
        log.step(step, (step + 1) // 2, {"loss": 1 / step, "accuracy": 0.5}, 0.002)
        if step % 2 == 0:
            log.evaluation(step // 2, step, {"loss": 0.25})
    log.end()
    return out.getvalue()


def test_plain_lines_where_there_is_no_terminal() -> None:
    lines = follow(io.StringIO()).splitlines()
    shown = [line.split("  ")[:4] for line in lines[::2]]
    assert shown[0] == ["epoch 1", "step 2/4", "loss 0.5", "accuracy 0.5"]
    assert shown[1] == ["epoch 2", "step 4/4", "loss 0.25", "accuracy 0.5"]
    assert lines[1::2] == ["epoch 1  eval.loss 0.25", "epoch 2  eval.loss 0.25"]
    assert "examples/s" in lines[0] and "left" in lines[0] and "left" not in lines[2]


def test_a_live_line_on_a_terminal() -> None:
    text = follow(Terminal())
    assert text.count("\r") >= 2
    assert "\repoch 1  step 2/4" in text


def test_figures_as_json_lines(tmp_path: Path) -> None:
    follow(io.StringIO(), tmp_path / "m.jsonl")
    records = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert records[0] == {"step": 1, "epoch": 1, "loss": 1.0, "accuracy": 0.5, "step_ms": 2.0}
    assert records[2] == {"epoch": 1, "eval.loss": 0.25}
    assert len(records) == 6


def test_speed_and_memory_where_they_are_known(tmp_path: Path) -> None:
    """Tokens need no device; the share of a peak and bytes are those of a device that counts its memory."""
    work = Work(tokens=4096, flops=10**12, peak=10**13)
    host = Speed(16, work, 2)
    assert host.figures(0.5) == {"tokens_per_s": 8192.0}
    assert host.shown(0.5) == "8,192 tokens/s"
    device = Speed(16, work, 2, lambda: 61_300_000_000, 66_500_000_000)
    assert device.figures(0.5) == {"tokens_per_s": 8192.0, "mfu": 0.1, "peak_bytes": 61_300_000_000}
    assert device.shown(0.5) == "8,192 tokens/s  10.0 % MFU  61.3 of 66.5 GB"
    assert Speed(16, memory=lambda: 10**9).shown(0.5) == "32 examples/s  1.0 GB"
    log = Log(None, tmp_path / "m.jsonl")
    log.start(1, 1, device)
    log.step(1, 1, {"loss": 2.0}, 0.5)
    log.end()
    assert json.loads((tmp_path / "m.jsonl").read_text())["mfu"] == 0.1


@pytest.mark.parametrize("end", ["", '{"step": 5, "epo'])
def test_no_step_stands_twice_after_a_resume(tmp_path: Path, end: str) -> None:
    """Whether the step of the checkpoint is there or not, and whether the last line was cut short."""
    path = tmp_path / "figures.jsonl"
    lines = [json.dumps({"step": step, "epoch": 1, "loss": 1.0}) + "\n" for step in (1, 2, 3, 4)]
    for done, kept in ((2, 2), (4, 4), (9, 4)):
        path.write_text("".join(lines) + end)
        log = Log(None, path)
        log.start(9, 9, Speed(1), done)
        log.end()
        assert path.read_text() == "".join(lines[:kept])
    path.write_text("".join([lines[0], *lines[2:]]))
    log = Log(None, path)
    log.start(9, 9, Speed(1), 2)
    log.end()
    assert path.read_text() == lines[0]
