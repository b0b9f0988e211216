"""The trained state of this rank: parameters, states, their gradients' reduction and their optimizers, put together
once.

`Model` is what the training loop steps; it keeps plain, ZeRO-1/2 and ZeRO-3 parameters apart so that the loop need
not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime import optimizers, parameters
from shardlang.runtime.buckets import Bucket, Reducer, Reduction, SumBucket, fill
from shardlang.runtime.mesh import Group, Mesh, world
from shardlang.runtime.program import DTYPES, Parameter, Program, State, dtype_of
from shardlang.runtime.sparse import RowBucket
from shardlang.runtime.weights import Weights
from shardlang.runtime.zero import ShardBucket, Stored, freed_between, shard


class Model:
    """Parameters and states of one rank. `p` is what `forward` is given."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.weights = given_weights(program)
        self.stored: dict[str, Stored] = {}
        self.parameters = [tensor for tensor in program.parameters if program.holds(tensor)]
        self.leaves: dict[str, Tensor] = {tensor.path: self._leaf(tensor) for tensor in self.parameters}
        self._count_once()
        self.states: dict[str, Tensor] = {
            tensor.path: self._begin(tensor) for tensor in program.states if program.holds(tensor)
        }
        self.p = parameters.namespace({**self.leaves, **self.stored, **self._copies(), **self.states})
        self.weights = None
        self.sharded: list[ShardBucket] = []
        self.bucket_stages: list[tuple[int, ...]] = []
        self.reducer = Reducer(self._buckets())
        self.trained = self._trained()
        self.optimizers = [
            optimizers.optimizer(
                o.kind, [self.trained[path] for path in o.parameters if path in self.trained], o.arguments
            )
            for o in program.optimizers
        ]
        self.norm_parts = [
            (self.trained[t.path], self._mesh(t)[self._cut_axes(t)]) for t in self.parameters if self.keeps(t)
        ]

    def keeps(self, tensor: Parameter | State) -> bool:
        """Whether this rank's stage is the one that counts and saves a tensor."""
        pipeline = self.program.pipeline
        return pipeline is None or self.program.keeper(tensor) == self.program.mesh[pipeline.axis].index

    def leaves_of(self, stage: int) -> list[Tensor]:
        """What a stage trains."""
        return [self.leaves[tensor.path] for tensor in self.parameters if stage in tensor.stages]

    def _copies(self) -> dict[str, Callable[[], Tensor]]:
        """Parameters that `forward` works with in another type: path -> the copy, made at each use."""
        made: dict[str, Callable[[], Tensor]] = {}
        for tensor in self.parameters:
            if tensor.use:
                held, dtype = self.stored.get(tensor.path, self.leaves[tensor.path]), DTYPES[tensor.use]
                made[tensor.path] = parameters.copied(held, dtype)
        return made

    def _mesh(self, tensor: Parameter | State) -> Mesh:
        return tensor.mesh or self.program.mesh

    def _reduce(self, tensor: Parameter) -> tuple[str, ...]:
        """The axes over ranks on which a gradient is pending; what is pending over microbatches autograd sums."""
        return self._mesh(tensor)._ranked(tensor.reduce)

    def _count_once(self) -> None:
        """A gradient that is not pending over the microbatches is whole in each: that of the first counts."""
        for tensor in self.parameters:
            time = self._mesh(tensor)._time
            if time and time not in tensor.reduce:
                self.leaves[tensor.path].register_hook(_of_the_first)

    def _begin(self, tensor: Parameter | State) -> Tensor:
        """This rank's block of a value as it begins: initialised, or from given weights."""
        if self.weights is None:
            return parameters.make(self.program, tensor)
        return self.weights.read(self.program, tensor, dtype_of(self.program, tensor))

    def zero_group(self, tensor: Parameter) -> Group | None:
        group = self._mesh(tensor)[tuple(tensor.zero_axes)]
        return group if tensor.zero and group.size > 1 else None

    def _cut_axes(self, tensor: Parameter) -> tuple[str, ...]:
        """The axes over which this rank's trained tensor is a part only, in the mesh's order."""
        axes = {*tensor.split_axes(), *(tensor.zero_axes if self.zero_group(tensor) else ())}
        return tuple(axis for axis in self._mesh(tensor) if axis in axes)

    def _leaf(self, tensor: Parameter) -> Tensor:
        value = self._begin(tensor)
        group = self.zero_group(tensor)
        if group is None or tensor.zero < 3:
            return value.requires_grad_()
        piece = shard(value, group).clone().requires_grad_()
        pending = tuple(axis for axis in self._reduce(tensor) if axis in tensor.zero_axes)
        self.stored[tensor.path] = Stored(
            piece, tuple(value.shape), group, self._mesh(tensor)[pending] if pending else None
        )
        return piece

    def _buckets(self) -> list[Bucket]:
        """Reductions of gradients: one bucket per kind of reduction and dtype up to the limit, of ZeRO-1/2 apart."""
        keyed = [(self.leaves[t.path], self._reduction(t)) for t in self.parameters if not t.sparse]
        reduced = [(leaf, how) for leaf, how in keyed if how.shard or how.over(how.sum).size > 1]
        buckets: list[Bucket] = []
        for table in (t for t in self.parameters if t.sparse):
            how = self._reduction(table)
            buckets.append(RowBucket(how.over(how.sum), self.leaves[table.path]))
            self.bucket_stages.append(() if how.tied else how.stages)
        for how, members in fill(reduced, self.program.bucket_bytes):
            if not how.shard:
                buckets.append(SumBucket(how.over(how.sum), members))
                # A sum with another stage waits for that stage's last backward: only at the end do both come to it.
                self.bucket_stages.append(() if how.tied else how.stages)
                continue
            bucket = ShardBucket(members, how)
            self.sharded.append(bucket)
            buckets.append(bucket)
            self.bucket_stages.append(() if how.tied and bucket.before is not None else how.stages)
        return buckets

    def _reduction(self, tensor: Parameter) -> Reduction:
        """What is to be done with a gradient."""
        reduce, shard = self._reduce(tensor), tuple(tensor.zero_axes) if self.zero_group(tensor) else ()
        if tensor.path in self.stored:
            reduce, shard = tuple(axis for axis in reduce if axis not in shard), ()
        pipeline, here = self.program.pipeline, self.program.stages_here
        return Reduction(
            self._mesh(tensor), shard, reduce, bool(shard) and tensor.zero == 2,
            self.program.mesh, pipeline.axis if pipeline is not None else "",
            self.program.coordinates(tensor), tuple(stage for stage in tensor.stages if stage in here),
        )  # fmt: skip

    def _trained(self) -> dict[str, Tensor]:
        """path -> the tensor that the optimizer updates: the leaf, or this rank's rows of it."""
        rows = {
            id(member): piece
            for bucket in self.sharded
            for member, piece in zip(bucket.members, bucket.shards, strict=True)
        }
        return {path: rows.get(id(leaf), leaf) for path, leaf in self.leaves.items()}

    def forward_context(self) -> Any:
        """To run forward in: with ZeRO-3, gathered parameters are not kept for backward."""
        return freed_between() if self.stored else contextlib.nullcontext()

    def backward(self, loss: Tensor, last: bool = True) -> None:
        """Gradients of this rank's part of the loss, added to those of earlier microbatches. Seeded with 1 on every
        rank. They are reduced once that of the last microbatch returns.
        """
        self.reducer.start(None if last else self.reducer.each)
        loss.backward()
        self.reducer.complete()
        if last:
            self.reducer.finish()

    @torch.no_grad()
    def update(self, step: int, total: int) -> None:
        """One step of all optimizers, step from 1; clears the gradients."""
        if self.program.clip is not None:
            pipeline = self.program.pipeline
            stages = self.program.mesh[pipeline.axis] if pipeline is not None else None
            trained = [leaf for leaf in self.trained.values() if leaf.grad is not None]
            optimizers.clip(self.norm_parts, self.program.clip, trained, stages)
        for optimizer in self.optimizers:
            optimizer.step(optimizers.scheduled(optimizer.lr, self.program.lr_schedule, step, total))
        for bucket in self.sharded:
            bucket.publish()
        for leaf in self.leaves.values():
            leaf.grad = None

    def blocks(self) -> list[tuple[Parameter | State, Callable[[], Tensor] | None]]:
        """Every parameter and state with a function that gives this rank's block of it (collective under ZeRO-3); None
        where that is another stage's to give.
        """
        named: list[Parameter | State] = [*self.program.parameters, *self.program.states]
        return [(tensor, self._block(tensor.path) if self.keeps(tensor) else None) for tensor in named]

    def _block(self, path: str) -> Callable[[], Tensor]:
        if path in self.stored:
            return self.stored[path].gather
        return lambda: self.leaves[path] if path in self.leaves else self.states[path]


def _of_the_first(gradient: Tensor) -> Tensor:
    return gradient if world.microbatch == 0 else torch.zeros_like(gradient)


def given_weights(program: Program) -> Weights | None:
    """The file of weights that a program starts from, if it names one; RunError where it does not fit."""
    if program.init is None:
        return None
    _, arguments = program.init
    return Weights(
        program.base / str(arguments["path"]), [*program.parameters, *program.states], arguments.get("names")
    )
