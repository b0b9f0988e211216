"""Faults of the views: what differs between plans, what an alternative keeps, what gets into the page."""

from __future__ import annotations

from tests.mutants.fault import Fault

FAULTS = (
    Fault("an alternative stands beside the rule that it replaces", "figures of alternatives to a pin", "views/why.py",
          "rules = without(asked.strategy.rules, (ast.Pin, ast.Shard), selector_text(selector))",
          "rules = list(asked.strategy.rules)", ("views/test_why.py",)),
    Fault("only the first coordinate sends", "figures of alternatives with stages", "views/alternatives.py",
          "sum(sum(sent_bytes(of, mine)) for mine in lines)", "sum(sent_bytes(of, lines[0]))", ("views/test_why.py",)),
    Fault("the two plans change places", "rows of what differs", "views/diff.py",
          '{"what": name, "left": a, "right": b}', '{"what": name, "left": b, "right": a}', ("views/test_diff.py",)),
    Fault("a text of a program ends the page's script", "names in the page", "views/report.py",
          '.replace("<", "\\\\u003c")', "", ("views/test_report.py",)),
)  # fmt: skip
