"""When a rank collects Python's garbage."""

from __future__ import annotations

import gc

from shardlang.runtime.garbage import collected


def _steps(every: int, count: int) -> list[tuple[int, int]]:
    """Steps in which something was collected, and of which generation, while each makes much garbage."""
    found: list[tuple[int, int]] = []

    def told(phase: str, about: dict[str, int]) -> None:
        if phase == "start" and step:  # before the first, Python collects as it likes
            found.append((step, about["generation"]))

    step, before = 0, gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # as Python begins; the tests have others
    gc.callbacks.append(told)
    try:
        with collected(every) as tidy:
            for step in range(1, count + 1):
                kept = [[] for _ in range(5000)]  # so many new objects have Python collect by itself
                del kept
                tidy(step)
        assert gc.isenabled()
    finally:
        gc.callbacks.remove(told)
        gc.set_threshold(*before)
    return found


def test_in_the_same_steps_on_all_ranks() -> None:
    assert _steps(3, 10) == [(3, 1), (6, 1), (9, 1)]


def test_old_objects_are_looked_at_seldom() -> None:
    assert [step for step, generation in _steps(1, 45) if generation == 2] == [20, 40]


def test_on_the_cpu_python_does_it() -> None:
    assert _steps(0, 10) and {step for step, _ in _steps(0, 10)} != {3, 6, 9}
