"""`shardc fmt`: programs in their one form, written in place, or what that would change."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from shardlang import driver
from shardlang.cli import candidates, options, output
from shardlang.cli.files import replace
from shardlang.diagnostics.diagnostic import Sink
from shardlang.terminal.display import one_line


@click.command("fmt", epilog="Examples: shardc fmt *.shard; shardc fmt --check *.shard; shardc fmt - < model.shard")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=candidates.programs)
@click.option("--check", is_flag=True, help="Write nothing; end with 1 if a file is not in its form.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
def command(files: tuple[str, ...], check: bool, diff: bool) -> int:
    """Write programs in their one form.

    `-` formats the standard input to the standard output. A file with syntax errors is left as it
    is."""
    code = 0
    for file in files:
        sink = Sink()
        source = options.source(file)
        text = driver.format_source(source, sink)
        code = max(code, output.show(sink))
        if text is None:
            continue
        # Byte for byte, so that a byte order mark counts as a difference.
        changed = text.encode() != (source.text.encode() if file == "-" else Path(file).read_bytes())
        if diff and changed:
            shown = one_line if sys.stdout.isatty() else str
            output.write("".join(f"{shown(line)}\n" for line in _diff(source.name, source.text, text)), sys.stdout)
        if check and changed:
            code = max(code, 1)
            output.tell(f"{source.name}: not in its form; `shardc fmt {file}` writes it", sys.stderr)
        if check or diff:
            continue
        if file == "-":
            output.write(text, sys.stdout)
        elif changed:
            replace(Path(file), text)
            output.tell(f"formatted {file}")
    return code


def _diff(name: str, before: str, after: str) -> Iterator[str]:
    """The lines of a diff; a line ends where the language ends it."""
    old, new = (text.removesuffix("\n").split("\n") for text in (before, after))
    return difflib.unified_diff(old, new, one_line(name), f"{one_line(name)} (formatted)", lineterm="")
