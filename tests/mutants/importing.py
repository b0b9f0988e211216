"""Faults of `shardc import`: what it takes for something else on the way from a module to a program."""

from __future__ import annotations

from tests.mutants.fault import Fault

IMPORT = ("importing/test_import.py",)
BY_DIMS = ("importing/test_by_dims.py",)
WRITTEN = ("importing/test_as_written.py",)
PAGES = ("importing/test_pages.py",)
WORDS = ("importing/test_words.py",)
OPAQUE = ("importing/test_opaque.py",)
PLANS = ("importing/test_plans.py",)
NAMES = ("importing/test_names.py",)
OPTIONS = ("importing/test_options.py",)

FAULTS = (
    Fault("a matrix by columns is taken by rows", "GPT-2's matrices", "importing/text/maps.py",
          "found = there.t() if line.stored.transposed else there", "found = there", PLANS),
    Fault("a mask that a rule says is dropped", "attention that sees all", "importing/steps/idioms.py",
          "mask, causal = None, rule.causal", "mask, causal = None, False", IMPORT),
    Fault("dims of one tensor become one", "a square that has one dim twice", "importing/bodies/models.py",
          " and _apart(model, one, other):", ":", IMPORT),
    Fault("a second call is taken for the first", "a layer that computes something else the second time",
          "importing/bodies/builder.py", "elif not same_model(inner, self.layers[path].body):", "elif inner is None:",
          IMPORT),
    Fault("the two traces are not compared", "a window that shows at other sizes", "importing/imported.py",
          "if not by_dims and other.all_text() == first.all_text():", "if not by_dims:", PAGES),
    Fault("two sizes are enough for a formula", "half of a size", "importing/imported.py",
          "return len(texts) == 1", "return True", BY_DIMS),
    Fault("a text by dims is not compared at other sizes", "a seventh of a size", "importing/imported.py",
          "for each in (first, *others))", "for each in (first,))", BY_DIMS),
    Fault("larger sizes are not asked", "a number by chance", "importing/imported.py",
          "if any(each.times < 0 for each in first.formulas):", "if module is not None:", WRITTEN),
    Fault("a backward of its own is taken for the gradient", "half of a gradient", "importing/eager.py",
          "return all(torch.allclose(a, b, rtol=1e-6, atol=1e-9)", "return all(a.shape == b.shape", WRITTEN),
    Fault("evaluation is not compared", "noise of training alone", "importing/eager.py",
          "if not torch.allclose(one / size, other / size,", "if False and torch.allclose(one, other,", WRITTEN),
    Fault("a limit has more digits than it needs", "a limit of draws", "importing/steps/starts.py",
          "if near < value:", "if near < 0:", WRITTEN),
    Fault("any difference is rounding", "a gradient of zero in truth", "importing/compare.py",
          "<= 8 * furthest", "<= 8", WRITTEN),
    Fault("gradients are not compared", "a gradient that is twice as large", "importing/compare.py",
          "for path in one.gradients if path in other.gradients]", "for path in one.gradients if not other.results]",
          IMPORT),
    Fault("parts of a matrix are in another order", "values in the place of queries", "importing/text/maps.py",
          "return found.chunk(count)[number - 1]", "return found.chunk(count)[count - number]", IMPORT),
    Fault("scores that are divided are multiplied", "the scale of attention", "importing/steps/attends.py",
          'number if scores.op == "aten.mul" else 1 / number', "number", IMPORT),
    Fault("dropout has another rate", "what no comparison of values shows", "importing/bodies/words.py",
          'Expr(name, [value], {"p": Const(p, "p")})', 'Expr(name, [value], {"p": Const(0.5, "p")})', IMPORT),
    Fault("any distribution fits", "normal numbers that start uniform", "importing/steps/starts.py",
          "return float(furthest) * math.sqrt(count) < _REJECTED", "return float(furthest) >= 0", IMPORT),
    Fault("a deviation is told with digits of chance", "normal(1.01) where normal(1) is drawn",
          "importing/steps/starts.py", "if seeded or anew else std:.3g", "if seeded and anew else std:.3g", OPTIONS),
    Fault("a buffer is updated in silence", "training that differs", "importing/way.py",
          "for name, node in self.traced.updated.items():", "for name, node in list(self.traced.inputs.items())[:0]:",
          IMPORT),
    Fault("gates of an LSTM are in another order", "a cell that forgets", "importing/bodies/recurrent.py",
          '("in", "forget", "cell", "out")', '("in", "cell", "forget", "out")', WORDS),
    Fault("what is not trained is", "tables that the module keeps", "importing/bodies/maker.py",
          "node.op == STATE or not node.value.requires_grad", "node.op == STATE", WORDS),
    Fault("dims of one size are one dim", "distances between two lists", "importing/opaque/sizes.py",
          "pools = [[], same, ", "pools = [others, same, ", OPAQUE),
    Fault("layers with other numbers are other operators", "a piece that is declared once",
          "importing/opaque/python.py", "return self._setting(value, role)", "return repr(value)", OPAQUE),
    Fault("an operator gives a view", "windows that share numbers", "importing/opaque/words.py",
          "if found.view:", "if not found:", OPAQUE),
    Fault("what others read is computed again", "steps between two pieces", "importing/opaque/pieces.py",
          "others = [each for each in readers[node] if each not in wanted", "others = [each for each in () if each",
          OPAQUE),
    Fault("dims are left whole", "what the trial finds", "importing/opaque/freed.py",
          "free[operator.declaration.name] = verdict.free", "free[operator.declaration.name] = ()", OPAQUE),
    Fault("a file of the user's is taken for steps", "SH512", "owned.py",
          "_begins(f'\"\"\"{OPAQUE_MARK}'.encode())", "_begins(b'')", OPAQUE),
    Fault("arguments come as they are read", "a layer whose inputs are in another order than forward's",
          "importing/steps/calls.py", "call.outside.sort(key=lambda node: first.get(node, len(given)))",
          "call.outside.sort(key=lambda node: 0)", NAMES),
    Fault("several results have the first name", "a tuple on the left of a line", "importing/bodies/builder.py",
          "(line.names[at], line.reads)", "(line.names[0], line.reads)", NAMES),
    Fault("the first line of a statement alone names its value", "a call that is written on several lines",
          "importing/authors/lines.py", "(node.end_lineno or node.lineno) + 1), line", "node.lineno + 1), line", NAMES),
    Fault("any dims make a sum", "a model that declares a dim by one of its inputs alone",
          "importing/bodies/interior.py", "(term[0] in known or term[0].declared)", "term[0] is not atom", NAMES),
    Fault("any numbers are those of T5's buckets", "a logarithm of no whole distance", "importing/steps/idioms.py",
          "if not numbers.items() <= wanted.items() or", "if", WORDS),
    Fault("a pattern does not see a quotient that is rounded", "buckets of whole parts",
          "importing/steps/patterns.py", ' or step.kwargs.get("rounding_mode")', "", WORDS),
    Fault("a table has as many rows as buckets by chance", "buckets that a table of more rows is read at",
          "importing/bodies/builder.py", "rows[0].size == count:", "rows[0].size >= count:", WORDS),
)  # fmt: skip
