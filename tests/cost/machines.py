"""Hardware of round numbers, so that seconds can be worked out by hand."""

from __future__ import annotations

from shardlang.cost.hardware import Hardware, Level

# 1 PFLOP/s, 3 TB/s, 450 GB/s a direction in a node of 8, 50 GB/s a device between nodes.
POD = Hardware(
    "round", "pod", memory=80e9, compute=1e15, compute_f32=62.5e12, compute_f8=2e15, bandwidth=3e12, link=450e9,
    devices=8, network=50e9,
)  # fmt: skip
HALLS = (Level("pod", 64), Level("hall", 512, 7.0))
