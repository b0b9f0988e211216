"""Claim: ranks that share one GPU by NCCL have the losses of ranks on the CPU, in float64 within 1e-9.

Data, tensor, sequence and context parallelism, ZeRO and stages, on 2 and 4 ranks. NCCL lets ranks share a GPU from
2.31 on, if NCCL_MULTI_RANK_GPU_ENABLE=1 is set; with an older one the script is skipped. It says nothing of speed.

    python -m benchmarks.gpu.shared [--device cpu]
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.alike import EXAMPLES, GPT2, RUN, Case, judged
from benchmarks.gpu.nets import PROGRAMS
from benchmarks.gpu.place import Place, place

# `shardc` in a Python that takes its one GPU for the device of each rank.
SHARED = f"""
import torch
from shardlang.runtime.device import KINDS
KINDS["cuda"].count = lambda: 64
KINDS["cuda"].device = lambda number: torch.device("cuda", 0)
{RUN}
"""
LEAST = 23100  # as NCCL counts: 2.31.0
RULES = {
    "zero 1": "mesh dp = auto\n  split batch over dp\n  zero 1 over dp",
    "zero 2 with microbatches": "mesh dp = auto\n  split batch over dp\n  zero 2 over dp\n  microbatches 2",
    "a ring": "mesh cp = auto\n  split seq over cp",
    "sequence parallel": "mesh dp = 2, tp = auto\n  split batch over dp\n  split ffn, vocab over tp\n"
    "  split seq over tp?",
    "1f1b": "mesh pp = 2, dp = auto\n  split batch over dp\n  stages over pp balanced\n  microbatches 4\n"
    '  schedule "1f1b"',
    "zero bubble": 'mesh pp = auto\n  stages over pp balanced\n  microbatches 4\n  schedule "zero_bubble"',
    "recomputed zero 3": "mesh dp = auto\n  split batch over dp\n  zero 3 over dp\n  at blocks[*]: recompute",
}


def cases(here: Place, folder: Path) -> list[Case]:
    """All of them, or on the CPU one."""
    digits, gpt2 = EXAMPLES / "digits.shard", PROGRAMS / "gpt2.shard"
    found = [Case(f"digits, {each}", digits, {"train.epochs": "1"}, strategy=each, ranks=4)
             for each in ("data_parallel", "tensor_parallel", "both", "sharded")]  # fmt: skip
    few = {**GPT2, "batch": "8", "train.epochs": "3"}
    found += [Case(f"gpt2, {each}", gpt2, few, strategy=each, ranks=2)
              for each in ("data_parallel", "tensor_parallel", "zero_3")]  # fmt: skip
    for name, rules in RULES.items():
        (file := folder / f"{name}.shard").write_text(f"{gpt2.read_text()}\nstrategy own {{\n  {rules}\n}}\n")
        ranks = 4 if name in ("sequence parallel", "1f1b") else 2
        found.append(Case(f"gpt2, {name}", file, few, strategy="own", ranks=ranks))
    found.append(
        Case("rows exchanged", PROGRAMS / "exchange.shard", {"train.epochs": "1"}, strategy="exchanged", ranks=2)
    )
    return [Case(**{**vars(case), "run": SHARED}) for case in found] if here.whole else found[:1]


def loaded() -> int:
    """The version of NCCL that is loaded; torch itself tells the one that it was built with."""
    found = ctypes.c_int()
    ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(found))
    return found.value


def main() -> int:
    here = place()
    if here.whole and loaded() < LEAST:
        print(f"skipped: NCCL {loaded()} lets no ranks share a GPU; {LEAST} does")
        return 0
    os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        return 0 if all(judged(here, cases(here, Path(folder)), 3)) else 1


if __name__ == "__main__":
    sys.exit(main())
