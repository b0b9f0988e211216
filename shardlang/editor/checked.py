"""The text of an open file -> its checked program and its mistakes, as `shardc check` has them."""

from __future__ import annotations

from collections.abc import Sequence

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.frozen.records import dataclass
from shardlang.paths.patterns import Cuts
from shardlang.sources.source import Source
from shardlang.syntax import ast


@dataclass(frozen=True, slots=True)
class Checked:
    """program: None after mistakes; tree: partial after mistakes of syntax."""

    program: CheckedProgram | None
    found: Sequence[Diagnostic]
    tree: ast.File


class Kept:
    def check(self, source: Source) -> Checked:
        sink = Sink()

        def checked(runs: Cuts | None, sink: Sink) -> CheckedProgram | None:
            return driver.check_whole(source, sink, runs=runs)[0]

        program = driver.in_runs(checked, sink)
        return Checked(None if sink.failed else program, sink.found, driver.parse_source(source, Sink()))
