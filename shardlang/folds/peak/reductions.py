"""The gradients of parameters on their way to the optimizer: in buckets, as
runtime/state/buckets.py and zero.py have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shardlang.facts.buckets import filled
from shardlang.folds.peak.ledger import Beside
from shardlang.graph.graph import InTurn
from shardlang.plan.plan import ParamPlan, Plan
from shardlang.step.gradient_sums import bucket_kind, gradient_sums, waits
from shardlang.step.parameters import gradient_bytes, local_bytes, part_bytes, stored_type, zero_degree
from shardlang.step.stages import used

GRADIENTS, BUCKETS = "gradients", "buckets"


class ParameterBytes(NamedTuple):
    """Bytes of a parameter on one rank: of it before ZeRO and of its gradient; of its rows as
    ZeRO sends them, and as the optimizer updates them."""

    whole: int
    gradient: int
    rows: int
    updated: int


def sizes_of(plan: Plan, param: ParamPlan) -> ParameterBytes:
    """Those of one."""
    whole, rows = local_bytes(plan, param), part_bytes(plan, param, stored_type(plan, param)) if param.zero else 0
    return ParameterBytes(whole, gradient_bytes(plan, param), rows, whole // zero_degree(plan, param))


class Buckets:
    """Those of one coordinate, each with its parameters; of: parameter -> its bucket;
    tied: the buckets that are summed when all backwards are done."""

    def __init__(self, plan: Plan, trained: Sequence[InTurn], sizes: Mapping[int, ParameterBytes]) -> None:
        self.plan, self.trained, self.sizes = plan, trained, sizes
        self.members = self._filled(self.trained)
        self.of = {value: at for at, members in enumerate(self.members) for value in members}
        self.tied = [at for at, members in enumerate(self.members) if waits(plan, members[0][0])]

    def _filled(self, values: Sequence[InTurn]) -> list[list[InTurn]]:
        """Parameters that are reduced alike, from the last to the first, up to the limit."""
        plan, items = self.plan, list[tuple[InTurn, object, int]]()
        for each, param in ((each, plan.params[each[0]]) for each in values if each[0] not in plan.memory_of):
            if not param.sparse and (gradient_sums(plan)[param.value] or param.zero):
                kind = bucket_kind(plan, param), plan.stages_of(param.value)
                items.append((each, kind, self.sizes[param.value].whole))
        return [members for _, members in filled(items, plan.bucket_bytes)]


class BucketInFlight(NamedTuple):
    """A bucket of ZeRO that is under way: bytes sent, and of the rows that come; of these the bytes
    that stay, which are none where those of earlier microbatches take them up."""

    whole: int
    rows: int
    stay: int


class Gradients:
    """Those of one backward. there: parameter -> bytes of its gradient so far. sent: the bucket
    that is under way, if any, also before this backward and after it."""

    def __init__(
        self, buckets: Buckets, beside: Beside, stage: int = 0, first: bool = True, last: bool = True,
        sent: BucketInFlight | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.buckets, self.beside, self.last = buckets.plan, buckets, beside, last
        # The parameters, and the buckets' rows, that have a gradient from earlier microbatches.
        kept = () if first else [each for each in buckets.trained if self.plan.params[each[0]].zero < 2]
        self.there = {each: buckets.sizes[each[0]].gradient for each in kept}
        each = (at for at, members in enumerate(buckets.members) if self.plan.params[members[0][0]].zero >= 2)
        self.rows = set[int]() if first else set(each)
        mine = (at for (v, _), at in buckets.of.items() if used(self.plan, v, (stage,)) and at not in buckets.tied)
        self.missing = Counter(mine)
        self.waiting = sorted(self.missing, reverse=True)
        self.sent = sent

    @property
    def alike(self) -> bool:
        """Whether equal layers add the same: no bucket is sent."""
        return not self.last and all(param.zero < 2 for param in self.plan.params.values())

    def given(self, value: InTurn, size: int) -> None:
        """The gradient of a microbatch is whole; it is added to that of earlier ones."""
        if value in self.there:
            self.beside.look("backward", -1, size, GRADIENTS)
        else:
            self.there[value] = size
            self.beside.add(GRADIENTS, size)
        at = self.buckets.of.get(value, -1)
        if at >= 0:
            self.missing[at] -= 1
            while self.waiting and self.missing[self.waiting[-1]] <= 0:  # in one order on all ranks
                self._launch(self.waiting.pop())

    def _launch(self, at: int) -> None:
        members = self.buckets.members[at]
        plan, param = self.plan, self.plan.params[members[0][0]]
        if not self.last and param.zero < 2:
            return
        self.settle()
        sizes = [self.buckets.sizes[value] for value, _ in members]
        if not param.zero:
            size = sum(each.whole for each in sizes)
            self.beside.look("reduce", -1, size if len(members) > 1 else 0, BUCKETS)
            return
        rows = sum(each.rows for each in sizes)
        whole = rows * plan.meshes[param.stored.mesh].degree(param.zero_axes)
        for size in (whole, rows):
            self.beside.add(BUCKETS, size)
        self.beside.look("reduce")
        for each in members:
            self.beside.add(GRADIENTS, -self.there.pop(each, 0))
        self.sent = BucketInFlight(whole, rows, 0 if at in self.rows else rows)
        self.rows.add(at)

    def conclude(self) -> None:
        """At the end of a step: the sums with other stages."""
        for at in self.buckets.tied:
            self._launch(at)
        self.settle()

    def settle(self) -> None:
        """The rows of the bucket under way have come: what was sent for them goes."""
        if self.sent is None:
            return
        self.beside.add(BUCKETS, -self.sent.whole)
        self.beside.add(BUCKETS, -self.sent.rows)
        self.beside.add(GRADIENTS, self.sent.stay)
        self.sent = None
