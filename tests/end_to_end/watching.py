"""How scripts that look into ranks are started, `python -m tests.end_to_end.NAME MAIN_FILE RANKS`, and what they find
is read: a file of JSON for each rank.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import warm

ROOT = Path(__file__).resolve().parents[2]


def watched(script: str, main_file: Path, ranks: int, what: str) -> list[Any]:
    """What a script has written of each rank, in files of this name. Weights may be compared bit by bit, and the number
    of threads decides the order of sums within a rank: it is one.
    """
    command = [sys.executable, "-m", f"tests.{script}", str(main_file), str(ranks)]
    done = warm.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return found(main_file.parent, ranks, what)


def found(folder: Path, ranks: int, what: str) -> list[Any]:
    """What is there of each rank."""
    return [json.loads((folder / f"{what}-{rank}.json").read_text()) for rank in range(ranks)]


def started(watch: Callable[[Path], None], **given: Any) -> int:
    """Calls `watch` with the folder of the emitted program, before its ranks are forked, and runs it; its exit code."""
    from shardlang.runtime.launch.launcher import launch

    main_file, ranks = Path(sys.argv[1]), int(sys.argv[2])
    watch(main_file.parent)
    return launch(main_file, ranks, device="cpu", base=main_file.parent, **given)
