"""An exception that nobody expected -> the diagnostic that tells of it, with what a report needs."""

from __future__ import annotations

import sys

from shardlang import __version__
from shardlang.diagnostics.diagnostic import Diagnostic, Sink


def fault_of_ours(fault: BaseException, command: str) -> Diagnostic:
    """SH900. command: the one that met the fault."""
    sink, what = Sink(), str(fault) or type(fault).__name__
    sink.report(
        "SH900", f"a fault of shardc, not of your program: {type(fault).__name__}: {what}", None,
        notes=(f"shardc {__version__}, Python {sys.version.split()[0]}; the command was: {command}",),
        help="please report it with the program and the traceback, which `export SHARDC_TRACEBACK=1` makes it print",
    )  # fmt: skip
    return sink.found[0]
