"""`shardc lsp`: the language server, for editors."""

from __future__ import annotations

import os
import stat
import sys

import click


@click.command("lsp", epilog="Example: an editor starts `shardc lsp`; editors/README.md says how in each")
@click.option("--stdio", is_flag=True, help="Speak over standard input and output, as it always does.")
def command(stdio: bool) -> None:
    """Serve editors: mistakes as typed, layouts, bytes and memory beside the code.

    It speaks the language server protocol over standard input and output."""
    kind = os.fstat(sys.stdin.fileno()).st_mode
    if not stat.S_ISFIFO(kind) and not stat.S_ISSOCK(kind):
        raise click.UsageError("it speaks with an editor, which starts it with pipes; editors/README.md says how")
    from shardlang.lsp.serve import serve

    serve(_page)


def _page(name: str) -> str:
    """It is read when it is first asked for."""
    from shardlang.cli.reference import entry

    return entry(name)
