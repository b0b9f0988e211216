"""Faults of `scan`: its steps, what is handed on, and the way back through them."""

from __future__ import annotations

from tests.mutants.fault import Fault

SCAN = ("end_to_end/test_scan.py",)

FAULTS = (
    Fault("a step begins where the first did", "what a scan remembers", "check/model/scan.py",
          "outputs, states = found", "outputs, last = found", SCAN),
    Fault("a scan goes through its dim from the end", "the order of steps", "check/model/scan.py",
          'places = {"places": ((asked.over, at),)}', 'places = {"places": ((asked.over, -1 - at),)}', SCAN),
    Fault("no gradient goes back through a state", "backward through all steps of a scan", "check/model/scan.py",
          "return values[:outputs], list(values[outputs:])",
          'passed = [infer("detach", [v], [asked.span], [v.name], {}, None, asked.span, asked.frame)\n'
          "              for v in values[outputs:]]\n    return values[:outputs], passed", SCAN),
)  # fmt: skip
