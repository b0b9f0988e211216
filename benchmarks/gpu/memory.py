"""Claim: the peak memory of a step of Llama and of GPT-2 is within 5 % of what the plan counts.

One GPU, bf16, the sizes of `llama_one` and `gpt2_dropout`, not compiled. The peak is that of torch's allocator once a
first turn is over.

    python -m benchmarks.gpu.memory [--device cpu]
"""

from __future__ import annotations

import sys

import torch
from memory import peak_bytes

from benchmarks.gpu.nets import Net, gpt2_124m, llama_8b
from benchmarks.gpu.place import place
from shardlang.folds.peak.step import step_peaks


def peak(net: Net) -> int:
    """The most bytes that tensors hold in a turn."""
    if not net.place.whole:
        return peak_bytes(lambda: net.ours(False)())
    turn = net.ours(False)
    turn()
    torch.accelerator.reset_peak_memory_stats()
    turn()
    return torch.accelerator.max_memory_allocated()


def main() -> int:
    here = place()
    held = []
    for net in (llama_8b(here), gpt2_124m(here, dropout=0.1)):
        (measured,) = here.forked(lambda net=net: peak(net))
        (planned,) = [found.bytes for found in step_peaks(net.plan)]
        print(f"{net.name}: {measured / 1e9:.4g} GB at the peak, {planned / 1e9:.4g} GB by the plan")
        label = f"{net.name}: distance of the peak from the plan's / that"
        held.append(here.judged(label, [abs(measured - planned) / planned], 0.05))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
