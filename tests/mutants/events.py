"""Faults of the stream of events, and of what callbacks ask for."""

from __future__ import annotations

from tests.mutants.fault import Fault

STREAM = ("runtime/test_events.py",)
TARGETS = ("end_to_end/test_log_targets.py",)

FAULTS = (
    Fault("speed is that of all steps so far", "a slow first step", "runtime/logs.py",
          "            self._spent, self._steps = 0.0, 0\n", "            pass\n", ("runtime/test_logs.py",)),
    Fault("a file of figures has words of Python", "a NaN that other readers of JSON end at", "runtime/logs.py",
          "json.dumps({**record, **none})", "json.dumps(record)", ("runtime/test_logs.py",)),
    Fault("queues have no bound", "memory of a run with a slow logger", "runtime/events/stream.py",
          'if self._waiting.qsize() >= self.bound and event["event"] == "step":', "if False:", STREAM),
    Fault("the end is left out too", "a logger that is slow", "runtime/events/stream.py",
          'if self._waiting.qsize() >= self.bound and event["event"] == "step":',
          "if self._waiting.qsize() >= self.bound:", STREAM),
    Fault("consumers share an event", "a callback that changes what it gets", "runtime/events/stream.py",
          "consumer.put(dict(event))", "consumer.put(event)", STREAM),
    Fault("a callback is asked again after it has raised", "a callback that fails", "runtime/events/stream.py",
          "self._told.update(c.name for c in dropped)", "pass", STREAM),
    Fault("a stop leaves no checkpoint", "a run that a callback has stopped", "runtime/step/train.py",
          'if not asked - {"evaluate"} and not to.due(self.step, self.total):',
          "if not last and not to.due(self.step, self.total):", TARGETS),
    Fault("an evaluation that is asked for counts", "patience", "runtime/step/train.py",
          "        if not asked:\n            self._judge(figures)", "        self._judge(figures)", TARGETS),
    Fault("what is asked is done where it is asked", "callbacks on several ranks", "runtime/step/asked.py",
          "if world.size == 1:\n            return self._taken()", "if here:\n            return self._taken()",
          TARGETS),
    Fault("TensorBoard shows what was overwritten", "curves that go back in time", "runtime/events/consumers.py",
          "purge_step=step + 1 if step else 0", "purge_step=step + 1 if step else None", STREAM),
    Fault("TensorBoard has an evaluation twice", "curves of a run that goes on", "runtime/events/consumers.py",
          "known = _written(target.place, step) if step == begun[0] else set()", "known = set()", STREAM),
)  # fmt: skip
