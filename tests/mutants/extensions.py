"""Faults of what users declare: data, schedules and optimizers of their own."""

from __future__ import annotations

from tests.mutants.fault import Fault

DATA = ("extensions/test_data.py",)
BAD_DATA = ("extensions/test_bad_data.py",)
RATES = ("extensions/test_schedules.py",)
OPTIMIZERS = ("extensions/test_optimizers.py",)
PROJECT = ("extensions/test_project.py",)
OPERATORS = ("extensions/test_operators.py",)
USE = ("extensions/test_use.py",)
INSIDE = ("extensions/test_inside.py", "extensions/test_operators.py")
ENDLESS = ("extensions/test_apart.py::test_a_function_that_never_ends_is_ended_and_told",)

FAULTS = (
    Fault("a stream goes on from an earlier place", "a resumed stream", "runtime/data/streams.py",
          "wanted[0] // self.source.batch * self.source.batch", "0", DATA),
    Fault("a part of a stream is another's", "parts of a stream", "runtime/data/streams.py",
          "if n // self.size % self.parts == self.part", "if n // self.size % self.parts != self.part", DATA),
    Fault("ranks are not compared", "SH613 of data", "runtime/data/agreed.py",
          "if all(each == told[0] for each in told):", "if True:", DATA),
    Fault("two readings are not compared", "SH613 on one rank", "runtime/data/agreed.py",
          "if here.tobytes() != there.tobytes():", "if False:", DATA),
    Fault("examples of another shape are taken", "SH502 of a shape", "runtime/data/own.py",
          "if part.shape != due and [n", "if False and [n", BAD_DATA),
    Fault("another Python goes on", "SH508 of data", "runtime/data/identity.py",
          'given["python"] = source.arguments["call"].digest', "pass", DATA),
    Fault("rates are not compared", "SH613 of a schedule", "runtime/step/learning_rate.py",
          "digest_size=16).hexdigest())}) > 1:", "digest_size=16).hexdigest())}) > 9:", RATES),
    Fault("a rate may be negative", "SH621", "runtime/step/learning_rate.py",
          "if not math.isfinite(rate) or rate < 0:", "if not math.isfinite(rate):", RATES),
    Fault("an optimizer sees one rank's rows alone", "ZeRO under a whole parameter", "runtime/step/model.py",
          "*(() if rows else zero_axes(self.program, tensor))",
          "*(() if True else zero_axes(self.program, tensor))", OPTIMIZERS),
    Fault("rows are gathered over their own cut", "rows that an optimizer needs", "runtime/step/model.py",
          "for axis in listed(axes)]\n        axes = {", "for axis in listed(axes)][:0]\n        axes = {", OPTIMIZERS),
    Fault("the step of a resumed optimizer", "a formula that has the step in it", "runtime/state/own_optimizers.py",
          "[step - late.get(id(t), 0) for t in self.all]", "[0 for t in self.all]", OPTIMIZERS),
    Fault("optimizers are tried on whole parameters alone", "SH618", "interpret/trials/optimizers.py",
          "run.compare(layout, decl.needs)\n                tried", "tried", OPTIMIZERS),
    Fault("an optimizer runs unverified", "SH611", "check/files/declarations.py",
          'self.what not in ("operator", "optimizer") or self._locked() == hashes',
          'self.what != "operator" or self._locked() == hashes', OPTIMIZERS),
    Fault("a project names all", "SH623", "check/files/project.py",
          "if os.path.realpath(home) not in allowed:", "if False:", PROJECT),
    Fault("a shared result's gradient counts on each rank", "`result` of a group", "runtime/functions/declared.py",
          "for each in listed(self._result):", "for each in ():", INSIDE),
    Fault("sums of an operator are not counted", "`reduces` in verify", "interpret/trials/declared.py",
          "if rank.reduced != (", "if False and rank.reduced != (", INSIDE),
    Fault("f32 is not held to f64", "a function in f32", "interpret/trials/whole_operator.py",
          '_ROUNDED, "in f32 its results")', '1e9, "in f32 its results")', OPERATORS),
    Fault("evaluation is not held to training", "a function without gradients", "interpret/trials/whole_operator.py",
          "with torch.no_grad():\n        _require", "with torch.enable_grad():\n        _require", OPERATORS),
    Fault("parts of pending sums are small", "what is linear near 0 alone", "interpret/trials/splits.py",
          "_FAR = 1e3", "_FAR = 1.0", OPERATORS),
    Fault("a function may give a view", "memory that is counted twice", "interpret/trials/whole_operator.py",
          "    _require_new(trial, inputs, found)\n", "", OPERATORS),
    Fault("a function may ask which rank it is", "results that depend on the rank",
          "interpret/trials/whole_operator.py", "    if not torch.equal(found, result) and torch.equal(",
          "    if False and torch.equal(", OPERATORS),
    Fault("`keeps` may leave out anything", "memory that the plan does not count", "interpret/trials/saved_tensors.py",
          "    if always:\n", "    if not trials:\n", OPERATORS),
    Fault("the result is none of what backward reads", "`keeps` of a result", "interpret/trials/saved_tensors.py",
          "for name, x in (*named.items(), (RESULT, result)) if", "for name, x in named.items() if", OPERATORS),
    Fault("what never ends has ended", "a function without an end", "interpret/trials/processes.py",
          """    yield b'{"endless": true}'""", "    yield from ()", ENDLESS),
    Fault("a longer limit is no longer", "what to type", "interpret/trials/processes.py",
          "`--limit {5 * limit:g}`", "`--limit {limit:g}`", ENDLESS),
    Fault("many are not tried", "functions that treat many otherwise", "interpret/trials/cases.py",
          "_MANY = (120, 128, 127)", "_MANY = ()", OPERATORS),
    Fault("operands in any order of memory", "what a function was tried on", "runtime/functions/declared.py",
          "*(x.contiguous() for x in operands)", "*operands", USE),
    Fault("a sum without its dual", "`group.sum` backward", "runtime/functions/declared.py",
          "collectives.all_reduce_replicated(x, each)", "collectives.all_reduce(x, each)", INSIDE),
)  # fmt: skip
