"""Claim: a save stalls training at most a fifth of what it takes, which is at most 1.1 times `async_save` by hand.

A state of 192 MB (16 parameters and Adam's two states of each), the same on 4 data-parallel ranks. By hand it is
`torch.distributed.checkpoint.async_save` of the same tensors, which has no checksums. Both sides take turns, wait
until all is on the disk, and write to a folder of their own. The script also compares the ranks' files, reads the
checkpoint under another layout (bytes by /proc/self/io), and reads an index of 2.3 million parts.

    python benchmarks/checkpoint.py [turns]
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranks import forked
from timing import verdict

from shardlang import runtime as rt
from shardlang.checkpoints.index import INDEX, Index, SavedLayout, text_of
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.state.checkpoints import Checkpoints, Piece, SavedRun
from shardlang.runtime.state.shares import StateLayouts

COUNT, SIZE = 16, 1024
WHOLE = (SIZE, SIZE)


def shares(ranks: int) -> dict[str, SavedLayout]:
    program = rt.Program(
        name="state", strategy="", ranks=ranks, mesh=rt.Mesh(dp=ranks),
        parameters=[rt.Parameter(f"layers[{n}].weight", WHOLE) for n in range(COUNT)],
        data=rt.Source("random", batch=ranks, fields=[]), optimizers=[rt.Optimizer("adamw", lr=0.1)],
    )  # fmt: skip
    return StateLayouts(program).tensors


def timed(save: Callable[[], Callable[[], object]]) -> tuple[float, float]:
    """Seconds until a save lets training go on, and until all ranks have written all of it."""
    dist.barrier()
    start = time.perf_counter()
    wait = save()
    stalled = time.perf_counter() - start
    wait()
    dist.barrier()
    return stalled, time.perf_counter() - start


def saves(folder: Path, turns: int) -> dict[str, list[tuple[float, float]]]:
    """On each rank, of each turn: the seconds of both sides."""
    from torch.distributed.checkpoint import async_save

    layouts = shares(world.size)
    state = {name: torch.rand(WHOLE, generator=torch.Generator().manual_seed(0)) for name in layouts}
    pieces = [Piece(name, WHOLE, (0, 0), tensor) for name, tensor in state.items()]
    kept = Checkpoints(folder / "ours", 1, 1)
    steps = iter(range(1, 1000))

    def ours() -> Callable[[], object]:
        kept.write(next(steps), pieces, layouts, {})
        return kept.wait

    def by_hand() -> Callable[[], object]:
        future: Any = async_save(state, checkpoint_id=str(folder / f"by-hand-{next(steps)}"))
        return future.result

    found: dict[str, list[tuple[float, float]]] = {"ours": [], "by hand": []}
    for turn in range(turns + 1):
        for name, side in (("ours", ours), ("by hand", by_hand)):
            taken = timed(side)
            if turn:  # the first makes the memory of the copies
                found[name].append(taken)
            if world.rank == 0:
                for old in folder.glob("by-hand-*"):
                    shutil.rmtree(old)
            dist.barrier()
    return found


def read_under_another(folder: Path) -> float:
    """On each rank: the bytes read for its columns of the newest checkpoint, by the bytes needed."""
    saved = SavedRun(Checkpoints(folder / "ours", 1, 1).latest() or folder)
    wide = SIZE // world.size
    pieces = [Piece(name, WHOLE, (0, world.rank * wide), torch.empty(SIZE, wide)) for name in saved.tensors]

    def count() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["rchar"])

    before = count()
    saved.read(pieces)
    return (count() - before) / sum(piece.local.nbytes for piece in pieces)


def write_large_index(folder: Path) -> None:
    """An index of 2.3 million parts on 16,384 ranks."""
    rows = [24] * 669 + [SIZE * 16 - 24 * 669]
    layouts = [
        SavedLayout("F32", (SIZE * 16, SIZE + kind), [rows, [SIZE + kind]],
                    [stage * 1024 + kind + at for at in range(670)])
        for stage in range(16) for kind in range(9)
    ]  # fmt: skip
    (folder / INDEX).write_text(text_of({
        "format": 2, "step": 1, "files": [[10**9, 20_000, 1]] * 16_384, "layouts": [each.written() for each in layouts],
        "tensors": {f"blocks[{n}].weight": n % len(layouts) for n in range(3456)},
    }))  # fmt: skip


def read_large_index(folder: Path) -> None:
    index = Index(folder)
    for layout in index.tensors.values():
        assert len([*layout.overlapping((100, 0), (24, SIZE))]) == 2


def index_costs(folder: Path) -> tuple[list[float], float]:
    """Processor seconds to read it, of three times, and the most bytes that this has at once."""
    write_large_index(folder)
    seconds = []
    for _ in range(3):
        start = time.process_time()
        read_large_index(folder)
        seconds.append(time.process_time() - start)
    tracemalloc.start()
    read_large_index(folder)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, most


def main(turns: int) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        of_ranks = forked(4, lambda: saves(folder, turns))
        # A rank is stalled as long as the slowest.
        stalls = [max(each["ours"][turn][0] for each in of_ranks) for turn in range(turns)]
        ours, by_hand = ([each[1] for each in of_ranks[0][side]] for side in ("ours", "by hand"))
        theirs = [max(each["by hand"][turn][0] for each in of_ranks) for turn in range(turns)]
        for side, stalled, taken in (("ours", stalls, ours), ("by hand", theirs, by_hand)):
            print(f"4 ranks, {side:8} stalls {min(stalled):.3f} to {max(stalled):.3f} s, takes {min(taken):.3f} to "
                  f"{max(taken):.3f} s")  # fmt: skip
        latest = Checkpoints(folder / "ours", 1, 1).latest()
        assert latest is not None
        sizes = [file[0] for file in json.loads((latest / INDEX).read_text())["files"]]
        read = forked(8, lambda: read_under_another(folder))
        seconds, most = index_costs(folder)
        held = [
            verdict("stall of a save / synchronous save", [a / b for a, b in zip(stalls, ours, strict=True)], 0.2),
            verdict("a save / async_save by hand", [a / b for a, b in zip(ours, by_hand, strict=True)], 1.1),
            verdict("largest file / mean", [max(sizes) * len(sizes) / sum(sizes)], 1.2),
            verdict("bytes read under another layout / needed", read, 1.05),
            verdict("seconds for an index of 2.3 million parts", seconds, 1.0),
            verdict("memory for it / 100 MB", [most / 100e6], 1.0),
        ]
    return all(held)


if __name__ == "__main__":
    sys.exit(0 if main(int(sys.argv[1]) if sys.argv[1:] else 7) else 1)
