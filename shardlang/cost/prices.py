"""Items on a hardware -> seconds. Each is worked out once."""

from __future__ import annotations

from dataclasses import field

from shardlang.cost import collectives, operators
from shardlang.cost.collectives import Placing, placed
from shardlang.cost.hardware import Hardware
from shardlang.cost.work import (
    AGAIN,
    FORWARD,
    Attention,
    Collective,
    Copy,
    Gather,
    Item,
    MemoryBound,
    Product,
    Update,
    Workload,
)
from shardlang.frozen.records import dataclass


@dataclass
class Prices:
    """The seconds of a work's items."""

    work: Workload
    hardware: Hardware
    _known: dict[Item, float] = field(default_factory=dict)
    _placings: dict[tuple[int, tuple[str, ...]], Placing] = field(default_factory=dict)

    def placing(self, mesh: int, axes: tuple[str, ...]) -> Placing:
        """How the groups over axes of a mesh lie on the cluster."""
        key = mesh, axes
        if key not in self._placings:
            named = {axis.name: at for at, axis in enumerate(self.work.meshes[mesh].axes)}
            sizes = tuple([axis.size for axis in self.work.meshes[mesh].axes])
            self._placings[key] = placed(self.hardware, sizes, tuple(sorted(named[axis] for axis in axes)))
        return self._placings[key]

    def item(self, item: Item) -> float:
        """Seconds of one."""
        if item not in self._known:
            self._known[item] = self._item(item)
        return self._known[item]

    def _item(self, item: Item) -> float:
        hardware = self.hardware
        match item:
            case Product():
                return operators.product(hardware, item.batch, item.m, item.n, item.k, item.dtype)
            case Attention():
                return self._attention(item)
            case MemoryBound():
                more = (item.kernels - 1) * hardware.launch
                operator = item.place.operator
                back = item.phase not in (FORWARD, AGAIN)
                return operators.stream(hardware, operator, item.read, item.written, back) + more
            case Copy():
                return operators.copy(hardware, item.bytes)
            case Collective():
                return self.collective(item.kind, item.mesh, item.axes, item.bytes)

    def _attention(self, item: Attention) -> float:
        """Where queries are a part of the sequence only the pairs that they see are computed."""
        apart = item.cut or (item.causal and item.queries != item.keys)
        keys = round(item.pairs / max(1, item.queries)) if apart else item.keys
        return operators.attention(
            self.hardware, item.heads, item.queries, keys=keys, width=item.width, causal=item.causal and not apart,
            cut=apart, fused=item.fused,
            dtype=item.dtype, backward=item.phase not in (FORWARD, AGAIN),
        )  # fmt: skip

    def collective(self, kind: str, mesh: int, axes: tuple[str, ...], size: float) -> float:
        """Seconds of a collective in which each rank sends so many bytes, in an emitted program."""
        placing = self.placing(mesh, axes)
        meeting = self.hardware.meeting if placing.members > 1 else 0.0
        return collectives.seconds(self.hardware, kind, placing, size) + meeting

    def gather(self, gather: Gather) -> float:
        return self.collective("all_gather", gather.mesh, gather.axes, gather.bytes)

    def unpacked(self, gather: Gather) -> float:
        """Seconds of the copies that put in what is given, and take out what has come."""
        part = gather.whole - gather.bytes
        return operators.stream(self.hardware, "copy", 2 * part + gather.whole, part + gather.whole)

    def update(self, update: Update) -> float:
        return operators.update(self.hardware, update.kind, update.elements)

    def transfer(self, size: float) -> float:
        """Seconds of a value from stage to stage."""
        return self.collective("send", 0, (self.work.axis,), size) if size else 0.0
