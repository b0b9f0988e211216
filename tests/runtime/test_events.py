"""The stream of a run's events: no step waits for a consumer, and one that raises is dropped."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from shardlang.errors import RunError
from shardlang.launch.log_targets import Target, require, target_of
from shardlang.runtime.events.consumers import figures, open_function
from shardlang.runtime.events.stream import Asking, Consumer, Event, Stream


def step(number: int) -> dict[str, Any]:
    return {"event": "step", "step": number, "loss": 1.0}


def test_a_slow_consumer_holds_up_nobody_and_says_what_it_lacks() -> None:
    """`put` returns at once; the other has all, this one the last event though not all steps."""
    release, slow, quick = threading.Event(), list[Event](), list[Event]()

    def wait(event: Event) -> None:
        release.wait(20)
        slow.append(event)

    found = Stream([("slow", lambda: wait), ("quick", lambda: quick.append)])
    for consumer in found.consumers:
        consumer.bound = 50
    begun = time.monotonic()
    for number in range(30):
        found.put(step(number))
    time.sleep(0.05)
    for number in range(30, 300):
        found.put(step(number))
        time.sleep(0.0001)
    found.put({"event": "end", "step": 300, "why": "finished"})
    assert time.monotonic() - begun < 5
    release.set()
    (told,) = found.close(20)
    assert len(quick) == 301 and slow[-1]["event"] == "end" and len(slow) in (51, 52)
    assert told == f"--log slow lacks {301 - len(slow)} steps, for which it was too slow"


def test_one_that_hangs_is_given_up_at_the_end() -> None:
    hangs = threading.Event()
    found = Stream([("hung", lambda: lambda event: hangs.wait(60) and None)])
    found.put(step(1))
    found.put(step(2))
    time.sleep(0.05)
    begun = time.monotonic()
    assert found.close(0.2) == ["--log hung lacks the end of the run: 1 events wait after 0.2 s"]
    assert time.monotonic() - begun < 5
    hangs.set()


def test_one_that_raises_is_told_once_and_dropped() -> None:
    seen: list[Event] = []

    def raises(event: Event) -> None:
        seen.append(event)
        raise ValueError("no")

    found = Stream([("bad", lambda: raises)])
    for number in range(5):
        found.put(step(number))
    assert until(lambda: found.consumers[0].failure)
    assert found.news() == ["--log bad is dropped, and the run goes on: ValueError: no"]
    found.put(step(6))
    assert found.news() == [] == found.close(5)
    assert len(seen) == 1


def until(true: Any, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(true())


def test_each_consumer_has_an_event_for_itself() -> None:
    seen: list[Event] = []

    def changes(event: Any) -> None:
        event["loss"] = 0.0
        seen.append(event)

    found, mine = Stream([("one", lambda: changes), ("two", lambda: changes)]), step(1)
    found.put(mine)
    found.close(5)
    assert mine["loss"] == 1.0 and len(seen) == 2 and seen[0] is not seen[1]


def test_a_queue_gives_its_memory_back() -> None:
    taken: list[Event] = []
    one = Consumer("one", lambda: taken.append)
    for number in range(100):
        one.put(step(number))
    one.close()
    assert one.ended(time.monotonic() + 5) == "" and len(taken) == 100


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
        take = open_function(Target("jsonl", str(file)), Asking())()
        for event in ({"event": "start", "step": first, "settings": {}}, step(first + 1), step(first + 2)):
            take(event)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [0, 1, 2, 2, 3, 4]
    take = open_function(Target("jsonl", str(file)), Asking())()
    take({"event": "start", "step": 0, "settings": {}})
    assert len(file.read_text().splitlines()) == 1


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
    assert target_of("mlflow:http://host:5000") == Target("mlflow", "http://host:5000")
    assert target_of("python:/a:b/watch.py:On") == Target("python", "/a:b/watch.py", "On")
    assert str(target_of("python:/a:b/watch.py:On")) == "python:/a:b/watch.py:On"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RunError, match="needs wandb, which is not installed") as error:
        require([target_of("wandb:p")])
    assert error.value.code == "SH517" and error.value.help == '`pip install "shardlang[wandb]"` installs it'
    with pytest.raises(RunError, match="names a file that is not there"):
        require([target_of(f"python:{tmp_path}/none.py:f")])
    with pytest.raises(RunError, match="there is no folder"):
        require([target_of(f"jsonl:{tmp_path}/none/e.jsonl")])
