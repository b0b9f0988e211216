"""Faults of microbatches and schedules: an axis in time, sums over it, what is known ahead, orders of a pipeline."""

from __future__ import annotations

from tests.mutants.fault import Fault

SIMULATED = ("interpret/test_time.py",)
RANKS = ("runtime/test_microbatches.py",)
WHOLE = ("diagnostics/SH410-the-whole-batch-at-once.md",)
TOTALS = ("end_to_end/test_totals.py",)
SCHEDULES = ("plan/test_schedules.py",)

FAULTS = (
    Fault("sums of data beside what is known of them are parts", "variances by two totals",
          "plan/rewrite/microbatches.py",
          " or self._beside_known(op):", ":",
          ("generated/test_subset.py::test_every_way_of_writing_a_variance_by_two_totals_is_one_under_microbatches",)),
    # what operators do in time
    Fault("a sum of a microbatch is called whole", "totals of a batch", "plan/rewrite/microbatches.py",
          "if factor in factors), PENDING)", "if factor in factors), WHOLE)", SIMULATED),
    Fault("masked labels are counted by microbatch", "the normaliser of a masked loss", "plan/rewrite/insert.py",
          "if ignored is None or len(op.operands) != 2", "if ignored is not None or len(op.operands) != 2", SIMULATED),
    Fault("gradients of a single microbatch", "what adds up in time", "plan/layouts/storage.py",
          "axis.time  # gradients", "False  # gradients", (*SIMULATED, "generated/test_subset.py")),
    Fault("statistics of a microbatch", "SH410: batch statistics", "plan/rewrite/microbatches.py",
          "if split.split is Split.INSIDE:", "if False:", WHOLE),
    Fault("functions of a part of a total", "SH410: a function of a total", "plan/rewrite/microbatches.py",
          'if op.section != "metric":', "if False:", WHOLE),
    Fault("microbatches need not divide", "SH411", "plan/rewrite/microbatches.py",
          "if size % (degree * rule.count):", "if size % degree:",
          ("diagnostics/SH411-microbatches-that-do-not-divide.md",)),
    Fault("pinned data need not divide", "SH411 of a field that is pinned", "plan/rewrite/microbatches.py",
          "        if dim >= 0:\n            yield described", "        if dim > 0:\n            yield described",
          ("plan/test_generated_faults.py",)),
    Fault("bytes of one microbatch", "what a step sends", "plan/redistribute/along_time.py",
          "forward_bytes=move.forward_bytes * count", "forward_bytes=move.forward_bytes",
          ("end_to_end/test_wired.py",)),
    Fault("two totals of which one is of data are no ratio", "SH410 for a sum over a count",
          "plan/rewrite/microbatches.py",
          'if op.section == "loss" and ahead:', "if False:", TOTALS),
    Fault("totals of totals are known ahead", "a deviation as a metric", "plan/rewrite/microbatches.py",
          'last = op.section == "metric" and not self.summed.isdisjoint(operands)', "last = False", TOTALS),
    # when what is computed
    Fault("numbers are no part of what is known ahead", "`1 / n` where the 1 is pending", "step/phases.py",
          "before, reached = _back(plan, step_inputs, totals)",
          "before, reached = _back(plan, step_inputs, totals | "
          "{(c.value, c.id) for c in plan.conversions if graph.values[c.value].constant is not None})", TOTALS),
    Fault("what depends on a total is computed once", "single examples beside a total", "step/phases.py",
          "for at in makes(plan)[step] if _whole_in_time(plan, at))", "for at in makes(plan)[step])", SIMULATED),
    Fault("what is handed on counts in every microbatch", "a value of an earlier stage", "emit/step_inputs.py",
          'f"rt.{MoveKind.I_TO_P.value}({names[at]}, {groups.text((time.name,), mesh)})"', "names[at]", TOTALS),
    Fault("a total is called as its parts", "a count that forward is given and sums up again", "emit/text/names.py",
          "_alike(self.plan) - apart", "_alike(self.plan)", TOTALS),
    # running them
    Fault("gradients are reduced with each microbatch", "sums that are taken twice", "runtime/step/microbatches.py",
          "self.model.backward(loss, number == last)", "self.model.backward(loss, True)", RANKS),
    Fault("counts of the first microbatch", "what is known ahead", "runtime/step/microbatches.py",
          "before_microbatch(*batch[number].values())", "before_microbatch(*batch[0].values())", RANKS),
    Fault("every microbatch has the first one's examples", "the batch", "runtime/step/microbatches.py",
          "program.forward(self.model.p, *batch[number].values(), **given)",
          "program.forward(self.model.p, *batch[0].values(), **given)", RANKS),
    Fault("figures of the first microbatch", "loss and metrics", "runtime/step/totals.py",
          "elif self.summed is None or name in self.summed:", "elif self.summed is None:", RANKS),
    Fault("the index in time stands still", "offsets of masks and slices", "runtime/comm/mesh.py",
          "return self._index + world.microbatch * self._per_part", "return self._index", RANKS),
    # schedules
    Fault("one forward fewer ahead", "1F1B's warm-up", "plan/pipeline/schedules.py",
          "line, ahead = _ActionRow(), min(microbatches, stages - rank)",
          "line, ahead = _ActionRow(), max(1, min(microbatches, stages - rank - 1))", SCHEDULES),
    Fault("stages go round in place of a V", "where the stages of a V are", "plan/pipeline/schedules.py",
          "s if s < coordinates else stages - 1 - s for s", "s % coordinates for s", SCHEDULES),
    Fault("interleaved stages in one round", "the order of virtual stages", "plan/pipeline/schedules.py",
          "at // each % virtual * coordinates + rank", "at % virtual * coordinates + rank", SCHEDULES),
    Fault("gradients of parameters are never taken", "zero bubble's last actions", "plan/pipeline/schedules.py",
          "    return [*line.actions, *line.waiting]\n\n\ndef rounds",
          "    return line.actions\n\n\ndef rounds", SCHEDULES),
)  # fmt: skip
