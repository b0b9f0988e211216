"""The trained state of this rank: parameters, states, their gradients' reduction and their
optimizers, put together once.

`RankModel` is what the training loop steps; it keeps plain, ZeRO-1/2 and ZeRO-3 parameters apart so
that the loop need not."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlang.facts.actions import BACKWARD, EVALUATION, FORWARD, KINDS, alone
from shardlang.facts.buckets import filled
from shardlang.hints.paths import OF_PROGRAM
from shardlang.runtime.comm.host_copies import device_of
from shardlang.runtime.comm.mesh import Group, RankMesh, world
from shardlang.runtime.logs import timed
from shardlang.runtime.program import (
    DTYPES,
    Extent,
    Optimizer,
    Parameter,
    RunProgram,
    RunTensor,
    dtype_of,
    listed,
    split_axes,
)
from shardlang.runtime.state import mapped, optimizers
from shardlang.runtime.state.alive import dropped_between
from shardlang.runtime.state.buckets import BucketReduction, GradientBucket, Reducer, SumBucket
from shardlang.runtime.state.copies import reads
from shardlang.runtime.state.initial import make
from shardlang.runtime.state.own_optimizers import OptimizerView, OwnOptimizer
from shardlang.runtime.state.saved_on_host import sending
from shardlang.runtime.state.shares import StateLayouts, zero_axes, zero_group
from shardlang.runtime.state.sparse import RowBucket
from shardlang.runtime.state.weights import InitialWeights
from shardlang.runtime.state.zero import ShardBucket, ShardedParameter, Zero12Parameter, shard, staged
from shardlang.runtime.state.zero3 import GatherSchedule, Pass, Zero3Parameter
from shardlang.runtime.step.gradients import StepGradients
from shardlang.runtime.step.learning_rate import LearningRates
from shardlang.runtime.tree import namespace


class RankModel:
    """Parameters and states of one rank. `p` is `forward`'s argument; trees[n] that of stage n.
    gradients: those of a step, once they are summed."""

    def __init__(self, program: RunProgram) -> None:
        self.program = program
        mapped.start(program)
        self.weights = given_weights(program)
        self.stored: dict[str, Zero3Parameter] = {}
        self.held: dict[str, Zero12Parameter] = {}
        self.gathers = GatherSchedule()
        self.parameters = [tensor for tensor in program.parameters if program.holds(tensor)]
        # path -> what autograd knows a parameter by; what the optimizer updates: the leaf or this
        # rank's rows; the copy that forward reads, where that is of another type.
        self.leaves: dict[str, Tensor] = {}
        self.trained: dict[str, Tensor] = {}
        self.copies: dict[str, Tensor] = {}
        self._hold_all()
        self.states: dict[str, Tensor] = {
            tensor.path: self._begin(tensor) for tensor in program.states if program.holds(tensor)
        }
        self.weights = None
        self.buckets: list[GradientBucket] = []
        self.bucket_stages: list[tuple[int, ...]] = []
        self.reducer = Reducer(self._buckets())
        read = {**self._read(), **self.states}
        self.p = namespace(read)
        self.trees = {
            stage: namespace({path: held for path, held in read.items() if stage in program.stages_of[path]})
            for stage in program.stages_here
        }
        self.optimizers = [self._optimizer(at, o) for at, o in enumerate(program.optimizers)]
        self.hosted = [self._hosted(at, o.kind) for at, o in enumerate(program.optimizers)]
        learning = [t for t in self.parameters if not t.frozen]
        whole = program.pipeline is None and not any(self._cut_axes(t) for t in learning)
        counted = [self.trained[t.path] for t in learning if whole or self._counts(t)]
        self.gradients = StepGradients(program, list(self.trained.values()), counted, whole, self.states)

    @cached_property
    def rates(self) -> LearningRates:
        """The learning rates of the run."""
        return LearningRates(self.program)

    @cached_property
    def lr(self) -> float | None:
        """The base rate of the optimizer of what no other trains, else of the first."""
        general = [at for at, given in enumerate(self.program.optimizers) if not given.at]
        return self.optimizers[(general or [0])[0]].lr if self.optimizers else None

    @cached_property
    def shares(self) -> StateLayouts:
        """Which rank writes which part to a checkpoint."""
        return StateLayouts(self.program)

    def leaves_of(self, stage: int) -> list[Tensor]:
        """The parameters that a stage trains."""
        of = self.program.stages_of
        return [self.leaves[t.path] for t in self.parameters if stage in of[t.path] and not t.frozen]

    def _mesh(self, tensor: RunTensor) -> RankMesh:
        return tensor.mesh or self.program.mesh

    def _hold_all(self) -> None:
        """Makes all parameters, with their averages (path -> that of what is trained), and says to
        the gathers of ZeRO 3 what comes together."""
        for tensor in self.parameters:
            self._hold(tensor)
        averaged = self.program.trained_by if self.program.ema is not None else ()
        self.averages = {path: mapped.clone(self.trained[path].detach()) for path in averaged if path in self.trained}
        program, pipeline = self.program, self.program.pipeline
        row = pipeline.table[program.mesh[pipeline.axis].index] if pipeline is not None else alone(program.microbatches)
        step = [(action.kind, action.stage) for action in row]
        units: dict[Pass, list[list[Zero3Parameter]]] = {}
        for stage in (program.stages_here if pipeline is not None else (0,)) if self.stored else ():
            order = program.stages[stage].gathers if pipeline is not None else program.gathers
            mine = [path for path in self.stored if pipeline is None or stage in program.stages_of[path]]
            for kind in (*KINDS, EVALUATION):
                named = order.units(FORWARD if kind == EVALUATION else kind, mine)
                units[kind, stage] = [[self.stored[path] for path in mine if path in unit] for unit in named]
        self.gathers.order(units, step)

    def _begin(self, tensor: RunTensor) -> Tensor:
        """This rank's block of a value as it begins: initialised, or from given weights."""
        weights, dtype = self.weights, dtype_of(self.program, tensor)

        def part(block: Extent) -> Tensor:
            if weights is not None:
                return weights.read(tensor, block, dtype)
            return make(self.program, tensor, block)

        block = self.program.block(tensor)
        return mapped.made(block, dtype, part) if mapped.wanted(tensor.place) else part(block)

    def _cut_axes(self, tensor: Parameter) -> set[str]:
        """The axes over which this rank's trained tensor is a part only."""
        return {*split_axes(tensor.cut), *zero_axes(self.program, tensor)}

    def _counts(self, tensor: Parameter) -> bool:
        """Whether this rank is the first of those that train the same part of a tensor."""
        apart = {*self._cut_axes(tensor), self.program.stage_axis}
        return self.program.keeps(tensor) and self._mesh(tensor)._leads(apart)

    def _hold(self, tensor: Parameter) -> None:
        """Makes a parameter as it begins, in the form that its use and level of ZeRO ask for."""
        path, value, group = tensor.path, self._begin(tensor), zero_group(self.program, tensor)
        use = DTYPES[tensor.use] if tensor.use else None
        if group is not None and tensor.zero[0] == 3:
            piece = mapped.clone(shard(value, group))
            made = self.stored[path] = Zero3Parameter(
                piece, tuple(value.shape), group, self.gathers, use, tensor.frozen
            )
            made.once, made.keep, made.path = tensor.once, tensor.keep, path
            self.leaves[path], self.trained[path] = made.leaf, piece
            return
        if use is not None:
            self.copies[path] = mapped.clone(value, use)
        if group is None:
            self.leaves[path] = self.trained[path] = value.requires_grad_(not tensor.frozen)
        else:
            held = self.held[path] = Zero12Parameter(value, group, self.copies.get(path))
            self.leaves[path], self.trained[path] = held.leaf, held.piece
        if tensor.once:
            self.leaves[path].register_hook(_of_the_first)

    def _shared(self, path: str) -> ShardedParameter | None:
        """A parameter under ZeRO."""
        return self.stored.get(path) or self.held.get(path)

    def _buckets(self) -> list[GradientBucket]:
        """Reductions of gradients: a bucket per kind of reduction, dtype and device up to the
        limit."""
        items = []
        for tensor in (t for t in self.parameters if not t.frozen):
            how, dtype = self._reduction(tensor), dtype_of(self.program, tensor)
            if tensor.sparse:
                self._add(RowBucket(how.over(how.sum), self.leaves[tensor.path]), how)
            elif how.shard or how.over(how.sum).size > 1:
                size = math.prod(self.program.block(tensor).shape) * dtype.itemsize
                kind = how, dtype, device_of(tensor.place), tensor.path in self.stored
                items.append((self._shared(tensor.path) or self.leaves[tensor.path], kind, size))
        for (how, *_), members in filled(items, self.program.bucket_bytes):
            self._add(ShardBucket(members, how) if how.shard else SumBucket(how.over(how.sum), members), how)
        staged([bucket for bucket in self.buckets if isinstance(bucket, ShardBucket)])
        return self.buckets

    def _add(self, bucket: GradientBucket, how: BucketReduction) -> None:
        """Takes in a bucket, with the stages that give to it. One that waits for another stage is
        not of any: only at the end do both come to it."""
        waits = how.tied and (not isinstance(bucket, ShardBucket) or bucket.before is not None)
        paths = {id(leaf): path for path, leaf in self.leaves.items()}
        bucket.paths = [paths[id(member)] for member in bucket.members]
        self.buckets.append(bucket)
        here = tuple(stage for stage in how.stages if stage in self.program.stages_here)
        self.bucket_stages.append(() if waits else here)

    def _reduction(self, tensor: Parameter) -> BucketReduction:
        """The work to do with a gradient."""
        shard, stages = zero_axes(self.program, tensor), self.program.stages_of[tensor.path]
        return BucketReduction(
            self._mesh(tensor), shard, listed(tensor.reduce), each=bool(shard) and tensor.zero[0] >= 2,
            whole=self.program.mesh, axis=self.program.stage_axis, coordinates=self.program.coordinates(tensor),
            stages=stages,
        )  # fmt: skip

    @cached_property
    def sharded(self) -> list[ShardBucket]:
        """The buckets whose updated rows all ranks need: of ZeRO 1 and 2."""
        found = [bucket for bucket in self.buckets if isinstance(bucket, ShardBucket)]
        return [bucket for bucket in found if isinstance(bucket.parameters[0], Zero12Parameter)]

    def _read(self) -> dict[str, Tensor | Callable[[], Tensor]]:
        """The tensors that `forward` finds under each path, or functions called at each use."""
        found: dict[str, Tensor | Callable[[], Tensor]] = {**self.leaves, **self.stored}
        paths = {id(held): path for path, held in self.held.items()}
        found.update(reads(self.leaves, self.copies))
        for bucket in self.sharded:
            for path in (paths[id(held)] for held in bucket.parameters):
                found[path] = _settled(bucket, found[path])
        return found

    def forward_context(self, kind: Pass = (FORWARD, 0)) -> contextlib.AbstractContextManager[None]:
        """To run forward in: parameters that ZeRO 3 has gathered are not kept for backward, nor is
        what the program drops."""
        dropping = bool(self.stored) or self.program.drops or self.program.to_host
        return self._dropping(kind) if dropping else self.gathers.during(kind)

    @contextlib.contextmanager
    def _dropping(self, kind: Pass) -> Iterator[None]:
        there = (*self.leaves.values(), *self.copies.values(), *self.states.values())
        with self.gathers.during(kind), dropped_between(), sending(there if self.program.to_host else ()):
            yield

    def backward(self, loss: Tensor, last: bool = True) -> None:
        """Gradients of this rank's part of the loss, added to those of earlier microbatches. Seeded
        on every rank with 1, or the loss scale. They are reduced once that of the last microbatch
        returns."""
        self.reducer.start(None if last else self.reducer.each)
        scale = self.gradients.scale
        with self.gathers.during((BACKWARD, 0)):
            (loss if scale is None else loss * scale.factor).backward()
        self.reducer.complete()
        if last:
            self.gathers.release()
            self.reducer.finish()

    @torch.no_grad()
    def update(self, step: int, total: int) -> bool:
        """One step of all optimizers, step from 1; clears the gradients. Whether there was one."""
        fits = self.gradients.fit()
        if fits:
            if self.program.clip is not None and self.gradients.norm is not None:
                self.gradients.clip(self.program.clip, self.gradients.norm())
            for optimizer, hosted in zip(self.optimizers, self.hosted, strict=True):
                with timed(hosted) if hosted else contextlib.nullcontext():
                    optimizer.step(self.rates.at(optimizer.lr, step, total))
            self._average(first=step - self.gradients.skipped == 1)
            self.updated()
        self.clear()
        return fits

    def _average(self, first: bool) -> None:
        """Brings the averages of weights up to date with an update, as
        torch.optim.swa_utils.AveragedModel does: after the first they are the weights."""
        paths = [path for path in self.averages if self.averages[path].numel()]
        if not paths or self.program.ema is None:
            return
        mine, theirs = [self.averages[path] for path in paths], [self.trained[path] for path in paths]
        for averages, trained in optimizers.by_device(mine, theirs):
            if first:
                torch._foreach_copy_(averages, trained)
            else:
                torch._foreach_lerp_(averages, trained, 1 - self.program.ema)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Meanwhile the weights are their averages. One tensor more is there at a time."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for path, average in self.averages.items():
            trained = self.trained[path]
            before = trained.clone()
            trained.copy_(average)
            average.copy_(before)
        self.updated()

    def updated(self) -> None:
        """Brings the rest up to date, once what is trained has been updated."""
        if self.copies or self.sharded:
            self.refresh(path for path, leaf in self.leaves.items() if leaf.requires_grad)

    def clear(self) -> None:
        """Forgets the gradients."""
        for leaf in (*self.leaves.values(), *self.trained.values()):
            leaf.grad = None

    @torch.no_grad()
    def refresh(self, changed: Iterable[str]) -> None:
        """Brings copies, and rows of other ranks, up to date with what is trained of parameters."""
        paths = [path for path in changed if path in self.copies]
        copies = [self.held[path].rows if path in self.held else self.copies[path] for path in paths]
        if paths:
            for some, values in optimizers.by_device(copies, [self.trained[path] for path in paths]):
                torch._foreach_copy_(some, values)
        for bucket in self.sharded:
            bucket.publish()

    def groups(self) -> list[Group]:
        """Over which gradients are reduced and parameters gathered."""
        reduced = [group for bucket in self.buckets for group in bucket.groups]
        own = [optimizer for optimizer in self.optimizers if isinstance(optimizer, OwnOptimizer)]
        seen = [seen.group for optimizer in own for seen in optimizer.seen if seen is not None]
        return [*reduced, *(stored.group for stored in self.stored.values()), *seen]

    def _optimizer(self, at: int, given: Optimizer) -> Any:
        paths = [path for path, by in self.program.trained_by.items() if by == at and path in self.trained]
        tensors = [self.trained[path] for path in paths]
        if "call" not in given.arguments:
            return optimizers.optimizer(given.kind, tensors, given.arguments)
        named = {tensor.path: tensor for tensor in self.parameters}
        seen = [self._seen(named[path], given.arguments["needs"]) for path in paths]
        return OwnOptimizer(tensors, seen, base=self.program.base, **given.arguments)

    def _seen(self, tensor: Parameter, needs: str) -> OptimizerView | None:
        """How an optimizer of the user's gets what it needs of a parameter; None where this rank
        has it."""
        rows = needs == "rows"
        cut = [axis for dim, axes in tensor.cut.items() if dim or not rows for axis in listed(axes)]
        axes = {*cut, *(() if rows else zero_axes(self.program, tensor))} if needs != "elements" else set()
        mesh, block, zero = self._mesh(tensor), self.program.block(tensor), zero_group(self.program, tensor)
        group = mesh[tuple(axis for axis in mesh if axis in axes)]
        if group.size == 1:
            return None
        shape, first, size = tensor.shape or (1,), block.offsets or (0,), block.shape or (1,)
        if zero is not None:
            first, size = (first[0] + zero.start(size[0]), *first[1:]), (zero.chunk(size[0]), *size[1:])
        return OptimizerView(tensor.path, shape, Extent(first, size), group, rows)

    def _hosted(self, at: int, kind: str) -> str:
        """The name of an optimizer in the log, if the log has its time: with host parameters."""
        by = self.program.trained_by
        mine = [t.path for t in self.parameters if by.get(t.path) == at and t.place == "host"]
        return f"{kind} of {', '.join(mine)}" if mine and self.program.log else ""

    def blocks(self) -> list[tuple[RunTensor, Callable[[], Tensor] | None]]:
        """Every parameter and state with a function that gives this rank's block of it (collective
        under ZeRO-3); None where that is another stage's to give."""
        return [(t, self.block(t.path) if self.program.keeps(t) else None) for t in self.program.tensors]

    def block(self, path: str) -> Callable[[], Tensor]:
        """A function that gives this rank's block of a tensor that it holds (collective under
        ZeRO)."""
        shared = self._shared(path)
        return shared.gather if shared is not None else lambda: {**self.leaves, **self.states}[path]


def _settled(bucket: ShardBucket, held: Tensor | Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A function that gives a parameter, or what its function gives, once its rows are up to
    date."""

    def settled() -> Tensor:
        bucket.settle()
        return held if isinstance(held, Tensor) else held()

    return settled


def _of_the_first(gradient: Tensor) -> Tensor:
    """A gradient that is whole in each microbatch: that of the first counts."""
    return gradient if world.microbatch == 0 else torch.zeros_like(gradient)


def given_weights(program: RunProgram) -> InitialWeights | None:
    """The file of weights that a program starts from, if any; RunError if it does not fit."""
    if program.init is None:
        return None
    path = program.base / program.init.path
    # A whole path may be of an option or of a call.
    help = "" if Path(program.init.path).is_absolute() else OF_PROGRAM
    found = InitialWeights(path, program.tensors, program.init.names, help)
    found.require_words(program.data.categories)
    return found
