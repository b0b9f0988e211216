"""A stall on devices -> files with the last collectives of each rank, as torch's flight recorder
for NCCL has them, with stacks.

torch records them where its variables ask for it. It writes a rank's file when NCCL's own limit is
over, or when somebody writes to the rank's pipe: a thread of NCCL's reads that, also where the rank
waits for its device. A stall is seen long before NCCL's limit. So `begin` asks for records, and
`lines` has them written before the ranks are ended. Some variables have an older name too."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from shardlang.runtime.device import KINDS
from shardlang.runtime.launch.reports import named

# Collectives that a rank keeps.
_KEPT = 2000
_SIZE = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_ON_TIMEOUT = ("TORCH_NCCL_DUMP_ON_TIMEOUT",)
_FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIPES = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE",)
# Seconds within which a rank has written its file: torch looks at the pipe once a second.
_PATIENCE = 5.0
# A file that has not grown for so long is whole.
_STILL = 0.3


def begin(folder: Path, pipes: Path, kind: str) -> None:
    """Before the groups of a rank on a kind of device are made: has them recorded, where the
    user's variables do not say how. folder: of the files. pipes: of the pipes."""
    if KINDS[kind].recorded:
        for names, value in _wanted(folder, pipes).items():
            if not any(name in os.environ for name in names):
                os.environ[names[0]] = value


def lines(folder: Path, pipes: Path, ranks: Collection[int]) -> Iterator[str]:
    """Has ranks of this host write their files; a line that says where they are, if there are any.
    The folders are those that `begin` was given."""
    wanted = _wanted(folder, pipes)
    files, pipe = (next((os.environ[n] for n in names if n in os.environ), wanted[names]) for names in (_FILES, _PIPES))
    asked = {rank: Path(f"{files}{rank}") for rank in sorted(ranks) if _ask(f"{pipe}{rank}.pipe")}
    since, sizes, still = time.monotonic(), dict[int, int](), 0.0
    while asked and time.monotonic() - since < _PATIENCE and not (len(sizes) == len(asked) and still > _STILL):
        now = {rank: file.stat().st_size for rank, file in asked.items() if file.exists()}
        still, sizes = still + 0.05 if now == sizes else 0.0, {rank: size for rank, size in now.items() if size}
        time.sleep(0.05)
    if sizes:
        there = f"{asked[min(sizes)]}{' and on' if len(sizes) > 1 else ''}"
        yield f"  the flight recorder of {named(sizes)}: {there}; torchfrtrace reads it"


def _wanted(folder: Path, pipes: Path) -> Mapping[tuple[str, ...], str]:
    """The variables by their names, and what they are to say. torch adds the rank's number to both
    paths."""
    files, pipe = (str(path.absolute()) for path in (folder / "nccl-rank-", pipes / "flight-"))
    return {_SIZE: str(_KEPT), _ON_TIMEOUT: "1", _FILES: files, _PIPES: pipe}


def _ask(pipe: str) -> bool:
    """Whether there is a pipe that a rank reads, which is written to."""
    with suppress(OSError):
        descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            return os.write(descriptor, b"1") == 1
        finally:
            os.close(descriptor)
    return False
