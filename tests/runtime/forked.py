"""Runs a function of a test module on several ranks: in a process of its own that forks them, connected by gloo.

As a script: `forked.py MODULE_FILE FUNCTION RANKS [IMPORT...]`. A rank that raises prints its traceback, and the whole
fails.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

from shardlang.runtime.comm import mesh
from tests import warm


def on_ranks(module: str, function: str, ranks: int, imports: Sequence[str] = ()) -> None:
    """Runs `function()` of the module's file on `ranks` ranks; AssertionError with their output if one fails.

    imports: what takes long to import, for once and all before the fork.
    """
    command = [sys.executable, __file__, module, function, str(ranks), *imports]
    done = warm.run(command)
    assert done.returncode == 0, done.stdout + done.stderr


def _read(module: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("on_ranks", module)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def _rank(function: Callable[[], None], rank: int, ranks: int, store: str) -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no rank outlives a test that is given up
    torch.set_num_threads(1)
    mesh.connect(rank, ranks, torch.device("cpu"), dist.FileStore(store, ranks))
    function()
    dist.barrier()
    mesh.disconnect()


def main() -> int:
    module, function, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    sys.path.insert(0, str(Path(module).parent))
    for name in sys.argv[4:]:
        importlib.import_module(name)
    called = getattr(_read(module), function)
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder  # what ranks leave there goes with it
        return _wait(_forked(called, ranks, folder))


def _forked(called: Callable[[], None], ranks: int, folder: str) -> list[int]:
    pids = []
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _rank(called, rank, ranks, f"{folder}/store")
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
        pids.append(pid)
    return pids


def _wait(pids: list[int]) -> int:
    """0 if all end well; the others are killed as soon as one does not."""
    left = set(pids)
    while left:
        pid, status = os.wait()
        left.discard(pid)
        if status != 0:
            time.sleep(0.5)
            for other in left:
                os.kill(other, signal.SIGKILL)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
