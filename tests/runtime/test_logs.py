"""What a run shows: one live line on a terminal, plain lines elsewhere, figures as JSON lines."""

from __future__ import annotations

import fcntl
import io
import json
import pty
import re
import struct
import termios
from pathlib import Path
from typing import Any

import pytest

from shardlang.launch.log_targets import LogTarget
from shardlang.runtime.events.consumers import open_function
from shardlang.runtime.events.stream import Asking, EventStream
from shardlang.runtime.logs import Log
from shardlang.runtime.speed import Speed, Work
from shardlang.terminal.display import Live


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def follow(out: io.StringIO, metrics: Path | None = None, every: int = 100) -> str:
    log = Log(out, metrics)
    log.start(total=4, per_epoch=2, speed=Speed(16), every=every)
    if log.live is not None and log.live.terminal:
        log.live._pace = 0.0
        log.live.rest()
    for step in range(1, 5):
        log.step(step, (step + 1) // 2, {"loss": 1 / step, "accuracy": 0.5}, 0.002)
        if step % 2 == 0:
            log.evaluation(step // 2, step, {"loss": 0.25})
    log.end()
    return out.getvalue()


def test_files_of_figures_are_json_where_a_figure_is_no_number(tmp_path: Path) -> None:
    """JSON has no word for NaN and infinities, so other readers end at the bare words that Python writes."""
    log = Log(io.StringIO(), tmp_path / "m.jsonl")
    target = LogTarget("jsonl", str(tmp_path / "e.jsonl"))
    log.stream = stream = EventStream([(str(target), open_function(target, Asking()))])
    log.start(total=2, per_epoch=1, speed=Speed(16), every=1)
    log.step(1, 1, {"loss": float("nan"), "accuracy": 0.5}, 0.002)
    log.evaluation(1, 1, {"loss": float("inf")})
    log.end()
    assert stream.close(60) == []
    for name in ("m.jsonl", "e.jsonl"):
        lines = (tmp_path / name).read_text().splitlines()
        step, evaluation = (json.loads(line, parse_constant=pytest.fail) for line in lines[:2])
        assert step["loss"] is None and step["accuracy"] == 0.5 and evaluation["eval.loss"] is None


def test_plain_lines_where_there_is_no_terminal() -> None:
    lines = follow(io.StringIO()).splitlines()
    shown = [re.split("  +", line.replace("0 s left", ""))[:4] for line in lines[::2]]
    assert shown[0] == ["epoch 1", "step 2/4", "loss 0.5", "accuracy 0.5"]
    assert shown[1] == ["epoch 2", "step 4/4", "loss 0.25", "accuracy 0.5"]
    assert lines[1::2] == ["epoch 1  eval.loss 0.25", "epoch 2  eval.loss 0.25"]
    assert "examples/s" in lines[0] and "left" in lines[0] and "0 s left" in lines[2]


def test_a_live_line_on_a_terminal() -> None:
    text = follow(Terminal())
    assert text.startswith("\repoch 1  step 1/4  0 s left  loss 1")
    kept = [line.rpartition("\r")[2] for line in text.split("\n")[:-1]]
    assert [line.split()[2] for line in kept] == ["step", "eval.loss", "step", "eval.loss"]
    assert "left" in text and "left" not in "".join(kept)  # what stays is not about what is to come


def test_a_line_stays_every_so_many_steps() -> None:
    for out in (io.StringIO(), Terminal()):
        lines = [line.rpartition("\r")[2] for line in follow(out, every=1).split("\n")]
        assert [line.split("  ")[1] for line in lines if "step" in line] == [f"step {n}/4" for n in range(1, 5)]
    for total, per_epoch, every in ((4, 2, 1), (60, 900, 10), (1234, 1234, 200), (10**6, 10**7, 10**5), (220, 22, 0)):
        log = Log(None, None)
        log.start(total, per_epoch, Speed(1))
        assert log.every == every


def test_speed_is_that_of_the_steps_since_the_last_line() -> None:
    """A slow first step, which compiles, says nothing of those after it."""
    out = io.StringIO()
    log = Log(out, None)
    log.start(total=14, per_epoch=8, speed=Speed(10), done=10, every=2)
    for step, seconds in ((11, 60.0), (12, 60.0), (13, 0.5), (14, 0.25)):
        log.step(step, 1, {"loss": 0.5}, seconds)
    told = [re.findall(r"[\d.]+ examples/s", line)[0] for line in out.getvalue().splitlines()]
    assert told == ["0 examples/s", "27 examples/s"]


def test_numbers_line_up() -> None:
    """Also where a number is longer than those before it: from there on."""
    out = io.StringIO()
    log = Log(out, None)
    log.start(total=100, per_epoch=5, speed=Speed(16), every=1)
    for step, loss in ((1, 2.0), (2, 0.125), (3, 0.0718969), (4, -1.23457e-05), (5, 0.5)):
        log.step(step, 1, {"loss": loss, "accuracy": 0.5}, 0.002)
    log.evaluation(1, 5, {"loss": 0.5})
    lines = out.getvalue().splitlines()
    begins = [tuple(line.index(name) for name in ("epoch", "step", "loss", "accuracy")) for line in lines[:5]]
    assert len({*begins[:3]}) == len({*begins[3:]}) == 1 and begins[3][3] == begins[2][3] + 3
    assert (
        lines[0].startswith("epoch  1  step   1/100  0 s left  loss 2          accuracy 0.5")
        and "eval.loss 0.5" in lines[5]
    )
    ends = [line.index(" left") for line in lines[3:5]]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("columns", "last"), [(120, "8 examples/s"), (80, "accuracy 0.5"), (30, "step 1/4"), (6, "epoch")]
)
def test_a_live_line_is_as_wide_as_its_own_terminal(columns: int, last: str) -> None:
    """Not as that of the standard output, which is a log in a rank; whole entries are left out."""
    theirs, mine = pty.openpty()
    fcntl.ioctl(mine, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with open(mine, "w") as out, open(theirs, "rb", buffering=0) as screen:
        entries = [
            "epoch 1",
            "step 1/4",
            "a_figure_of_a_long_name 0.125",
            "another 1.25",
            "accuracy 0.5",
            "8 examples/s",
        ]
        Live(out)("  ".join(entries))
        shown = screen.read(1000).decode().removeprefix("\r")
    assert shown.endswith(last) and len(shown) < columns


def test_a_line_that_stays_is_whole(tmp_path: Path) -> None:
    text = "net.shard, strategy dp, 2 ranks on the CPU: 4 parameters; logs in " + "long-name/" * 5
    theirs, mine = pty.openpty()
    fcntl.ioctl(mine, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with open(mine, "w") as out, open(theirs, "rb", buffering=0) as screen:
        Live(out).say(text)
        lines = screen.read(1000).decode().splitlines()
    assert [line.strip() for line in lines] == [text[:38], text[39:65], text[66:]]


def test_a_line_that_stays_is_broken_between_entries(tmp_path: Path) -> None:
    text = "epoch 1  step 10/66  loss 2.00402    lr 0.1        grad_norm 0.50687    1,631 examples/s"
    theirs, mine = pty.openpty()
    fcntl.ioctl(mine, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with open(mine, "w") as out, open(theirs, "rb", buffering=0) as screen:
        Live(out).say(text)
        lines = screen.read(1000).decode().splitlines()
    assert lines == ["epoch 1  step 10/66  loss 2.00402    lr 0.1", "  grad_norm 0.50687    1,631 examples/s"]


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


def test_a_run_goes_on_without_figures_that_cannot_be_written() -> None:
    out = io.StringIO()
    lines = follow(out, Path("/dev/full")).splitlines()
    assert lines[0] == "the run goes on, and `/dev/full` lacks its further figures: No space left on device"
    assert [line.split("  ")[1] for line in lines[1::2]] == ["step 2/4", "step 4/4"] and len(lines) == 5


def test_figures_that_are_there_stay_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "figures.jsonl"
    line = json.dumps({"step": 1, "epoch": 1, "loss": 1.0}) + "\n"
    path.write_text(line)
    real = io.open

    def full(file: object, mode: str = "r", *rest: Any, **named: Any) -> Any:
        found = real(file, mode, *rest, **named)  # type: ignore[call-overload]
        return found if mode == "r" else real("/dev/full", mode)

    monkeypatch.setattr(io, "open", full)
    log = Log(None, path)
    log.start(9, 9, Speed(1), 1)
    log.step(2, 1, {"loss": 1.0}, 0.1)
    log.end()
    assert path.read_text() == line
