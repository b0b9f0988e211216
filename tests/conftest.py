"""All tests begin with the signals of a terminal: whoever starts them in the background, or by `nohup`, has some
ignored for all that they start.
"""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
