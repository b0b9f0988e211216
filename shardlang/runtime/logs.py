"""The output of a run: a live line on a terminal, plain lines elsewhere, JSON lines of figures for
`--metrics`.

Only rank 0 shows anything; each rank's own output goes to its log file, which launcher.py sets up.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from shardlang.errors import RunError
from shardlang.runtime.speed import Speed
from shardlang.terminal.display import Aligned, Live, duration, one_line

# Of a run of fewer epochs so many lines stay besides, at most.
_FEW, _LINES = 5, 10
# Columns of most figures.
_WIDE = 9
# Seconds that the end of a run waits for those who have not yet taken all of it.
PATIENCE, _SHORT = 60.0, 2.0


class Events(Protocol):
    """Takes what happens in a run: runtime/events/stream.py."""

    def put(self, event: Mapping[str, Any]) -> None: ...

    def news(self) -> list[str]: ...

    def close(self, patience: float) -> list[str]: ...


class Lasting:
    """A stream that a run goes on without once it cannot be written, as on a full disk, or where
    its reader is gone. lacks: why that is, else ""."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.lacks = stream, ""
        self.isatty, self.fileno = stream.isatty, stream.fileno

    def write(self, text: str) -> None:
        if not self.lacks:
            try:
                self.stream.write(text)
                self.stream.flush()
            except OSError as error:
                self.lacks = error.strerror or str(error)

    def flush(self) -> None:
        """Each text is written out at once."""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it has been told
            self.stream.close()


class Log:
    """Reports steps and evaluations to `out` (None: nowhere) and the metrics file (None: none)."""

    def __init__(self, out: TextIO | None, metrics: Path | None) -> None:
        self.out = Lasting(out) if out is not None else None
        self.live = Live(self.out, pace=0.1) if self.out is not None else None
        self.metrics = metrics
        self.file: Lasting | None = None
        self.total = self.per_epoch = self.done = 0
        self.speed = Speed(0)
        self._begun = time.monotonic()
        self._spent, self._steps = 0.0, 0  # seconds and steps since a line stayed, whose speed is told
        self.stream: Events | None = None
        self._last, self._over = 0, False
        self._aligned, self._least = Aligned(), dict[str, tuple[float, int]]()
        self.every = 0

    def start(self, total: int, per_epoch: int, speed: Speed, done: int = 0, every: int = 0) -> None:
        """Steps of the run and of an epoch, what a step works on, and steps before this start.
        every: after so many steps a line stays; 0: at most ten times, in a run of few epochs."""
        if self.metrics is not None:
            kept = _until(self.metrics, done) if done else ""
            if kept:
                os.truncate(self.metrics, len(kept.encode()))
            self.file = Lasting(self.metrics.open("a" if kept else "w"))
        self.total, self.per_epoch, self.speed, self.done = total, per_epoch, speed, done
        self.every = every or (_tenth(total) if total < _FEW * per_epoch else 0)
        self._begun = time.monotonic()
        if self.live is not None:
            self.live.rest()

    def stays(self, step: int) -> bool:
        """Whether the line of a step stays on the screen; the same on all ranks."""
        return step == self.total or step % self.per_epoch == 0 or (self.every > 0 and step % self.every == 0)

    @property
    def asks(self) -> bool:
        """Whether someone reads all that can be told of each step."""
        return self.metrics is not None or self.stream is not None

    def note(self, text: str) -> None:
        """A line for the user that is no figure."""
        if self.live is not None:
            self.live.say(one_line(text))

    def begin(self, stream: Events | None, settings: Mapping[str, Any]) -> None:
        """Those who want to know of what happens, who are told first what the run is."""
        self.stream = stream
        self.event("start", self.done, {"settings": settings})

    def event(self, kind: str, step: int, more: Mapping[str, Any]) -> None:
        """Tells those who want to know of what happens."""
        self._last = max(self._last, step)
        if self.stream is not None:
            self.stream.put({"event": kind, "step": step, **more})

    def step(
        self, step: int, epoch: int, figures: Mapping[str, float], seconds: float,
        hosted: Mapping[str, float] | None = None, whole: bool = True,
    ) -> None:  # fmt: skip
        """Figures of one step that took `seconds`. hosted: where this rank's own log is to have a
        line, milliseconds of what ran on the host. whole: they are all that is told of a step, else
        those without a price, which no live line shows."""
        taken = round(seconds * 1000, 3)
        if hosted is not None:
            times = ", ".join(f"{name} {value:.3f} ms" for name, value in hosted.items())
            more = f"; a step on the host: {times}" if times else ""
            with contextlib.suppress(OSError):  # what a full disk leaves out is told at the end
                print(f"step {step}  {_shown(figures)}  {taken:.3f} ms{more}", flush=True)
        if self.file is not None or self.stream is not None:
            own = {**self.speed.figures(seconds), **({"host_ms": dict(hosted)} if hosted else {})}
            record = {"epoch": epoch, **figures, "step_ms": taken, **own}
            self._write({"step": step, **record})
            self.event("step", step, record)
        for line in self.stream.news() if self.stream is not None else ():
            self.note(line)
        self._lowest("loss", figures, step)
        stays = self.stays(step)
        self._spent, self._steps = self._spent + seconds, self._steps + 1
        if self.live is None or not (stays or (whole and self.live.due)):
            return
        each = (time.monotonic() - self._begun) / (step - self.done)
        # What stays on a terminal is not about what is to come.
        left = f"{_duration(each * (self.total - step))} left"
        shown = {} if stays and self.live.terminal else {"left": left}
        entries = {**self._entries(epoch, step, figures, shown), "speed": self.speed.shown(self._spent / self._steps)}
        text = self._aligned(entries)
        if stays:
            self._spent, self._steps = 0.0, 0
        self.live.say(text) if stays else self.live(text, always=True)

    def _entries(
        self, epoch: int, step: int, figures: Mapping[str, float], left: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """The entries of a line, by the names of its columns. step: 0 where it is not told. left:
        the time that is left, which a narrow terminal is to show too."""
        epochs = -(-self.total // max(1, self.per_epoch))
        found = {"epoch": f"epoch {epoch:>{len(str(epochs))}}"}
        if step:
            found["step"] = f"step {step:>{len(str(self.total))}}/{self.total}"
        return {**found, **(left or {}), **{name: f"{name} {value:<{_WIDE}.6g}" for name, value in figures.items()}}

    def _lowest(self, name: str, figures: Mapping[str, float], step: int) -> None:
        value = figures.get(name, math.nan)
        if math.isfinite(value) and value < self._least.get(name, (math.inf, 0))[0]:
            self._least[name] = value, step

    @property
    def lowest(self) -> str:
        """`lowest eval.loss 0.25 after step 40`, or of the loss of a step; "": there is none."""
        name = "eval.loss" if "eval.loss" in self._least else "loss"
        value, step = self._least.get(name, (0.0, 0))
        return f"lowest {name} {value:.6g} after step {step}" if step else ""

    @property
    def taken(self) -> str:
        """The time since the start."""
        seconds = time.monotonic() - self._begun
        return duration(seconds) if seconds < 60 else _duration(seconds)

    def evaluation(self, epoch: int, step: int, figures: Mapping[str, float], by_step: bool = False) -> None:
        """Figures of one evaluation. by_step: epochs have several."""
        named = {f"eval.{name}": value for name, value in figures.items()}
        self._write({"epoch": epoch, **({"step": step} if by_step else {}), **named})
        self.event("evaluation", step, {"epoch": epoch, **named})
        self._lowest("eval.loss", named, step)
        if self.live is not None:
            self.live.say(self._aligned(self._entries(epoch, step * by_step, named)))

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.file is None or self.file.lacks:
            return
        self.file.write(json_line(record))
        if self.file.lacks:
            self.note(f"the run goes on, and `{self.metrics}` lacks its further figures: {self.file.lacks}")

    def ended(self, why: str) -> None:
        """The run ends: "finished", "stopped", "no better", "saved" or "failed"."""
        self.event("end", self._last, {"why": why})
        self._over = True

    def close(self) -> None:
        """When nothing more comes; those who want to know have taken all then, or are given up. A
        run that has failed waits for them for two seconds."""
        self.end()
        stream, self.stream = self.stream, None
        if stream is not None:
            if not self._over:
                stream.put({"event": "end", "step": self._last, "why": "failed"})
            for line in stream.close(PATIENCE if self._over else _SHORT):
                self.note(line)
        if self.out is not None and self.out.lacks:
            with contextlib.suppress(OSError):
                print(f"not all that the run tells could be written: {self.out.lacks}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """After the last step, or when the run is given up."""
        if self.live is not None:
            self.live.clear()
        if self.file is not None:
            self.file.close()
            self.file = None


def json_line(record: Mapping[str, Any]) -> str:
    """A line of a file. A figure that is NaN or infinite is null, as JSON has no word for it."""
    none = {name: None for name, value in record.items() if isinstance(value, float) and not math.isfinite(value)}
    return json.dumps({**record, **none}) + "\n"


def _shown(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.6g}" for name, value in figures.items())


def _tenth(total: int) -> int:
    """A round number of steps, a tenth of all of them or a little more."""
    power: int = 10 ** max(0, len(str(-(-total // _LINES))) - 1)
    return next(power * first for first in (1, 2, 5, 10) if power * first * _LINES >= total)


def _until(metrics: Path, step: int) -> str:
    """The lines of a file of figures up to `step`; a resumed run writes later ones again. The end
    of the run before may have cut the last line short."""
    kept: list[str] = []
    if not metrics.is_file():
        return ""
    for line in metrics.read_text().splitlines(keepends=True):
        kept.append(line)
        try:
            found = json.loads(line).get("step")
        except (ValueError, AttributeError):
            if not line.endswith("\n"):
                return "".join(kept[:-1])
            fact = "the line is no figures, and a run that goes on keeps what is there"
            raise RunError("SH508", fact, file=metrics, line=len(kept), help="another file for --metrics") from None
        if found is not None and found > step:
            return "".join(kept[:-1])
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


# Of a run with `log`, by name: what runs on the host, in this rank, by the wall clock. In a lookup
# that exchanges rows the wait for the others is included.
_seconds: dict[str, float] = {}


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """Adds what the block takes to the time of `name`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        _seconds[name] = _seconds.get(name, 0.0) + time.perf_counter() - start


def taken(steps: int) -> dict[str, float]:
    """Milliseconds of a step, the mean of the last `steps`, by name; begins anew."""
    found = {name: round(seconds * 1000 / steps, 3) for name, seconds in _seconds.items()}
    _seconds.clear()
    return found
