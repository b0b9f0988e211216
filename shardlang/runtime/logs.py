"""The output of a run: a live line on a terminal, plain lines elsewhere, JSON lines of figures for
`--metrics`.

Only rank 0 shows anything; each rank's own output goes to its log file, which launcher.py sets up.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

from shardlang.display import Live, one_line
from shardlang.errors import RunError
from shardlang.runtime.speed import Speed

# Seconds that the end of a run waits for those who have not yet taken all of it.
PATIENCE, _SHORT = 60.0, 2.0


class Events(Protocol):
    """Takes what happens in a run: runtime/events/stream.py."""

    def put(self, event: Mapping[str, Any]) -> None: ...

    def news(self) -> list[str]: ...

    def close(self, patience: float) -> list[str]: ...


class Log:
    """Reports steps and evaluations to `out` (None: nowhere) and the metrics file (None: none)."""

    def __init__(self, out: TextIO | None, metrics: Path | None) -> None:
        self.live = Live(out, pace=0.1) if out is not None else None
        self.metrics = metrics
        self.file: TextIO | None = None
        self.total = self.per_epoch = self.done = 0
        self.speed = Speed(0)
        self._begun = time.monotonic()
        self.stream: Events | None = None
        self._last, self._over = 0, False

    def start(self, total: int, per_epoch: int, speed: Speed, done: int = 0) -> None:
        """Steps of the run and of an epoch, what a step works on, and steps before this start."""
        if self.metrics is not None:
            kept = _until(self.metrics, done) if done else ""
            self.file = self.metrics.open("w", buffering=1)
            self.file.write(kept)
        self.total, self.per_epoch, self.speed, self.done = total, per_epoch, speed, done
        self._begun = time.monotonic()
        if self.live is not None:
            self.live.rest()

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
        hosted: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        """Figures of one step that took `seconds`. hosted: where this rank's own log is to have a
        line, milliseconds of what ran on the host."""
        taken = round(seconds * 1000, 3)
        if hosted is not None:
            times = ", ".join(f"{name} {value:.3f} ms" for name, value in hosted.items())
            more = f"; a step on the host: {times}" if times else ""
            print(f"step {step}  {_shown(figures)}  {taken:.3f} ms{more}", flush=True)
        if self.file is not None or self.stream is not None:
            own = {**self.speed.figures(seconds), **({"host_ms": dict(hosted)} if hosted else {})}
            record = {"epoch": epoch, **figures, "step_ms": taken, **own}
            self._write({"step": step, **record})
            self.event("step", step, record)
        self._tell_news()
        last = step == self.total or step % self.per_epoch == 0
        if self.live is None or not (last or self.live.due):
            return
        each = (time.monotonic() - self._begun) / (step - self.done)
        left = "" if step == self.total else f"  {_duration(each * (self.total - step))} left"
        text = f"epoch {epoch}  step {step}/{self.total}  {_shown(figures)}  {self.speed.shown(each)}{left}"
        self.live(text, always=True)
        if last:
            self.live.keep()

    def evaluation(self, epoch: int, step: int, figures: Mapping[str, float], by_step: bool = False) -> None:
        """Figures of one evaluation. by_step: epochs have several."""
        named = {f"eval.{name}": value for name, value in figures.items()}
        self._write({"epoch": epoch, **({"step": step} if by_step else {}), **named})
        self.event("evaluation", step, {"epoch": epoch, **named})
        if self.live is not None:
            self.live.say(f"epoch {epoch}  {f'step {step}  ' if by_step else ''}{_shown(named)}")

    def _write(self, record: Mapping[str, Any]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(record) + "\n")

    def _tell_news(self) -> None:
        for line in self.stream.news() if self.stream is not None else ():
            self.note(line)

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
            lacking = stream.close(PATIENCE if self._over else _SHORT)
            with contextlib.suppress(OSError):  # nobody reads any more, and the run is over
                for line in lacking:
                    self.note(line)

    def end(self) -> None:
        """After the last step, or when the run is given up."""
        if self.live is not None:
            self.live.clear()
        if self.file is not None:
            self.file.close()
            self.file = None


def _shown(figures: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.6g}" for name, value in figures.items())


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
