"""What a run shows: one live line on a terminal, plain lines elsewhere, figures as JSON lines."""

from __future__ import annotations

import io
import json
from pathlib import Path

from shardlang.runtime.logs import Log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def follow(out: io.StringIO, metrics: Path | None = None) -> str:
    log = Log(out, metrics)
    log.start(total=4, per_epoch=2, batch=16)
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
