"""A group of ranks on the cluster -> how it lies there, and the seconds of a collective of it.

    placed(hardware, sizes, axes) -> Placing        of the axes (numbers) of a mesh of those sizes
    seconds(hardware, kind, placing, bytes)

Ranks lie on the cluster row-major, as on the mesh: the innermost axis is in a node. Nothing is done
for each rank but where sizes and nodes do not divide."""

from __future__ import annotations

import math
from functools import lru_cache

from shardlang.cost.curves import Curve
from shardlang.cost.hardware import Hardware
from shardlang.diagnostics.diagnostic import InternalError
from shardlang.frozen.records import dataclass

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_gather_rows", "all_to_all", "permute", "send")


@dataclass(frozen=True, slots=True)
class Placing:
    """How the groups of some axes lie on the cluster, of the group for which that is worst.

    members: ranks of a group; a_node: the least that a node has of them; nodes: that have any.
    level: 0 within a node; else 1 for the innermost level of the network, and so on outward.
    oversubscription: of the outermost level that is crossed."""

    members: int
    a_node: int
    nodes: int
    level: int = 0
    oversubscription: float = 1.0


def placed(hardware: Hardware, sizes: tuple[int, ...], axes: tuple[int, ...]) -> Placing:
    """How the groups of the axes with these numbers lie, of a mesh with axes of `sizes`, outermost
    first. A hardware without nodes (`devices` 0) has all ranks in one."""
    members = math.prod(sizes[a] for a in axes)
    if not hardware.devices:
        return Placing(members, members, 1)
    nodes, a_node = _spread(sizes, frozenset(axes), hardware.devices)
    if nodes == 1:
        return Placing(members, members, 1)
    if not hardware.levels:
        return Placing(members, a_node, nodes, 1)
    within = (n for n, level in enumerate(hardware.levels) if _spread(sizes, frozenset(axes), level.ranks)[0] == 1)
    level = next(within, len(hardware.levels) - 1)
    return Placing(members, a_node, nodes, level + 1, hardware.levels[level].oversubscription)


@lru_cache(maxsize=4096)
def _spread(sizes: tuple[int, ...], axes: frozenset[int], block: int) -> tuple[int, int]:
    """Over how many blocks of `block` consecutive ranks a group lies, and how many of its members
    the block with fewest has, in the group where the first is largest (then the second least).

    An axis whose stride the block divides multiplies blocks. Members along the others are counted
    one by one, from each place in a block where a group can begin."""
    outside, inside, starts, stride = 1, [0], {0}, 1
    for axis in reversed(range(len(sizes))):
        size = sizes[axis]
        if axis not in axes:
            times = min(size, block // math.gcd(block, stride))
            starts = {(s + i * stride) % block for s in starts for i in range(times)}
        elif stride % block == 0:
            outside *= size
        elif block % stride == 0 and size % (block // stride) == 0:
            inside = [o + i * stride for o in inside for i in range(block // stride)]
            outside *= size * stride // block
        else:
            inside = [o + i * stride for o in inside for i in range(size)]
        stride *= size
    found = [_counts([(start + offset) // block for offset in inside]) for start in starts]
    blocks, fewest = max(found, key=lambda each: (each[0], -each[1]))
    return blocks * outside, fewest


def _counts(blocks: list[int]) -> tuple[int, int]:
    """How many different numbers there are, and how often the rarest is there."""
    counts: dict[int, int] = {}
    for block in blocks:
        counts[block] = counts.get(block, 0) + 1
    return len(counts), min(counts.values())


def seconds(hardware: Hardware, kind: str, placing: Placing, bytes: float) -> float:
    """Seconds of a collective in which each rank sends `bytes`, as a plan counts them: all-reduce
    2 (n - 1)/n of the buffer, all-gather and reduce-scatter (n - 1)/n of the whole, all-to-all
    (n - 1)/n of the local buffer, permute and send the block.

    time = base + hops + bytes / rate; for an all-reduce the faster of ring and tree. The model and
    its latencies are NCCL's (src/graph/tuning.cc)."""
    if kind not in KINDS:
        raise InternalError(f"no collective is called {kind}")
    if placing.members == 1:
        return 0.0
    measured = _measured(hardware, kind, placing)
    if measured is not None:
        return measured.at(bytes)
    network = hardware.network * hardware.shares.network / placing.oversubscription
    link = hardware.link * hardware.shares.link
    if kind in ("permute", "send"):
        return hardware.base + _one_hop(hardware, placing) + bytes / (network if placing.level else link)
    if kind == "all_to_all":
        return hardware.base + _one_hop(hardware, placing) + _exchanged(placing, bytes, link, network)
    rate = _rate(placing, link, network)
    if kind != "all_reduce":
        return hardware.base + _ring_hops(hardware, placing) + bytes / rate
    ring = 2 * _ring_hops(hardware, placing) + bytes / rate
    return hardware.base + min(ring, _tree(hardware, placing, bytes, rate))


def _measured(hardware: Hardware, kind: str, placing: Placing) -> Curve | None:
    """The curve that a profile has of such a group. A permutation is a send of each member."""
    if hardware.profile is None or placing.oversubscription > 1:
        return None
    kind = {"permute": "send", "all_gather_rows": "all_gather"}.get(kind, kind)
    members, a_node = (2, 1 if placing.level else 2) if kind == "send" else (placing.members, placing.a_node)
    return hardware.profile.collectives.get((kind, members, a_node))


def _rate(placing: Placing, link: float, network: float) -> float:
    """Bytes/s of a ring: the members of a node send to others each by its own port, and what they
    send comes to them by the links, of which one alone has no need."""
    if not placing.level:
        return link
    return min(link, placing.a_node * network) if placing.a_node > 1 else network


def _one_hop(hardware: Hardware, placing: Placing) -> float:
    return hardware.network_latency if placing.level else hardware.link_latency


def _ring_hops(hardware: Hardware, placing: Placing) -> float:
    """Latency of once around the ring: (n - nodes) hops in nodes, nodes - 1 between."""
    inside, between = placing.members - placing.nodes, placing.nodes - 1
    if not placing.level:
        return (placing.members - 1) * hardware.link_latency
    return inside * hardware.link_latency + between * hardware.network_latency


def _tree(hardware: Hardware, placing: Placing, bytes: float, rate: float) -> float:
    """Seconds of an all-reduce by a tree of nodes, in which the members of a node are a chain: the
    whole buffer goes up and down (Sanders, Speck, Traeff, 2009)."""
    chain = 2 * (math.ceil(placing.members / placing.nodes) - 1) * hardware.link_latency
    hops = chain + 2 * math.log2(placing.nodes) * hardware.network_latency
    return hops + bytes * placing.members / (placing.members - 1) / rate


def _exchanged(placing: Placing, bytes: float, link: float, network: float) -> float:
    """Seconds of an all-to-all's bytes: (n - p) of n - 1 parts leave the node, by the rank's own
    port, while the others go by the links."""
    if not placing.level:
        return bytes / link
    leaving = bytes * (placing.members - placing.a_node) / (placing.members - 1)
    staying = bytes - leaving
    return max(leaving / network, staying / link if staying else 0.0)
