"""Faults of what plans and emitted programs are held against, and of states that operators share."""

from __future__ import annotations

from tests.mutants.fault import Fault

NORMS = "runtime/functions/normalisations.py"

FAULTS = (
    Fault("autograd counts the move of running statistics", "two calls of batch_norm that share a state", NORMS,
          "running_mean.data.lerp_(", "running_mean.detach().lerp_(", ("runtime/test_recompute.py",)),
    Fault("anything may be moved", "parameters, computed values and states given twice to batch_norm",
          "check/moved.py", "is Kind.STATE and op.operands.count(value) == 1", "is not None",
          ("diagnostics/SH296-a-state-that-moves.md",)),
    Fault("a state that moves may be read", "gradients and figures of what reads a state", "check/moved.py",
          "if value in movers and", "if at < 0 and value in movers and",
          ("diagnostics/SH296-a-state-that-moves.md",)),
    Fault("stages move copies of a state", "running statistics that two stages share", "plan/stages.py",
          "            if one != two:", "            if one > two:",
          ("diagnostics/SH428-a-state-moved-in-two-stages.md",)),
    Fault("whole numbers are divided in float32", "quotients of whole numbers in a run in f64",
          "interpret/operators.py",
          "function(left.to(call.dtypes[0]), right.to(call.dtypes[0]))", "function(left, right)",
          ("interpret/test_promotion.py",)),
    Fault("f32 is f64 in a run in f64", "a cast to f32 on one device", "interpret/call.py",
          '"f32": torch.float32', '"f32": torch.float64', ("interpret/test_promotion.py",)),
    Fault("silu is a quotient", "the gradient of silu far below 0", "interpret/operators.py",
          "lambda a: a * torch.sigmoid(a)", "lambda a: a / (1.0 + torch.exp(-a))", ("interpret/test_saturated.py",)),
    Fault("a score of -inf counts 0 times", "scores that are masked out, over split classes", "interpret/parts.py",
          "    if smoothing:", "    if True:", ("interpret/test_saturated.py",)),
    Fault("an infinite extreme is a difference", "amax of what is infinite, over a split dim", "interpret/parts.py",
          "_Valued.apply(m, b.squeeze(dims))", "b.squeeze(dims) + (m - m.detach())", ("interpret/test_saturated.py",)),
    Fault("a logit is counted from its label", "the loss of logits far out", "interpret/operators_statistics.py",
          "-target * functional.logsigmoid(x) - (1.0 - target) * functional.logsigmoid(-x)",
          "torch.logaddexp(x, torch.zeros((), dtype=x.dtype)) - x * target", ("interpret/test_saturated.py",)),
    Fault("numbers are not seen", "a number that joins a pending sum, in an emitted program", "runtime/observe.py",
          "if isinstance(x, (int, float)):", "if isinstance(x, bool):",
          ("end_to_end/test_verify.py::test_numbers_that_join_what_is_pending",)),
    Fault("a number lies beside a condition", "the type of a number in where", "check/operators.py",
          'next((v for v in tensors if v.type.dtype != "bool"), tensors[0] if tensors else None)',
          "next(iter(tensors), None)", ("interpret/test_promotion.py",)),
    Fault("optimizers are judged by one device's gradients", "parameters whose true gradient is zero",
          "interpret/compare.py", "judge.from_ranks(params, mine.stored, rows)",
          "judge.whole(params, theirs.gradients, rows)", ("interpret/test_judged.py",)),
    Fault("optimizers are judged by themselves", "an optimizer that is wrong by as much as rounding",
          "interpret/compare.py", "comparison.all_stored(after, judge.from_ranks(params, mine.stored, rows))",
          "comparison.all_stored(kept, params)", ("interpret/test_judged.py",)),
    Fault("Adam divides by another eps", "a parameter whose true gradient is zero", "runtime/optimizers.py",
          '"beta2": betas[1], "eps": eps,', '"beta2": betas[1], "eps": 10 * eps,',
          ("end_to_end/test_verify.py::test_where_all_is_right_nothing_is_found",)),
    Fault("nothing is said without a terminal", "minutes of silence in a file", "cli/progress.py",
          "elif self.clock() >= self._next:", "elif self.clock() < self._next:", ("cli/test_progress.py",)),
)  # fmt: skip
