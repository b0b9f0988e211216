"""All tests begin with the signals of a terminal: whoever starts them in the background, or by `nohup`, has some
ignored for all that they start.
"""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Iterator

import pytest


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    # Python's own would take a sixth of the tests' time: it looks again and again at all that they have imported.
    gc.set_threshold(50_000, 20, 20)


def pytest_collection_finish() -> None:
    # Threads of OpenMP wait for each other in loops: with as many as there are processors in each of several workers,
    # a test takes up to four times the work.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _signals_stay() -> Iterator[None]:
    """What a test ignores, all later processes of its worker ignore too."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
