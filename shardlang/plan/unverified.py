"""The operators and optimizers that a plan uses and its file declares -> the reports on those that
nothing has verified."""

from __future__ import annotations

from shardlang.check.own import OwnDecl, OwnDefinition
from shardlang.ops.declared import DECLARED, Declaration
from shardlang.plan.plan import Plan
from shardlang.sources.files import STDIN
from shardlang.sources.source import Span


def unverified(plan: Plan) -> list[tuple[str, Span, str, str]]:
    """The reports on declared operators that have no current lock, each where it is first
    called."""
    called = [(mine, op.span, "called here") for op in plan.graph.ops if (mine := op.attrs.get(DECLARED)) is not None]
    own = plan.program.training.own if plan.program.training is not None else ()
    found: dict[str, tuple[str, Span, str, str]] = {}
    for declared, span, label in (*called, *((each, each.span, "declared here") for each in own)):
        kind = getattr(declared, "kind", "operator")
        if plan.program.source.name == STDIN:
            fact, help = piped(declared)
        elif declared.verified:
            continue
        else:
            limit = "may be split as" if kind == "operator" else "needs no more than"
            fact = f"{kind} `{declared.name}` is unverified: nothing proves that it {limit} `{declared.home}` says"
            help = f"`shardc verify {declared.home}`"
        found.setdefault(declared.name, (fact, span, label, help))
    return list(found.values())


def piped(declared: Declaration | OwnDefinition | OwnDecl) -> tuple[str, str]:
    """The mistake of a program from a pipe that declares Python, and what helps."""
    kind = getattr(declared, "kind", "operator")
    fact = f"{kind} `{declared.name}` is in `{declared.file}`, and a program from a pipe loads no file"
    return fact, "save the program as a file"
