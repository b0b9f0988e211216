"""Operators of a module, of which no dim may be split -> those with dims that need not be whole.

The trial of `shardc verify` says so, here with the declarations in a folder of their own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from shardlang import driver
from shardlang.check.values import OperatorDecl
from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.errors import RunError
from shardlang.importing.opaque.operations import Operations
from shardlang.interpret.trials.declared import TrialVerdict
from shardlang.interpret.trials.processes import verify
from shardlang.sources.source import Source


def freed(operations: Operations, folder: Path, name: str) -> str:
    """The text of the declarations, in files `name.shard` and `name.py` of the folder, which it
    writes. RunError SH601 where an operator is none that the language can have."""
    python = f"{name}.py"
    (folder / python).write_text(operations.python(), "utf-8")
    free: dict[str, Collection[str]] = {}
    home = folder / f"{name}.shard"
    for operator in _declared(operations, home, python, free):
        verdict = _passed(verify(operator.declaration), operations)
        free[operator.declaration.name] = verdict.free
    # Dims that may be split each alone are tried together.
    while True:
        again = False
        for operator in _declared(operations, home, python, free):
            there = operator.declaration.name
            verdict = verify(operator.declaration)
            if verdict.refused and free[there]:
                free[there] = [dim for dim in free[there] if f"`{dim}`" not in verdict.help] if any(
                    f"`{dim}`" in verdict.help for dim in free[there]) else ()  # fmt: skip
                again = True
        if not again:
            return home.read_text("utf-8")


def _declared(operations: Operations, home: Path, python: str, free: dict[str, Collection[str]]) -> list[OperatorDecl]:
    sink = Sink()
    text = driver.format_source(Source(str(home), operations.declarations(python, free)), sink)
    if text is not None:
        home.write_text(text, "utf-8")
    found = [] if text is None else driver.declared_operators(Source(str(home), text), sink)
    if not found:
        raise InternalError(f"the operators of a module are declared wrongly: {sink.found[0].message}")
    return [each for each in found if isinstance(each, OperatorDecl)]


def _passed(verdict: TrialVerdict, operations: Operations) -> TrialVerdict:
    if verdict.refused:
        name = getattr(verdict.declaration, "name", "")
        about = next(each.about for each in operations.known.values() if each.name == name)
        fact = f"the language has no word for steps of the module ({about}), and `{name}` is none: {verdict.refused}"
        raise RunError("SH601", fact, help=f"{verdict.help or 'write them in operators of `shardc explain`'}")
    return verdict
