"""The entry point of `shardc`: from its first moment on SIGUSR1 waits until a run heeds it.

The commands are imported then, which takes most of a short command's time."""

from __future__ import annotations

from shardlang.terminal import signals


def main() -> None:
    signals.hold_save()
    from shardlang.cli.main import main

    main()
