"""The ranks of an emitted file as processes of their own, with what torchrun gives them: its environment, and a store
that no rank holds. They are forked (tests/warm.py), where torchrun has each import torch; test_launch.py has torchrun.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.warm import ROOT, Warm


class Begun(list[Warm]):
    """Ranks that have been started, with the store that they have."""

    store: object = None


def begun(ranks: int, *words: str, folder: Path, port: int = 0, again: int = 0) -> Begun:
    """Starts `python *words` in `folder` once a rank. port: of a store that is there; 0: one of this process.
    again: starts before this one."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", port, is_master=not port, wait_for_workers=False)
    common = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": str(again),
    }  # fmt: skip
    found = Begun(
        Warm(
            [sys.executable, *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    )  # fmt: skip
    found.store = store
    return found


def apart(
    ranks: int, *words: str, folder: Path, port: int = 0, again: int = 0
) -> list[subprocess.CompletedProcess[str]]:
    """Runs `python *words` in `folder` once a rank, all at once; how each ended."""
    started = begun(ranks, *words, folder=folder, port=port, again=again)
    try:
        said = [process.communicate() for process in started]
    finally:
        for process in started:
            process.kill()
    return [subprocess.CompletedProcess(p.args, p.returncode, *texts) for p, texts in zip(started, said, strict=True)]
