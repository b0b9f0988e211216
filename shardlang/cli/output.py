"""The lines, the JSON and the diagnostics of commands, by the renderer that is asked for.

Decides on the stream, its width and whether it has colour, and on the exit code after a
RunError."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

import click

from shardlang.cli.plan_view.columns import PlanLine
from shardlang.diagnostics.diagnostic import Severity, Sink
from shardlang.diagnostics.rendered import rendered
from shardlang.diagnostics.runs import in_runs
from shardlang.errors import RunError, lacking
from shardlang.terminal.display import one_line, safe

NARROWEST, PIPED = 80, 120
_STYLES: Mapping[str, Mapping[str, Any]] = {"title": {"bold": True}, "layer": {"bold": True}, "sent": {"fg": "cyan"}}


def coloured(stream: TextIO) -> bool:
    """A terminal, unless NO_COLOR (https://no-color.org) or a dumb one asks for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write(text: str, stream: TextIO) -> None:
    """Writes what the stream's encoding lacks as escapes."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding))


def tell(text: str, stream: TextIO | None = None) -> None:
    """Writes one line, to standard output by default, whatever names the text holds."""
    write(f"{one_line(text)}\n", stream or sys.stdout)


def show_json(found: Any) -> None:
    """Prints what a command found, in lines."""
    import json

    print(json.dumps(found, indent=1))


def answer(found: Any, as_json: bool, made: Callable[[int], Iterable[PlanLine]]) -> None:
    """Prints what a command found as JSON, or the lines that are made for the width of the
    terminal."""
    if as_json:
        return show_json(found)
    styled, terminal = coloured(sys.stdout), sys.stdout.isatty()
    room = max(NARROWEST, shutil.get_terminal_size().columns) if terminal else PIPED
    for line in made(room):
        text = safe(line.text.rstrip())
        write(f"{click.style(text, **_STYLES[line.kind]) if styled and line.kind else text}\n", sys.stdout)


@contextmanager
def ending(code: int) -> Iterator[None]:
    """Ends the command with an exit code after a RunError, which is told."""
    try:
        yield
    except RunError as error:
        print(error, file=sys.stderr)
        raise click.exceptions.Exit(code) from None


def show(sink: Sink, stream: TextIO | None = None, output: str = "full", besides: Sink | None = None) -> int:
    """Writes all diagnostics (by default to standard error) and their count; exit code 0 or 1.
    besides: others, that do not keep the command from its answer."""
    if besides is not None:
        sink = Sink([*besides.found, *sink.found])
    stream, found = stream or sys.stderr, in_runs(sink.found)
    write(rendered(found, output, coloured(stream)), stream)
    if found and output == "full":
        counts = ((s.value, sum(d.severity is s for d in found)) for s in Severity)
        write(", ".join(f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts if n) + "\n", stream)
    return 1 if sink.failed else 0


def show_fault(fault: Exception) -> int:
    """Tells what to install, where a package of an extra is missing or cannot be loaded; else of a
    fault of ours and how to report it, with the traceback only if SHARDC_TRACEBACK is set."""
    from shardlang.diagnostics.fault import fault_of_ours

    sink = Sink()
    missing = lacking(fault, "this command") if isinstance(fault, ImportError) else None
    if missing is not None:
        sink.report(missing.code, missing.message, None, help=missing.help)
        return show(sink)
    sink.add(fault_of_ours(fault, " ".join(["shardc", *sys.argv[1:]])))
    if os.environ.get("SHARDC_TRACEBACK"):
        write("".join(traceback.format_exception(fault)), sys.stderr)
    return show(sink)
