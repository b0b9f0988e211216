"""Sides of a claim, each measured in processes of its own, as two such nets do not fit into a GPU's memory at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from timing import Timing

from benchmarks.gpu.nets import Net, Turn


def measured(net: Net, sides: Mapping[str, Callable[[], Turn]]) -> dict[str, Timing]:
    """Seconds of each side's turns, which are printed with tokens/s and MFU. Sides are measured one after another."""
    found: dict[str, Timing] = {}
    for name, side in sides.items():
        found |= net.place.on_ranks(lambda name=name, side=side: {name: side()}, net.ranks)
        print(f"{net.name}, {name}: {found[name]} for {net.steps} steps, {net.speed(found[name].median)}", flush=True)
    return found
