"""The stream of a run's events: no step waits for a consumer, and one that raises is dropped."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from shardlang.errors import RunError
from shardlang.launch.log_targets import LogTarget, require, target_of
from shardlang.runtime.events.consumers import figures, open_function
from shardlang.runtime.events.stream import Asking, Event, EventStream
from tests.waits import LIMIT, until


def step(number: int) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": 1.0}


def test_a_slow_consumer_holds_up_nobody_and_says_what_it_lacks() -> None:
    """`put` returns at once; the other has all, this one the last event though not all steps."""
    release, slow, quick = threading.Event(), list[Event](), list[Event]()

    def wait(event: Event) -> None:
        release.wait()
        slow.append(event)

    found = EventStream([("slow", lambda: wait), ("quick", lambda: quick.append)])
    found.consumers[0].bound = 50
    for number in range(300):
        found.put(step(number))
    found.put({"event": "end", "step": 300, "why": "finished"})
    until(lambda: len(quick) == 301)
    assert slow == []
    release.set()
    (told,) = found.close(LIMIT)
    assert slow[-1]["event"] == "end" and len(slow) in (51, 52)
    assert told == f"--log slow lacks {301 - len(slow)} steps, for which it was too slow"


def test_one_that_hangs_is_given_up_at_the_end() -> None:
    taken, hangs, seen = threading.Event(), threading.Event(), list[Event]()

    def hang(event: Event) -> None:
        taken.set()
        hangs.wait()
        seen.append(event)

    found = EventStream([("hung", lambda: hang)])
    found.put(step(1))
    found.put(step(2))
    taken.wait()
    assert found.close(0.2) == ["--log hung lacks the end of the run: 1 events wait after 0.2 s"]
    assert seen == []
    hangs.set()


def test_one_that_raises_is_told_once_and_dropped() -> None:
    seen: list[Event] = []

    def raises(event: Event) -> None:
        seen.append(event)
        raise ValueError("no")

    found = EventStream([("bad", lambda: raises)])
    for number in range(5):
        found.put(step(number))
    until(lambda: found.consumers[0].failure)
    assert found.news() == ["--log bad is dropped, and the run goes on: ValueError: no"]
    found.put(step(6))
    assert found.news() == [] == found.close(LIMIT)
    assert len(seen) == 1


def test_each_consumer_has_an_event_for_itself() -> None:
    seen: list[Event] = []

    def changes(event: Any) -> None:
        event["loss"] = 0.0
        seen.append(event)

    found, mine = EventStream([("one", lambda: changes), ("two", lambda: changes)]), step(1)
    found.put(mine)
    found.close(LIMIT)
    assert mine["loss"] == 1.0 and len(seen) == 2 and seen[0] is not seen[1]


def test_a_queue_gives_its_memory_back() -> None:
    taken: list[Event] = []
    found = EventStream([("one", lambda: taken.append)])
    for number in range(100):
        found.put(step(number))
    assert found.close(LIMIT) == [] and len(taken) == 100


def test_asking_is_taken_once() -> None:
    asking = Asking()
    asking.stop()
    asking.evaluate()
    assert asking.taken() == {"stop", "evaluate"} and asking.taken() == set()


def test_numbers_of_an_event_by_name() -> None:
    event = {"event": "step", "step": 3, "epoch": 1, "loss": 2.0, "host_ms": {"ftrl": 1.5}}
    assert figures(event) == {"epoch": 1, "loss": 2.0, "host_ms.ftrl": 1.5}


def test_lines_go_on_behind_those_of_the_run_before(tmp_path: Path) -> None:
    file = tmp_path / "e.jsonl"
    for first in (0, 2):
        take = open_function(LogTarget("jsonl", str(file)), Asking())()
        for event in ({"event": "start", "step": first, "settings": {}}, step(first + 1), step(first + 2)):
            take(event)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [0, 1, 2, 2, 3, 4]
    take = open_function(LogTarget("jsonl", str(file)), Asking())()
    take({"event": "start", "step": 0, "settings": {}})
    assert len(file.read_text().splitlines()) == 1


def test_tensorboard_never_goes_back_in_time_and_has_each_figure_once(tmp_path: Path) -> None:
    """A run is killed before its first checkpoint and started again, goes on after step 2, then begins anew."""
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="no tensorboard")

    def start(after: int, told: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
        take = open_function(LogTarget("tensorboard", str(tmp_path)), Asking())()
        for event in (
            {"event": "start", "step": after, "settings": {}},
            *told,
            {**step(9), "event": "end", "why": "x"},
        ):
            take(event)
        found = events.EventAccumulator(str(tmp_path)).Reload()
        shown = {name: [(e.step, e.value) for e in found.Scalars(name)] for name in found.Tags()["scalars"]}
        return {name: values for name, values in shown.items() if values}

    def evaluation(number: int, loss: float) -> dict[str, Any]:
        return {"event": "evaluation", "step": number, "eval.loss": loss}

    steps = [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert start(0, [step(1), step(2), step(3)]) == {"loss": steps}
    assert start(0, [step(1), step(2), evaluation(2, 0.5), step(3)]) == {"loss": steps, "eval.loss": [(2, 0.5)]}
    assert start(2, [evaluation(2, 0.5), step(3)]) == {"loss": steps, "eval.loss": [(2, 0.5)]}
    assert start(0, [step(1), step(2)]) == {"loss": steps[:2]}
    # It was killed between the checkpoint and its evaluation; one of the run that was overwritten is not in the way.
    assert start(2, [evaluation(2, 0.25), step(3)]) == {"loss": steps, "eval.loss": [(2, 0.25)]}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("csv:x", "is none of tensorboard:DIR, wandb:PROJECT, mlflow:URI, jsonl:FILE, python:FILE:NAME"),
        ("tensorboard", "is not tensorboard:DIR, as in tensorboard:runs"), ("jsonl:", "as in jsonl:events.jsonl"),
        ("python:watch.py", "is not python:FILE:NAME, as in python:watch.py:on_event"), ("python:a.py:b c", "is not"),
    ],
)  # fmt: skip
def test_what_is_no_target(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=r"^`") as error:
        target_of(text)
    assert told in str(error.value)


def test_targets_and_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert target_of("mlflow:http://host:5000") == LogTarget("mlflow", "http://host:5000")
    assert target_of("python:/a:b/watch.py:On") == LogTarget("python", "/a:b/watch.py", "On")
    assert str(target_of("python:/a:b/watch.py:On")) == "python:/a:b/watch.py:On"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match="needs wandb, which is not installed") as error:
        require([target_of("wandb:p")])
    assert error.value.code == "SH517" and error.value.help == '`pip install "shardlang[wandb]"` installs it'
    with pytest.raises(RunError, match="names a file that is not there"):
        require([target_of(f"python:{tmp_path}/none.py:f")])
    with pytest.raises(RunError, match="there is no folder"):
        require([target_of(f"jsonl:{tmp_path}/none/e.jsonl")])
