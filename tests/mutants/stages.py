"""Faults of pipeline stages: which stage an operator is in, what is handed on, tied parameters, lists of actions."""

from __future__ import annotations

from tests.mutants.fault import Fault

STAGES = ("plan/test_stages.py",)
SCHEDULES = ("plan/test_schedules.py",)
ACTIONS = ("plan/test_actions.py",)
PIPELINE = ("runtime/test_pipeline.py",)
BORDERS = ("end_to_end/test_borders.py",)
CURVES = ("end_to_end/test_stages.py::test_gradients_in_another_order_of_memory",)
PROOF = ("matched/test_proof.py",)
SEQUENCE = ("matched/test_sequence.py",)

FAULTS = (
    Fault(
        "nothing is handed on",
        "values that a later stage reads",
        "plan/rewrite/stage_transfers.py",
        "if self.stages[producer] >= stage:",
        "if producer >= 0:",
        STAGES,
    ),
    Fault(
        "a value is handed on once for each user",
        "what is sent between stages",
        "plan/rewrite/stage_transfers.py",
        "found = self.there[value, stage] = self._transfer(",
        "found = self._transfer(",
        STAGES,
    ),
    Fault(
        "what is handed on has no gradient",
        "backward over a boundary",
        "plan/rewrite/stage_transfers.py",
        "gradient=whole.gradient and trained",
        "gradient=False",
        STAGES,
    ),
    Fault(
        "a cast crosses beside its value",
        "each value crosses a border once",
        "plan/rewrite/derived.py",
        "is not Kind.RESULT or read(value):",
        "is not Kind.RESULT:",
        BORDERS,
    ),
    Fault(
        "a cast for f32 crosses",
        "the fewest bytes cross a border",
        "plan/rewrite/derived.py",
        "own < others or (own ==",
        "(own ==",
        BORDERS,
    ),
    Fault(
        "a border cast is dropped",
        "what products read behind a border",
        "plan/rewrite/stage_transfers.py",
        "self._copy(op, stage, reader)\n            return self.there[value, stage]",
        "return self.value(op.operands[0], stage, reader)",
        BORDERS,
    ),
    Fault(
        "a recomputed layer keeps a cast beside its input",
        "what recomputed layers keep",
        "plan/rewrite/recomputed_casts.py",
        "if group not in (OUTSIDE, origin) and self._again(cast, origin):",
        "if False:",
        BORDERS,
    ),
    Fault(
        "operators outside of layers come too early",
        "the stage of an operator without a layer",
        "plan/pipeline/stages.py",
        "return max((s for p in",
        "return min((s for p in",
        STAGES,
    ),
    Fault(
        "a tied parameter is of its first stage",
        "parameters used in several stages",
        "plan/pipeline/assemble.py",
        "found.setdefault(value, set()).add(stage)",
        "found.setdefault(value, {stage})",
        STAGES,
    ),
    Fault(
        "values may flow back by one stage",
        "SH424",
        "plan/pipeline/stages.py",
        "stages[producer] > stages[op.id] and",
        "stages[producer] > stages[op.id] + 1 and",
        ("diagnostics/SH424-a-value-that-flows-back.md",),
    ),
    Fault(
        "a stage does not wait for the one before",
        "cyclic waits, and the bubble",
        "plan/pipeline/actions.py",
        'return done.get(("F", stage - 1, microbatch)) if stage else 0',
        "return 0",
        ACTIONS,
    ),
    Fault(
        "gradients of parameters may be left out",
        "files of actions",
        "plan/pipeline/actions.py",
        'if kinds in ("FB", "FIW"):',
        'if kinds in ("FB", "FIW", "FI"):',
        ACTIONS,
    ),
    # running them
    Fault(
        "buckets are reduced in every backward",
        "sums that are taken more than once",
        "runtime/step/pipeline.py",
        "or not later & set(by)",
        "or True",
        PIPELINE,
    ),
    Fault(
        "the microbatch of a stage stands still",
        "offsets of masks and slices",
        "runtime/step/pipeline.py",
        "world.microbatch = action.microbatch\n            record.at_action",
        "world.microbatch = 0\n            record.at_action",
        PIPELINE,
    ),
    Fault(
        "the loss is seeded twice",
        "every gradient before the last stage",
        "runtime/step/pipeline.py",
        "1.0 if scale is None else scale.factor",
        "2.0 if scale is None else scale.factor",
        PIPELINE,
    ),
    Fault(
        "stages read the first microbatch's fields",
        "the batch of a stage",
        "runtime/step/pipeline.py",
        "now.batch[action.microbatch][name] for name",
        "now.batch[0][name] for name",
        PIPELINE,
    ),
    Fault(
        "W does nothing",
        "gradients of parameters in split schedules",
        "runtime/step/pipeline.py",
        "kept.halves.weights(weights)",
        "kept.halves = None",
        PIPELINE,
    ),
    Fault(
        "stages that share parameters have buckets of their own",
        "tied sums of virtual stages",
        "runtime/step/model.py",
        "            stages=stages,",
        "            stages=tuple(s for s in stages if s in self.program.stages_here),",
        SEQUENCE,
    ),
    Fault("ties are not compared", "SH462", "matched/ties.py", "if mine == its:", "if mine is not its:", PROOF),
    Fault(
        "a message is never left over",
        "SH464",
        "matched/stages.py",
        "for sender in () if waiting else left:",
        "for sender in ():",
        PROOF,
    ),
    Fault(
        "a loop is as long as any",
        "layers in a row",
        "matched/lines.py",
        "    times: int\n",
        "    times: int = field(compare=False)\n",
        PROOF,
    ),
    Fault(
        "parts may be of other sizes",
        "SH461",
        "matched/shapes.py",
        "if apart != (line.given if joins else line.made).sizes[dim]:",
        "if False:",
        PROOF,
    ),
    Fault(
        "what is computed again runs to its end",
        "collectives behind what is kept",
        "step/saved_activations.py",
        "return self._place[step] <= self._ends.get(group, -1)",
        "return True",
        SEQUENCE,
    ),
    Fault(
        "gradients of a backward in two lie as they were made",
        "kernels that walk memory, and sums in place",
        "runtime/step/split_backward.py",
        "torch.autograd.backward(*zip(*ends, strict=True), inputs=params)",
        "outputs, given = zip(*ends, strict=True)\n"
        "                made = torch.autograd.grad(outputs, params, given)\n"
        "                for weight, part in zip(params, made, strict=True):\n"
        "                    weight.grad = part if weight.grad is None else weight.grad.add_(part)",
        ("runtime/test_split_backward.py", *CURVES),
    ),
    Fault(
        "the second half goes through what is between two uses",
        "collectives that no plan has",
        "runtime/step/split_backward.py",
        'if len(group["intermediates"]) > 1:',
        "if False:",
        ("runtime/test_split_backward.py",),
    ),
    Fault(
        "the second half gathers what is used several times",
        "bytes of ZeRO 3 under zero_bubble",
        "step/zero3_gathers.py",
        "apart = read - self._several(ops)",
        "apart = read",
        ("end_to_end/test_pipelines.py",),
    ),
    Fault(
        "a sum of every microbatch counts once for two stages of a rank",
        "bytes of ZeRO 2 under dualpipe_v",
        "step/gradient_sums.py",
        "of.bytes * plan.microbatches * len(mine)",
        "of.bytes * plan.microbatches",
        ("end_to_end/test_pipelines.py",),
    ),
    Fault(
        "a gradient that comes in two parts has arrived with the first",
        "when the sum of a bucket begins",
        "runtime/step/pipeline.py",
        "        if not action.half:\n            self.model.reducer.start(self.due[at])\n"
        "        with self.model.gathers.during((action.kind, action.stage)):\n"
        "            self._half(kept, ends, action)\n"
        "        if action.apart:  # in which a gradient may arrive in several parts\n            self",
        "        with self.model.gathers.during((action.kind, action.stage)):\n"
        "            self.model.reducer.start(self.due[at])\n"
        "            self._half(kept, ends, action)\n"
        '        if action.kind == "none":\n            self',
        CURVES,
    ),
)
