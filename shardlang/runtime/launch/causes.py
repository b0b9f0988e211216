"""Why a run failed, told from rank to rank where each is a process of its own (under torchrun):
through their store.

The first rank that fails says what happened, and speaks for all. Those that only see that it is
gone say nothing."""

from __future__ import annotations

import time

from shardlang.runtime.comm.mesh import world

# Seconds within which the rank that failed first has said why.
_PATIENCE = 5.0


def first(text: str) -> bool:
    """Leaves the reason for the others; whether no other rank has been before this one."""
    assert world.store is not None
    earlier = int(world.store.add("shardlang/failures", 1)) - 1
    if not earlier:
        world.store.set("shardlang/cause", text)
    return not earlier


def told() -> bool:
    """Whether another rank has said why the run failed."""
    if world.store is None:
        return False
    until = time.monotonic() + _PATIENCE
    while not world.store.check(["shardlang/cause"]):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
