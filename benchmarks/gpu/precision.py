"""Claim: losses of GPT-2 in f32, bf16 and with a stream in bf16 are as near to float64's on the CPU as the CPU's own.

A million parameters with dropout, 40 steps. The limits are about twice the distances that were measured on the CPU.

    python -m benchmarks.gpu.precision [--device cpu]
"""

from __future__ import annotations

import sys

import torch
from ranks import forked
from timing import verdict

from benchmarks.gpu.nets import TINY, Net
from benchmarks.gpu.place import place

SIZES = {
    "batch": "4", "seq": "64", "vocab": "1000", "model.d": "128", "model.heads": "4", "model.layers": "4",
    "model.max_len": "64", "model.dropout": "0.1",
}  # fmt: skip
# The farthest losses on the CPU were at 4.4e-7, 1.6e-4 and 8.8e-4 of float64's, relative.
LIMITS = {"f32": 1e-6, "bf16": 4e-4, "bf16(stream = bf16)": 2e-3}


def main() -> int:
    here = place()
    epochs, tiny = (20 if here.whole else 1), {**TINY, "model.max_len": "16"}
    nets = {
        precision: Net("gpt2", SIZES if here.whole else tiny, here, precision, epochs=epochs)
        for precision in ("f64", *LIMITS)
    }
    (exact,) = forked(1, lambda: nets["f64"].ours(False)())
    held = []
    for precision, limit in LIMITS.items():
        (losses,) = here.forked(lambda net=nets[precision]: net.ours(False)())
        apart = (torch.tensor(losses) / torch.tensor(exact) - 1).abs().max().item()
        label = f"{precision}: farthest loss from float64's, {apart:.1e} relative / {limit:.0e}"
        held.append(verdict(label, [apart / limit], 1.0))
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
