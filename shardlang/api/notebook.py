"""`%load_ext shardlang`: a cell that begins with `%%shard NAME` is a program, which is checked and
bound to NAME."""

from __future__ import annotations

from typing import Any

from shardlang.api.calls import check, source
from shardlang.api.values import Report
from shardlang.sources.source import Source


class Cell:
    """A program as the notebook shows it: its text in colours, then what is to be said of it."""

    def __init__(self, program: Source, report: Report) -> None:
        self.program, self.report = program, report

    def __repr__(self) -> str:
        return self.report.render().rstrip() or f"{self.program.name}: no mistake"

    def _repr_html_(self) -> str:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter

        from shardlang.syntax.highlight import ShardLexer

        shown: str = highlight(self.program.text, ShardLexer(), HtmlFormatter(noclasses=True, nobackground=True))
        return shown + self.report._repr_html_()


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython for `%load_ext shardlang`."""

    def shard(line: str, cell: str) -> Cell:
        """`%%shard NAME`: checks the program in this cell and binds NAME to it."""
        name = line.strip()
        if not name.isidentifier():
            raise ValueError(f"`%%shard NAME`: `{name}` is no name of Python")
        program = source(cell, f"{name}.shard")
        shell.user_ns[name] = program
        return Cell(program, check(program))

    shell.register_magic_function(shard, magic_kind="cell")
