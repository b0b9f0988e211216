"""Faults of loops of the user's own, `shardlang/torch/`, and of `shardc predict`."""

from __future__ import annotations

from tests.mutants.fault import Fault

LOSSES = ("bind/test_losses.py",)
LOOPS = ("bind/test_loops.py",)
MISTAKES = ("bind/test_mistakes.py",)
PREDICT = ("cli/test_predict.py",)

FAULTS = (
    Fault("updated rows stay where they are", "ZeRO 1 and 2 in a loop of one's own", "torch/module.py",
          "self._stepper.model.updated()\n            self._stepper.begin()\n            pending",
          "self._stepper.begin()\n            pending", LOSSES),
    Fault("random numbers of one step", "dropout in a loop of one's own", "torch/module.py",
          "self.done, self._due = self.done + 1, False", "self._due = False", LOOPS),
    Fault("gradients pile up in a loop of one's own", "the second step", "torch/module.py",
          "        self._stepper.model.clear()\n", "", LOSSES),
    Fault("clip scales what the optimizer does not see", "gradients that the user has replaced", "torch/module.py",
          "self._stepper.model.trained[path].grad = handle.grad", "handle.grad = handle.grad", LOOPS),
    Fault("fused kernels are given what there is", "parameters that fill no vectors", "torch/optimizers.py",
          "if held.numel() % UNIT == 0:", "if True:", LOOPS),
    Fault("an optimizer begins anew after a resume", "moments of a checkpoint", "torch/optimizers.py",
          "        optimizer.state[own] = state\n", "", LOOPS),
    Fault("a bias correction of the first step after a resume", "the count of Adam's steps", "torch/optimizers.py",
          "float(seen.get(path, done))", "0.0", LOOPS),
    Fault("halves are tried along rows alone", "optimizers of columns", "torch/optimizers.py",
          '((0, "rows"), (1, "columns"))', '((0, "rows"),)', MISTAKES),
    Fault("each microbatch has the first one's rows", "parts that the user has cut", "torch/place.py",
          "at[field.name] += block.shape[dim]", "at[field.name] += 0", LOOPS),
    Fault("rows that fill up a batch count", "a short batch of an evaluation", "torch/module.py",
          "return cut.placed(batch, True, rows), rows",
          "return cut.placed(batch, True, rows), cut.source.batch", LOOPS),
    Fault("the gradient of the loss is left out", "a loss that is scaled", "torch/module.py",
          "self._stepper.model.backward(loss * gradient)", "self._stepper.model.backward(loss)", LOOPS),
    Fault("rows on their way are put over loaded ones", "a state that is loaded after a step", "runtime/state/zero.py",
          "        if newer or self.sent != self._versions():\n            self._rows(flat[self.group.slot])\n", "",
          (*LOOPS, "cost/test_runtime_order.py")),
    Fault("rows that were written since count as those sent", "rows that are updated again", "runtime/state/zero.py",
          "if newer or self.sent != self._versions():", "if newer:", ("cost/test_runtime_order.py",)),
    Fault("rows that autograd did not count are lost", "weights written through `.data`", "runtime/state/zero.py",
          "if newer or self.sent", "if self.sent", ("cost/test_runtime_order.py",)),
    Fault("a group's members are numbered as all ranks are", "a program over some of the ranks", "runtime/comm/mesh.py",
          "_begin(dist.get_rank(group), dist.get_world_size(group), device)",
          "_begin(dist.get_rank(), dist.get_world_size(group), device)", LOOPS),
    Fault("who sees that a rank is gone is the cause", "which rank failed", "torch/launch.py",
          'return kind == "failed" and peer_gone(value[0]), rank.number', "return False, rank.number", MISTAKES),
    Fault("ranks agree on nothing", "SHARD_SYNC", "torch/module.py",
          "        if self._synced:\n", "        if False:\n", MISTAKES),
    Fault("rows that fill up a batch are written", "the last batch of a set", "runtime/predict/examples.py",
          "whole[:rows].cpu()", "whole.cpu()", PREDICT),
    Fault("what several ranks hold is added up", "a value whole on several ranks", "runtime/predict/examples.py",
          "if blocks and counts(program, field):", "if blocks:", PREDICT),
    Fault("all microbatches are put where the first is", "values under microbatches", "runtime/predict/examples.py",
          "for number in microbatches(len(blocks)):", "for number in range(len(blocks)):", PREDICT),
    Fault("a value is kept where it is still a sum", "values of a matrix that is cut", "emit/accumulators.py",
          "next((at for at in made if not layout_of(plan, at).pending), None)", "made[0]", PREDICT),
)  # fmt: skip
