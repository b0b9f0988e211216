"""Faults of the training loop: buckets, ZeRO, optimizers, norms, data, evaluation, figures, random numbers, weights."""

from __future__ import annotations

from tests.mutants.fault import Fault

TORCH, LEVELS, AXES, CLIP = (
    (f"runtime/test_training.py::test_on_four_ranks[{name}]",)
    for name in ("agrees_with_torch", "levels", "levels_over_two_axes", "clipped_and_saved")
)
USES = ("runtime/test_gathers.py",)
SHARED = ("runtime/test_shared_memory.py",)
OPTIMIZERS = ("runtime/test_optimizers.py",)
DATA = ("runtime/test_data.py",)
RANDOM = ("runtime/test_random.py",)
TRAIN = ("runtime/test_train.py",)

FAULTS = (
    # buckets
    Fault("a bucket loses its last member", "its gradient stays local", "runtime/buckets.py",
          "zip(self.members, views, strict=True)", "zip(self.members[:-1], views, strict=False)", TORCH),
    Fault("gradients are averaged", "the promise that no run divides by a number of ranks", "runtime/buckets.py",
          "member.grad = view.view(member.shape)", "member.grad = view.view(member.shape) / self.group.size", TORCH),
    Fault("a bucket starts at its first gradient", "gradients that come later are lost", "runtime/buckets.py",
          "len(self.buckets[number].members) for number in chosen", "1 for number in chosen", TORCH),
    Fault("a shared sum is its last member's vector", "large sums on one machine", "runtime/shared_memory.py",
          "total.add_(other)", "total.copy_(other)", SHARED),
    Fault("a chunk of a shared sum stays with its owner", "the same sum on all ranks", "runtime/shared_memory.py",
          "other.copy_(total)", "other.copy_(other)", SHARED),
    Fault("memory is shared with who has none", "ranks that cannot share", "runtime/shared_memory.py",
          "if agreed and all_mapped else None", "if all_mapped else None", SHARED),
    Fault("any file is taken for a rank's memory", "processes of other machines", "runtime/shared_memory.py",
          'if os.readlink(path) == f"/memfd:{_name(token)} (deleted)":', "if file >= 0:", SHARED),
    Fault("gradients pile up over steps", "each step adds the last ones", "runtime/model.py",
          "leaf.grad = None", "leaf.grad = leaf.grad", TORCH),
    Fault("rows of a table are joined twice", "a table's rows in order, each once", "runtime/sparse.py",
          "is_coalesced=self.group.size == 1", "is_coalesced=True", ("runtime/test_tables.py",)),
    # ZeRO
    Fault("a ZeRO shard is offset by one", "the rows that a rank updates", "runtime/zero.py",
          "whole.narrow(0, group.start(len(whole)), group.chunk(len(whole)))",
          "whole.narrow(0, min(group.start(len(whole)) + 1, len(whole) - group.chunk(len(whole))), "
          "group.chunk(len(whole)))", LEVELS),
    Fault("ZeRO numbers shards in torch's order", "sharding over axes that are not in rank order", "runtime/zero.py",
          "return group.slots or tuple(range(group.size))", "return tuple(range(group.size))", AXES),
    Fault("ZeRO forgets axes it does not shard over", "sums over axes beside the sharding ones", "runtime/zero.py",
          "after = tuple(axis for axis in reduce if axis not in shared) if not before else ()", "after = ()", AXES),
    Fault("ZeRO does not sum before the cut", "gradients pending over some of the sharding axes", "runtime/zero.py",
          "before = reduce if shared and not self.pending else ()", "before = ()", AXES),
    Fault("ZeRO never publishes", "the other ranks' updated rows", "runtime/model.py",
          "bucket.publish()", "bucket.advance", LEVELS),
    Fault("ZeRO-3 keeps the last use's gradient alone", "parameters used twice", "runtime/gathers.py",
          "self.gradient = gradient if self.gradient is None else self.gradient + gradient",
          "self.gradient = gradient", USES),
    Fault("ZeRO-3 counts what each microbatch has whole", "gradients that are not pending over time",
          "runtime/gathers.py", "if self.once and world.microbatch:", "if self.once and not world.microbatch:", USES),
    Fault("ZeRO-3 never clears a gradient", "the second step", "runtime/gathers.py",
          "gradient, self.gradient, self.leaf.grad = self.gradient, None, None", "gradient = self.gradient", LEVELS),
    # norm and optimizers
    Fault("the norm counts replicated axes", "clip, where a parameter is not cut over every axis", "runtime/model.py",
          "self._mesh(t)[self._cut_axes(t)]", "self._mesh(t)[tuple(self._mesh(t))]", TORCH),
    Fault("the norm is of the local shard", "clip, where parameters are cut", "runtime/optimizers.py",
          "squares = wire.begin_reduce(squares, group).wait()", "squares = squares.clone()", CLIP),
    Fault("clip raises small gradients", "gradients below the limit", "runtime/optimizers.py",
          "torch.clamp(limit / (norm + 1e-6), max=1.0)", "(limit / (norm + 1e-6))", OPTIMIZERS),
    Fault("clip divides by the norm alone", "gradients of a small norm", "runtime/optimizers.py",
          "torch.clamp(limit / (norm + 1e-6), max=1.0)", "torch.clamp(limit / norm, max=1.0)", OPTIMIZERS),
    Fault("the first step of a warm-up does nothing", "learning rates before the peak", "runtime/optimizers.py",
          "base * (step / peak)", "base * ((step - 1) / peak)", OPTIMIZERS),
    Fault("momentum begins dampened", "the first step of sgd", "runtime/optimizers.py",
          "is_first_step=self.first", "is_first_step=False", OPTIMIZERS),
    Fault("momentum is reset at each step", "sgd after its first step", "runtime/optimizers.py",
          "self.first = False", "self.first = True", OPTIMIZERS),
    Fault("momentum is reset by a checkpoint", "sgd that goes on", "runtime/optimizers.py",
          "self.first = step == 0", "self.first = True", OPTIMIZERS),
    Fault("adam corrects its bias as in step 1", "adam after its first step", "runtime/optimizers.py",
          "self.steps += 1", "self.steps.fill_(1)", OPTIMIZERS),
    Fault("adamw's decay is part of the gradient", "adamw", "runtime/optimizers.py",
          "kernel = staticmethod(torch._fused_adamw_)", "kernel = staticmethod(torch._fused_adam_)", OPTIMIZERS),
    Fault("what is padded is not put back", "tensors that fill no vectors", "runtime/optimizers.py",
          "if tensor is not other:", "if tensor is other:", OPTIMIZERS),
    Fault("the schedule is a step behind", "learning rates after the peak", "runtime/optimizers.py",
          "(step - peak)", "(step - 1 - peak)", OPTIMIZERS),
    # data
    Fault("the order of examples depends on the rank", "what a batch is", "runtime/data.py",
          "order(self.dataset.length, self.seed, epoch",
          "order(self.dataset.length, self.seed, epoch + self.blocks[0][0].offsets[0]", DATA),
    Fault("every epoch has one order", "shuffling", "runtime/data.py",
          "Philox(key=[seed & (2**64 - 1), epoch])", "Philox(key=[seed & (2**64 - 1), 0])", DATA),
    Fault("each rank reads the first rows", "how a batch is cut", "runtime/data.py",
          "mine = examples[block.slices()[0]]", "mine = examples[: block.shape[0]]", DATA),
    Fault("a label that one use ignores is let through to all", "an index past the end", "graph/bounds.py",
          "frozenset.intersection(*sets)", "frozenset.union(*sets)", ("check/test_sources.py",)),
    Fault("ignored labels are out of range", "data as others write it", "runtime/data_fit.py",
          " & ~np.isin(array, field.ignored)", "", ("runtime/test_hostile_data.py",)),
    Fault("whole numbers are taken from float64 as they are", "a label that was rounded", "runtime/data_fit.py",
          "_EXACT = 2**53 - 1", "_EXACT = 2**63", ("runtime/test_hostile_data.py",)),
    Fault("only the batch of the step is looked at", "the cell behind a loss", "runtime/not_finite.py",
          "for at in (step, step - 1):", "for at in (step,):", ("runtime/test_not_finite.py",)),
    Fault("padded rows count as real", "evaluation of a set that does not divide", "runtime/data.py",
          "min(batch, length - start)", "batch", DATA),
    # evaluation and figures
    Fault("only the last batch is evaluated", "sums over the set", "runtime/totals.py",
          "self.sums[name] = self.sums[name] + value if name in self.sums else value.double()",
          "self.sums[name] = value.double()", TRAIN),
    Fault("a metric is counted by every rank", "figures identical over an axis that others are pending over",
          "runtime/totals.py", "mesh[others].index == 0", "mesh[others].index >= 0", TRAIN),
    Fault("tallies count padding", "evaluation of a set that does not divide", "runtime/functions/statistics.py",
          "real = min(max(rows - start, 0), items.shape[dim])", "real = items.shape[dim]",
          ("ops/test_random_and_states.py",)),
    Fault("tallies count on every rank of a class dim", "evaluation of nll_loss over split classes",
          "runtime/functions/statistics.py", "number if once else torch.zeros_like(number)", "number",
          ("ops/test_random_and_states.py",)),
    # random numbers and initial values
    Fault("a key without the number of the call", "a layer called twice", "runtime/random.py",
          r"\0{call}\0{step}", r"\0{step}", ("interpret/test_draws.py",)),
    Fault("a key without the step", "masks of later steps", "runtime/random.py",
          "State.step if step is None else step", "0 if step is None else step", RANDOM),
    Fault("a mask of the step before", "masks under accumulation of steps", "runtime/train.py",
          "random.at_step(self.step)", "random.at_step(self.step - 1)", TRAIN),
    Fault("numbers by local index", "draws of a value that is cut", "runtime/random.py",
          "torch.arange(offset, offset + size, device=device)", "torch.arange(size, device=device)", RANDOM),
    Fault("initial values by local index", "parameters that are cut", "runtime/parameters.py",
          "random.normal(key, block.shape, whole, block.offsets, device)",
          "random.normal(key, block.shape, block.shape, (0,) * len(whole), device)",
          ("runtime/test_initial.py", "end_to_end/test_curves.py::test_quickstart")),
    Fault("kaiming's bound by half the fan", "initial values of layers", "runtime/parameters.py",
          "math.sqrt(6.0 / ((1.0 + slope * slope) * args[0]))", "math.sqrt(3.0 / ((1.0 + slope * slope) * args[0]))",
          ("runtime/test_initial.py",)),
    Fault("saved blocks in the wrong place", "weights of a file", "runtime/weights.py",
          "local = gathered(local, dim, group,", "local = gathered(local, dim - 1, group,",
          ("runtime/test_initial.py",)),
)  # fmt: skip
