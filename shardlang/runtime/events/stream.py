"""The events of a run -> its consumers, each in a thread of its own behind a bounded queue.

A step never waits: where a queue is full, lines of steps are left out. A consumer that raises is
dropped, and the run is told so once, by `news`."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

Event = Mapping[str, Any]
Take = Callable[[Event], None]
# So many events wait for a consumer.
BOUND = 1024


class Asking:
    """Handed to a callback of the user's: it may ask for these three things and for no others. They
    are done after one of the next steps, the same on all ranks."""

    def __init__(self) -> None:
        self._asked: deque[str] = deque()

    def stop(self) -> None:
        """The run ends after the step, with a checkpoint if the program sets any."""
        self._asked.append("stop")

    def checkpoint(self) -> None:
        """A checkpoint is written after the step."""
        self._asked.append("checkpoint")

    def evaluate(self) -> None:
        """The set of `eval` is evaluated after the step."""
        self._asked.append("evaluate")

    def taken(self) -> set[str]:
        """The names of all that has been asked for since this was last called."""
        found = set()
        while self._asked:
            found.add(self._asked.popleft())
        return found


class Consumer:
    """One consumer and its thread. open: gives, within the thread, the function that takes
    events."""

    def __init__(self, name: str, open: Callable[[], Take], bound: int = BOUND) -> None:
        self.name, self.bound = name, bound
        self.left_out, self.failure, self.closed = 0, "", False
        # The last of what waits is None.
        self._open, self._waiting = open, SimpleQueue[Event | None]()
        self._thread = threading.Thread(target=self._run, name=f"log {name}", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Hands on an event; one of a step may be left out."""
        if self.failure or self.closed:
            return
        if self._waiting.qsize() >= self.bound and event["event"] == "step":
            self.left_out += 1
        else:
            self._waiting.put(event)

    def close(self) -> None:
        """No more will come."""
        self.closed = True
        self._waiting.put(None)

    def ended(self, deadline: float) -> str:
        """Waits until all is taken, or the deadline; what is left."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        left = self._waiting.qsize() - 1
        late = f"{left} events wait" if left > 0 else "it is still busy"
        return late if self._thread.is_alive() else ""

    def _run(self) -> None:
        try:
            take = self._open()
            while (event := self._waiting.get()) is not None:
                take(event)
        except BaseException as error:
            self.failure = f"{type(error).__name__}: {error}"


class EventStream:
    """All consumers of a run. asking: what its callbacks have asked for."""

    def __init__(self, consumers: Sequence[tuple[str, Callable[[], Take]]], asking: Asking | None = None) -> None:
        self.asking = asking or Asking()
        self.consumers = [Consumer(name, open) for name, open in consumers]
        self._told: set[str] = set()

    def put(self, event: Event) -> None:
        """Hands an event to all, each of which has it for itself."""
        for consumer in self.consumers:
            consumer.put(dict(event))

    def news(self) -> list[str]:
        """A line for each consumer that has been dropped since this was last called."""
        dropped = [c for c in self.consumers if c.failure and c.name not in self._told]
        self._told.update(c.name for c in dropped)
        return [f"--log {c.name} is dropped, and the run goes on: {c.failure}" for c in dropped]

    def close(self, patience: float) -> list[str]:
        """Waits for consumers, all together no longer than `patience` seconds; what they missed."""
        for consumer in self.consumers:
            consumer.close()
        deadline, found = time.monotonic() + patience, []
        for consumer in self.consumers:
            if late := consumer.ended(deadline):
                found.append(f"--log {consumer.name} lacks the end of the run: {late} after {patience:g} s")
            if consumer.left_out and not consumer.failure:
                found.append(f"--log {consumer.name} lacks {consumer.left_out} steps, for which it was too slow")
        return [*self.news(), *found]
