"""Claim: with `compile = blocks`, GPT-2 and Llama on one rank take at most 1.02 times blocks compiled by hand.

Training loops on data on hand, inductor on the CPU; by hand each block is compiled by torch.compile(fullgraph=True).
Both sides begin with the same weights and must come to the same losses. Second claim: to compile a GPT-2 of 24 layers
takes at most 1.3 times one of 2 layers. Needs a C++ compiler.

    python benchmarks/compiled.py [turns]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from by_hand import gpt2, llama
from by_hand.training import parts
from emitted import beginning, emitted, on_hand, training
from ranks import Turns, compared
from timing import interleave, process, ratios, verdict
from torch import nn

PROGRAMS = Path(__file__).parent / "programs"
HEADS = 5
SMALL = {"model.d": "64", "model.heads": "2", "batch": "2", "seq": "16"}


def sides(name: str, dropout: str = "") -> Callable[[], Turns]:
    """An epoch of the emitted program, and of the net by hand, both compiled."""
    file = PROGRAMS / f"{name}.shard"
    program, weights = emitted(file, None, 1), beginning(file)
    program.compile = "blocks"
    data, whole = on_hand(program)

    def connected() -> Turns:
        seq = whole["tokens"].shape[1]
        net: nn.Module = gpt2.begun(weights, HEADS) if name == "gpt2" else llama.begun(weights, HEADS, seq)
        for block in net.blocks:  # type: ignore[union-attr]
            block.compile(fullgraph=True, dynamic=False)
        by_hand = gpt2.training(net)
        mine = parts(whole["tokens"], whole["label"], program.data.batch, 0, 1)
        return {"ours": training(program, data, 1), "by hand": lambda: by_hand.steps(mine).tolist()}

    return connected


def first_epoch(layers: int) -> float:
    """Seconds of an epoch in which blocks are compiled, above those of the next."""
    program = emitted(PROGRAMS / "gpt2.shard", None, 1, {**SMALL, "model.layers": str(layers)})
    program.compile = "blocks"
    further, taken = training(program, on_hand(program)[0], 1), []
    for _ in range(2):
        begun = time.perf_counter()
        further()
        taken.append(time.perf_counter() - begun)
    return taken[0] - taken[1]


def compiling(layers: int) -> Callable[[], float]:
    """The same in a process of its own, with nothing compiled before."""

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
            said = Path(folder) / "seconds"
            process([sys.executable, __file__, "--layers", str(layers), str(said)])()
            return float(said.read_text())

    return run


def main() -> int:
    if "--layers" in sys.argv:
        Path(sys.argv[3]).write_text(str(first_epoch(int(sys.argv[2]))))
        return 0
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    held = [
        compared(1, sides(name), turns, f"{label} on one rank, compiled / blocks compiled by hand", 1.02)
        for name, label in {"gpt2": "GPT-2", "llama": "Llama"}.items()
    ]
    taken = interleave({"ours": compiling(24), "of 2 layers": compiling(2)}, 3, warmup=0)
    for name, timing in taken.items():
        print(f"compiling, {name}: {timing}")
    held.append(verdict("compiling 24 layers / 2 layers", ratios(taken, "ours", "of 2 layers"), 1.3))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
