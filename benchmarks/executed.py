"""The work of a published row, as our plan has it -> as the measured system did it.

    executed(row, system) -> Workload   of all stages, for `shardlang.cost.timeline`

A system (`executors.System`) has kernels of its own, computes again what the row says, and adds up,
sums and updates in its own way. All that becomes items; when they run is said by its overlap table."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

from executors import System
from published_rows import Row
from published_work import Part, profile

from shardlang.cost.work import (
    AGAIN,
    FORWARD,
    INPUTS,
    Attention,
    Collective,
    Coordinate,
    Gather,
    Item,
    MemoryBound,
    Place,
    Product,
    Reduction,
    Segment,
    StageWork,
    Workload,
)  # fmt: skip
from shardlang.facts.actions import Action
from shardlang.plan.pipeline.schedules import SCHEDULES
from shardlang.types.dim import BYTES
from shardlang.types.mesh import Axis, Mesh

STEP = Place("step", "", "step")  # what waits for all ranks, as the norm of gradients does


def executed(row: Row, system: System) -> Workload:
    """The work of a step of a row."""
    return _Executed(row, system).work()


class _Executed:
    def __init__(self, row: Row, system: System) -> None:
        self.row, self.system, self.profile = row, system, profile(row)
        self.first, self.layer, self.last = (
            self._segments(name, part) for name, part in
            (("first", self.profile.first), ("layers", self.profile.layer), ("last", self.profile.last))
        )  # fmt: skip

    def work(self) -> Workload:
        row = self.row
        chunks = self._chunks()
        stages = tuple([self._stage(at, layers, len(chunks)) for at, layers in enumerate(chunks)])
        if row.pp == 1:
            actions = (tuple([Action(0, kind, n) for n in range(row.microbatches) for kind in "FB"]),)
            schedule = ""
        else:
            schedule = "1f1b" if len(chunks) == row.pp else "interleaved_1f1b"
            actions = SCHEDULES[schedule].make(len(chunks), row.pp, row.microbatches)
        coordinates = tuple([self._coordinate(tuple(range(at, len(chunks), row.pp)), chunks) for at in range(row.pp)])
        axes, sizes = row.mesh
        mesh = Mesh(tuple([Axis(axis, size) for axis, size in zip(axes, sizes, strict=True)]))
        return Workload(
            row.ranks, (mesh,), row.microbatches, stages, coordinates, actions, "pp" if row.pp > 1 else "", schedule,
            bucket_bytes=self._bucket(), flops=self.profile.flops, tokens=row.tokens,
        )  # fmt: skip

    def _bucket(self) -> int:
        """FSDP and L3 sum a layer at a time, Megatron all at once."""
        return sum(r.size * n for r, n in self.profile.layer.reductions.items()) if self.system.by_layer else 1 << 60

    # --- stages

    def _chunks(self) -> list[int]:
        """The layers of each stage; coordinates take stages in turn."""
        row = self.row
        if self.system.one_layer_chunks and row.pp > 1:
            count = -(-(row.layers + 2) // row.pp) * row.pp
            return [0, *itertools.repeat(1, row.layers), *itertools.repeat(0, count - row.layers - 1)]
        count = row.pp * row.virtual if row.pp > 1 else 1
        return [row.layers // count + (at < row.layers % count) for at in range(count)]

    def _stage(self, at: int, layers: int, count: int) -> StageWork:
        ends = ([self.first] if at == 0 else [], [self.last] if at == count - 1 else [])
        between = [tuple(dataclasses.replace(s, times=layers) for s in self.layer)] if layers else []
        run = [*ends[0], *between, *ends[1]]
        forward, backward = [f for f, _ in run], [b for _, b in reversed(run)]
        if self.row.pp == 1:
            return StageWork(tuple(forward), tuple(backward))
        sent = self._sent()
        if self.system.hidden_transfers:
            return StageWork(tuple(forward), tuple(backward), (sent, sent))
        if at < count - 1:
            forward.append(Segment("sends", self._sending(FORWARD, sent)))
        if at:
            backward.append(Segment("sends", self._sending(INPUTS, sent)))
        return StageWork(tuple(forward), tuple(backward))

    def _sent(self) -> int:
        """Bytes of a microbatch's activations that a rank sends on: its part (N21, section 4.1;
        DeepSpeed's partitioned activations)."""
        row = self.row
        return row.micro_batch * row.seq // row.cp * row.d * 2 // row.tp

    def _sending(self, phase: str, size: int) -> Mapping[Item, int]:
        """A send that both sides wait for; where all ranks need the whole it is gathered then."""
        place = Place("sends", "", "send")
        found: dict[Item, int] = {Collective(place, phase, "bf16", "send", 0, ("pp",), size): 1}
        if self.row.tp > 1 and not self.row.sequence_parallel:
            found[Collective(place, phase, "bf16", "all_gather", 0, ("tp",), size * (self.row.tp - 1))] = 1
        return found

    def _coordinate(self, stages: tuple[int, ...], chunks: Sequence[int]) -> Coordinate:
        """What follows the sums: the optimizer, as one stream of bytes."""
        share = self.profile.first.updated / (1 if self.row.tied else 2)
        ends = sum(end in stages for end in (0, len(chunks) - 1))
        ends = min(ends, 1) if self.row.tied else ends
        elements = round(sum(chunks[at] for at in stages) * self.profile.layer.updated + ends * share)
        return Coordinate(stages, after={self._bytes(STEP, FORWARD, self.system.optimizer * elements): 1})

    # --- items

    def _segments(self, name: str, part: Part) -> tuple[Segment, Segment]:
        """A part's forward and backward."""
        forward, backward = self._items(part.forward), self._items(part.backward)
        for again in self._again(part) if name == "layers" else ():
            backward[again] = backward.get(again, 0) + 1
        for extra in self._added(part):
            backward[extra] = backward.get(extra, 0) + 1
        gathers = tuple([self._gather(item) for item in part.gathers.elements()])
        reductions = tuple([self._reduction(item) for item in part.reductions.elements()])
        return Segment(name, forward, 1, gathers), Segment(name, backward, 1, gathers, reductions)

    def _items(self, items: Mapping[Item, int]) -> dict[Item, int]:
        found: dict[Item, int] = {}
        for item, times in items.items():
            for made in self._made(item):
                found[made] = found.get(made, 0) + times
        return self._joined(found)

    def _made(self, item: Item) -> Iterator[Item]:
        match item:
            case Attention() if not self.system.flash:
                yield from self._scores(item)
            case MemoryBound():
                yield from self._stream(item)
            case Collective(kind="all_to_all"):
                pass  # queries that change places: L3 lays the sequence out in chunks beforehand (3.3.2)
            case _:
                yield item

    def _scores(self, item: Attention) -> Iterator[Item]:
        """Attention by products. The fused scale, mask and softmax reads and writes the scores (N21
        section 4.2), back it reads two and writes one; the dropout reads and writes them, with a
        mask of a byte."""
        back, width, size = item.phase != FORWARD, int(item.width), item.heads * item.queries * item.keys
        for n, k in ((item.keys, width), (width, item.keys)):
            yield from [Product(item.place, item.phase, item.dtype, item.heads, item.queries, n, k)] * (1 + back)
        yield self._bytes(item.place, item.phase, (6 if back else 4) * size)
        if self.row.dropout:
            yield self._bytes(item.place, item.phase, 5 * size)

    def _stream(self, item: MemoryBound) -> Iterator[Item]:
        """A stream with the bytes of the system's kernel."""
        operator, back = item.place.operator, item.phase != FORWARD
        own = self.system.kernels.get(operator, (None, None))[back]
        if operator == "gradient":
            own = self.system.accumulation if self.row.microbatches > 1 else 0
        if operator in ("pack", "copy"):
            own = 0
        size = item.read + item.written if own is None else own * item.elements
        if size:
            yield self._bytes(item.place, item.phase, size)

    def _bytes(self, place: Place, phase: str, size: float) -> MemoryBound:
        return MemoryBound(place, phase, "bf16", int(size), 0, 0)

    def _joined(self, items: Mapping[Item, int]) -> dict[Item, int]:
        """Items, with projections of one value as one product."""
        found: dict[Item, int] = {}
        groups: dict[object, list[Product]] = {}
        for item, times in items.items():
            name = item.place.path.split(".")[-2] if item.place.path.count(".") > 1 else ""
            of = next((names for names in self.system.joined if name in names), None)
            if isinstance(item, Product) and of:
                groups.setdefault((of, item.phase, item.m), []).append(item)
            else:
                found[item] = times
        for mine in groups.values():
            sides = {"k": sum(p.k for p in mine)} if mine[0].phase == INPUTS else {"n": sum(p.n for p in mine)}
            found[dataclasses.replace(mine[0], **sides)] = 1
        return found

    def _again(self, part: Part) -> Iterator[Item]:
        """What backward computes again of a layer."""
        items = list(part.forward.items())
        if self.row.recompute == "full" and self.system.stops_early:
            items = items[: max(i for i, (item, _) in enumerate(items) if isinstance(item, Product))]
        elif self.row.recompute == "selective" and self.system.flash:
            # Attention and every second product are kept (torchtitan, selective, op).
            kept = [item for item, _ in items if isinstance(item, Product)][1::2]
            items = [(x, n) for x, n in items if isinstance(x, (Product, MemoryBound)) and x not in kept]
        elif self.row.recompute == "selective":
            items = [(x, n) for x, n in items if isinstance(x, Attention)]  # its core (K22, section 5)
        elif self.row.recompute == "none":
            return
        for item, times in self._items(dict(items)).items():
            yield from [dataclasses.replace(item, phase=AGAIN)] * times

    def _added(self, part: Part) -> Iterator[Item]:
        """K22 section 4.2.2: the input, of which a rank keeps its part, is gathered again beside
        the product that computes its gradient."""
        if self.row.sequence_parallel and self.system.overlap.dual:
            products = tuple([item for item in part.backward if isinstance(item, Product) and item.phase == INPUTS])
            for item in part.forward:
                if isinstance(item, Collective) and item.kind == "all_gather":
                    yield dataclasses.replace(item, phase=INPUTS, beside=products)

    def _gather(self, item: Gather) -> Gather:
        """In 16 bits; with stages once a step."""
        narrow = BYTES[item.dtype] // 2
        return dataclasses.replace(item, dtype="bf16", bytes=item.bytes // narrow, whole=item.whole // narrow,
                                   keep=self.row.pp > 1)  # fmt: skip

    def _reduction(self, item: Reduction) -> Reduction:
        """In the system's width."""
        parts = tuple([(k, axes, size * self.system.gradient // BYTES[item.dtype]) for k, axes, size in item.parts])
        return dataclasses.replace(item, parts=parts, each=item.each and self.row.pp == 1)
