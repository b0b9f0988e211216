"""Faults of the views: what differs between plans, what an alternative keeps, what gets into the page; and of what is
explained."""

from __future__ import annotations

from tests.mutants.fault import Fault

PYTORCH, REFERENCE = ("documents/test_pytorch.py",), ("documents/test_reference.py",)

FAULTS = (
    Fault("an alternative stands beside the rule that it replaces", "figures of alternatives to a pin", "views/why.py",
          "rules = without(asked.rules, (ast.Pin, ast.Shard), selector_text(selector))",
          "rules = list(asked.rules)", ("views/test_why.py",)),
    Fault("only the first coordinate sends", "figures of alternatives with stages", "views/alternatives.py",
          "sum(sum(sent_bytes(of, mine)) for mine in lines)", "sum(sent_bytes(of, lines[0]))", ("views/test_why.py",)),
    Fault("the two plans change places", "rows of what differs", "views/diff.py",
          '{"what": name, "left": a, "right": b}', '{"what": name, "left": b, "right": a}', ("views/test_diff.py",)),
    Fault("a text of a program ends the page's script", "names in the page", "views/report.py",
          '.replace("<", "\\\\u003c")', "", ("views/test_report.py",)),
    Fault("gradients count for lines", "bytes of lines of a report", "views/statements.py",
          'each.what == "values" and ', "", ("views/test_report.py",)),
    Fault("a tensor is on the ranks of all that its line does", "tensors on ranks", "views/program_text.py",
          "runs(map(plan.stage, made))", "runs(plan.pipeline.op_stage)", ("views/test_report.py",)),
    Fault("a method of torch has no help", "SH214 of `x.view(..)`", "check/model/expressions.py",
          "else torch_help(part)", 'else ""', PYTORCH),
    Fault("a function of torch has no help", "SH200 of `chunk(x, 2)`", "check/model/calls.py",
          "torch_help(callee.text) or offer", "offer", PYTORCH),
    Fault("an argument of torch has no help", "SH220 of `softmax(x, dim = 1)`", "check/model/arguments.py",
          'torch_help(name.text) if "over" in known else', '"" if "over" in known else', PYTORCH),
    Fault("a word of training has no help where it is a value", "SH223 of `patience = 4`", "check/train/finished.py",
          "help = training_help(name) or (", "help = (", PYTORCH),
    Fault("a word of training is known only as it is in Python", "`shardc explain gradient accumulation`",
          "ops/torch_words.py", '.replace(" ", "_")', "", PYTORCH),
    Fault("every comparison with one sign is a slice", "SH110", "syntax/mistakes.py",
          'expects="EQUAL", within="["', 'expects="EQUAL"', ("syntax/test_syntax.py",)),
    Fault("a text of the library stands on its head", "what `shardc explain Llama` says", "cli/library.py",
          "lines[:count][::step]", "lines[:count]", REFERENCE),
    Fault("the list cuts a sentence at a number of points", "what `shardc explain` says of `categories`",
          "cli/reference.py", r"(?<=[^.]\.)", r"(?<=\.)", REFERENCE),
    Fault("a page is as wide as its file", "`shardc explain` on a narrow terminal", "cli/commands/explain.py",
          "if room is None:\n        return page", "if page:\n        return page", REFERENCE),
)  # fmt: skip
