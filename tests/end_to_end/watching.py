"""How scripts that look into ranks are started: `python -m tests.end_to_end.NAME MAIN_FILE RANKS`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def started(watch: Callable[[Path], None], **given: Any) -> int:
    """Calls `watch` with the folder of the emitted program, before its ranks are forked, and runs it; its exit code."""
    from shardlang.runtime.launch.launcher import launch

    main_file, ranks = Path(sys.argv[1]), int(sys.argv[2])
    watch(main_file.parent)
    return launch(main_file, ranks, device="cpu", base=main_file.parent, **given)
