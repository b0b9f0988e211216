"""Sums the parameters' gradients over the axes where they are pending: in flat buckets, while
backward still runs.

A gradient is accumulated locally; when all of a bucket have arrived, one asynchronous all-reduce of
it starts. Buckets start in one fixed order on every rank, and a parameter that got no gradient
counts as zeros, so no rank waits for another in vain. Over the microbatches of a step gradients are
accumulated, and buckets start in the last backward alone, but for those that ask to be started in
each. Gradients of parameters under ZeRO go through zero.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import Group, RankMesh, TiedGroup
from shardlang.runtime.comm.record import naming


@dataclass(frozen=True)
class BucketReduction:
    """How gradients are reduced, alike for all of a bucket: cut over the axes `shard`, summed over
    `sum`.

    each: in every microbatch. coordinates: where along the stages' axis the parameter is; stages:
    those that use it, on any rank, so that all ranks have the same buckets. `over`: the group over
    axes, joined with the other coordinates where there are several."""

    mesh: RankMesh
    shard: tuple[str, ...]
    sum: tuple[str, ...]
    each: bool
    whole: RankMesh
    axis: str
    coordinates: tuple[int, ...]
    stages: tuple[int, ...]

    @property
    def tied(self) -> bool:
        return len(self.coordinates) > 1

    def over(self, axes: tuple[str, ...]) -> Group:
        group = self.mesh[axes]
        return TiedGroup(group, self.whole, self.axis, self.coordinates) if self.tied else group


class GradientBucket:
    """Parameters, `members`, whose gradients are reduced together, over `groups`. `each`: in every
    microbatch's backward. paths: of the parameters."""

    members: Sequence[Tensor]
    groups: Sequence[Group]
    paths: Sequence[str] = ()
    each = False

    def launch(self) -> None:
        """Starts the reduction of what has been accumulated."""

    def collect(self) -> None:
        """Waits for a reduction that holds more memory than its result: here none does."""

    def advance(self) -> None:
        """Starts second parts, once the first are done, of all buckets before any is waited for."""

    def finish(self) -> None:
        """Waits; afterwards the gradients that the optimizer reads are whole."""


class SumBucket(GradientBucket):
    """Gradients that one all-reduce over `group` completes; they become views of one tensor."""

    def __init__(self, group: Group, members: Sequence[Tensor]) -> None:
        self.group, self.groups, self.members = group, [group], members
        self.sum: primitives.AsyncResult | None = None
        # Stages come to their tied parameters in orders of their own, where no rank may wait for
        # another.
        tied = isinstance(self.group, TiedGroup)
        count = sum(member.numel() for member in self.members)
        self.memory = None if tied else primitives.share(self.group, count, self.members[0])

    def launch(self) -> None:
        for member in self.members:
            if member.grad is None:
                member.grad = torch.zeros_like(member)
        gradients = [member.grad for member in self.members if member.grad is not None]
        own = None if self.memory is None else self.memory.own
        alone = own is None and len(gradients) == 1 and gradients[0].is_contiguous()
        flat = gradients[0].view(-1) if alone else torch.cat([g.reshape(-1) for g in gradients], out=own)
        # They are its parts from now on, so that what backward has made is freed.
        self._take(self._parts(flat))
        self.sum = primitives.begin_reduce(flat, self.group, own=True, memory=self.memory)

    def advance(self) -> None:
        assert self.sum is not None
        self.sum.advance()

    def finish(self) -> None:
        assert self.sum is not None
        total, self.sum = self.sum.wait(), None
        self._take(self._parts(total))

    def _parts(self, flat: Tensor) -> list[Tensor]:
        """Every member's part of the flat tensor."""
        views = flat.split([member.numel() for member in self.members])
        return [view.view(member.shape) for member, view in zip(self.members, views, strict=True)]

    def _take(self, parts: Sequence[Tensor]) -> None:
        """Makes each of them a member's gradient."""
        for member, part in zip(self.members, parts, strict=True):
            member.grad = part


class Reducer:
    """Counts gradients as they arrive and starts each bucket once it is full, in order."""

    def __init__(self, buckets: Sequence[GradientBucket]) -> None:
        self.buckets = list(buckets)
        self.cited = [naming("gradients", bucket.paths) for bucket in self.buckets]
        self.each = {number for number, bucket in enumerate(self.buckets) if bucket.each}
        # Of this backward: bucket -> gradients that it still waits for. Of this step: the buckets
        # started.
        self._missing: dict[int, int] = {}
        self._started: set[int] = set()
        self._latest: GradientBucket | None = None
        for number, bucket in enumerate(self.buckets):
            for member in bucket.members:
                member.register_post_accumulate_grad_hook(self._hook(number))

    def _hook(self, number: int) -> Any:
        def arrived(_: Tensor) -> None:
            if number in self._missing:
                self._missing[number] -= 1
                if not self._missing[number]:
                    self._launch(lambda at: self._missing[at] <= 0)

        return arrived

    def _launch(self, ready: Any) -> None:
        for number in list(self._missing):
            if not ready(number):
                return
            del self._missing[number]
            self._started.add(number)
            # What is sent is as large as whole gradients: of one bucket at a time. That of the
            # microbatch before may have travelled beside this one's forward.
            if self._latest is not None:
                self._latest.collect()
            with self.cited[number]:
                self.buckets[number].launch()
            self._latest = self.buckets[number]

    def start(self, numbers: Iterable[int] | None = None) -> None:
        """Before a backward: the buckets to be reduced in it, in order; by default all."""
        chosen = range(len(self.buckets)) if numbers is None else numbers
        self._missing = {number: len(self.buckets[number].members) for number in chosen}

    def complete(self) -> None:
        """After a backward: starts the rest of its buckets, with zeros for missing gradients."""
        self._launch(lambda _: True)

    def finish(self) -> None:
        """At the end of a step: starts the buckets that no backward has, and waits for all."""
        self.start(number for number in range(len(self.buckets)) if number not in self._started)
        self.complete()
        self._started.clear()
        for bucket, cited in zip(self.buckets, self.cited, strict=True):
            with cited:
                bucket.advance()
        for bucket in self.buckets:
            bucket.finish()
