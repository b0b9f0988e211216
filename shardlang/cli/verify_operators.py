"""`shardc verify my_ops.shard`: the operators and optimizers that a file declares, held to that.

The lock beside it names those that pass."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shardlang.cli import output
from shardlang.cli.files import claimed
from shardlang.cli.files import replace as write
from shardlang.diagnostics.diagnostic import Sink
from shardlang.disk.overwrite_guard import LOCK
from shardlang.errors import RunError
from shardlang.extensions import locks

if TYPE_CHECKING:
    from shardlang.check.own import OwnDecl
    from shardlang.check.values import OperatorDecl
    from shardlang.interpret.trials.declared import TrialVerdict


def verify(name: str, operators: Sequence[OperatorDecl | OwnDecl], as_json: bool, limit: float) -> int:
    """Verifies the operators and optimizers of file `name`, and writes its lock; the exit code.
    limit: the seconds that a trial under one split may take."""
    from shardlang.interpret.trials.processes import verify

    sink, told, passed = Sink(), [], {}
    lock = Path(os.path.splitext(name)[0] + ".lock")
    claimed(lock, LOCK)
    for operator in operators:
        begun = time.perf_counter()
        try:
            verdict = verify(operator.declaration, limit)
        except RunError as failure:
            error = _from_here(failure)
            print(error, file=sys.stderr)
            return 3
        told.append((verdict, time.perf_counter() - begun))
        if verdict.refused:
            _report(verdict, operator, sink)
        else:
            declaration = operator.declaration
            passed[declaration.name] = locks.LockEntry(declaration.digest, declaration.source)
    write(lock, locks.written(passed))
    if as_json:
        print(json.dumps({"file": name, "lock": str(lock), "operators": [_plain(*one) for one in told]}, indent=2))
    else:
        for verdict, seconds in told:
            if not verdict.refused:
                output.tell(_words(verdict, seconds))
        output.tell(f"wrote {lock}")
        output.show(sink)
    return 1 if sink.failed else 0


def _from_here(error: RunError) -> RunError:
    """The error, its file as it is from here."""
    if error.file is None:
        return error
    return RunError(error.code, error.message, file=Path(os.path.relpath(error.file)), line=error.line, help=error.help)


def _report(verdict: TrialVerdict, operator: OperatorDecl | OwnDecl, sink: Sink) -> None:
    fact = f"`{verdict.declaration.name}` is not what it is declared to be: {verdict.refused}"
    notes = [f"tried with {verdict.at}"] if verdict.at else []
    sink.report("SH618", fact, operator.span, "declared here", notes=notes, help=verdict.help)


def _words(verdict: TrialVerdict, seconds: float) -> str:
    free = " and ".join(f"`{name}`" for name in verdict.free)
    optimizer = getattr(verdict.declaration, "kind", "") == "optimizer"
    more = f"; {f'`needs {verdict.free[0]}` would do' if optimizer else f'{free} could be free'}" if free else ""
    sizes = "shapes" if optimizer else "sets of sizes"
    name = verdict.declaration.name
    return f"{name}: {verdict.tried} splits at {verdict.sets} {sizes} agree ({seconds:.1f} s){more}"


def _plain(verdict: TrialVerdict, seconds: float) -> dict[str, object]:
    return {
        "operator": verdict.declaration.name, "ok": not verdict.refused, "refused": verdict.refused or None,
        "splits": verdict.tried, "sets": verdict.sets, "could_be_free": list(verdict.free),
        "seconds": round(seconds, 3),
    }  # fmt: skip
