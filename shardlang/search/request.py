"""The request of a search, as plain values: the ranks, the hardware, how much and how long."""

from __future__ import annotations

from collections.abc import Callable

from shardlang.cost.hardware import Hardware
from shardlang.frozen.records import dataclass
from shardlang.plan.plan import Plan
from shardlang.search.space import Seconds

EXACT, PROPAGATION = "exact", "sharding_propagation"
DYNAMIC, RECURSIVE = "dynamic_programming", "recursive_programming"
MODES = (EXACT, PROPAGATION, DYNAMIC, RECURSIVE)

# The segments of torch's allocator over the tensors in them, in estimates: they were 1.01 to 1.03
# in plans of deep programs.
SEGMENTS = 1.025


@dataclass(frozen=True)
class SearchRequest:
    """A request. seconds: of a step of a plan. limit: the bytes of a device's memory, if they are
    known; reserved: those of them that contexts and libraries take. count: how many of the best.
    budget: seconds of a processor for the search; sound: whether a plan can be emitted. tell: is
    called with what goes on."""

    ranks: int
    seconds: Seconds
    limit: int | None
    hardware: Hardware
    reserved: int = 0
    count: int = 5
    budget: float = 10.0
    sound: Callable[[Plan], bool] = lambda plan: True
    tell: Callable[[str], None] = lambda text: None
    mode: str = EXACT

    @property
    def room(self) -> int | None:
        """The bytes that are there for tensors and NCCL, by which points are estimated."""
        if self.limit is None or not self.reserved:
            return self.limit
        return int((self.limit - self.reserved) / SEGMENTS)
