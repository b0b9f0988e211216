"""The output of a run: a live line on a terminal, plain lines elsewhere, JSON lines of figures for
`--metrics`.

Only rank 0 shows anything; each rank's own output goes to its log file, which launcher.py sets up.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from shardlang.display import one_line
from shardlang.runtime.errors import RunError

_LIVE_EVERY = 0.1
_PLAIN_EVERY = 5.0


class Log:
    """Reports steps and evaluations to `out` (None: nowhere) and the metrics file (None: none)."""

    def __init__(self, out: TextIO | None, metrics: Path | None) -> None:
        self.out = out
        self.live = out is not None and out.isatty()
        self.metrics = metrics
        self.file: TextIO | None = None
        self.total = self.per_epoch = self.batch = self.done = 0
        self._begun = self._shown = time.monotonic()
        self._epoch_begun = self._begun
        self._line = ""

    def start(self, total: int, per_epoch: int, batch: int, done: int = 0) -> None:
        """Steps of the run and of an epoch, examples of a batch, and steps before this start."""
        if self.metrics is not None:
            kept = _until(self.metrics, done) if done else ""
            self.file = self.metrics.open("w", buffering=1)
            self.file.write(kept)
        self.done = done
        self.total, self.per_epoch, self.batch = total, per_epoch, batch
        self._begun = self._shown = self._epoch_begun = time.monotonic()

    def note(self, text: str) -> None:
        """A line for the user that is no figure."""
        if self.out is not None:
            self._clear()
            print(one_line(text), file=self.out, flush=True)

    def step(
        self, step: int, epoch: int, figures: Mapping[str, float], seconds: float,
        hosted: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """Figures of one step that took `seconds`. hosted: where this rank's own log is to have a
        line, milliseconds of what ran on the host."""
        taken = round(seconds * 1000, 3)
        if hosted is not None:
            print(_logged(step, figures, taken, hosted), flush=True)
        if self.file is not None:
            more = {"host_ms": dict(hosted)} if hosted else {}
            self._write({"step": step, "epoch": epoch, **figures, "step_ms": taken, **more})
        if self.out is None:
            return
        last = step == self.total or step % self.per_epoch == 0
        now = time.monotonic()
        if not last and now - self._shown < (_LIVE_EVERY if self.live else _PLAIN_EVERY):
            return
        self._shown = now
        self._show(self._text(step, epoch, figures, now), last)

    def _text(self, step: int, epoch: int, figures: Mapping[str, float], now: float) -> str:
        each = (now - self._begun) / (step - self.done)
        left = "" if step == self.total else f"  {_duration(each * (self.total - step))} left"
        shown = "  ".join(f"{name} {value:.6g}" for name, value in figures.items())
        rate = self.batch / each if each > 0 else 0.0
        return f"epoch {epoch}  step {step}/{self.total}  {shown}  {rate:,.0f} examples/s{left}"

    def _show(self, text: str, last: bool) -> None:
        assert self.out is not None
        if not self.live:
            print(text, file=self.out, flush=True)
            return
        width = shutil.get_terminal_size().columns - 1
        text = text[:width]
        self.out.write("\r" + text.ljust(len(self._line)) + ("\n" if last else ""))
        self.out.flush()
        self._line = "" if last else text

    def evaluation(self, epoch: int, step: int, figures: Mapping[str, float]) -> None:
        """Figures of one evaluation."""
        if self.file is not None:
            self._write({"epoch": epoch, **{f"eval.{name}": value for name, value in figures.items()}})
        if self.out is not None:
            self._clear()
            print(
                f"epoch {epoch}  " + "  ".join(f"eval.{n} {v:.6g}" for n, v in figures.items()),
                file=self.out,
                flush=True,
            )

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self.file is not None
        self.file.write(json.dumps(record) + "\n")

    def _clear(self) -> None:
        if self._line and self.out is not None:
            self.out.write("\r" + " " * len(self._line) + "\r")
            self._line = ""

    def end(self) -> None:
        """After the last step, or when the run is given up."""
        self._clear()
        if self.file is not None:
            self.file.close()
            self.file = None


def _logged(step: int, figures: Mapping[str, float], taken: float, hosted: Mapping[str, float]) -> str:
    shown = "  ".join(f"{name} {value:.6g}" for name, value in figures.items())
    times = ", ".join(f"{name} {value:.3f} ms" for name, value in hosted.items())
    return f"step {step}  {shown}  {taken:.3f} ms" + (f"; a step on the host: {times}" if times else "")


def _until(metrics: Path, step: int) -> str:
    """The lines of a file of figures up to `step`; a resumed run writes later ones again."""
    kept: list[str] = []
    if not metrics.is_file():
        return ""
    for line in metrics.read_text().splitlines(keepends=True):
        kept.append(line)
        try:
            found = json.loads(line).get("step")
        except (ValueError, AttributeError):
            raise RunError(
                "SH508", "the line is no figures, and a run that goes on keeps what is there", file=metrics,
                line=len(kept), help="another file for --metrics",
            ) from None  # fmt: skip
        if found == step:
            return "".join(kept)
    return "".join(kept)


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
