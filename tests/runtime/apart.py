"""The ranks of an emitted file as processes of their own, with what torchrun gives them: its environment, and a store
that no rank holds. They are forked (tests/warm.py), where torchrun has each import torch; test_launch.py has torchrun.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.warm import ROOT, Warm


def apart(ranks: int, *words: str, folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Runs `python *words` in `folder` once a rank, all at once; how each ended."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    started = [
        Warm(
            [sys.executable, *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    return [subprocess.CompletedProcess(p.args, p.returncode, *texts) for p, texts in zip(started, said, strict=True)]
