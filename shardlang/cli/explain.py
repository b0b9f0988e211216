"""`shardc explain`: the page of a code, or the list of all."""

from __future__ import annotations

import sys

import click

from shardlang.cli import output
from shardlang.diagnostics import registry
from shardlang.diagnostics.nearest import nearest


@click.command("explain", epilog="Examples: shardc explain SH304; shardc explain")
@click.argument("code", required=False, metavar="[CODE]")
def command(code: str | None) -> None:
    """Print the page of a diagnostic's code: what it means, and an example.

    Without a code, list all.
    """
    if code is None:
        lines = [f"{known}  {title}" for known, title in registry.titles().items()]
        output.write("\n".join(lines) + "\n", sys.stdout)
        return
    wanted = code.upper() if code.upper().startswith("SH") else f"SH{code}"
    if wanted not in registry.pages():
        close = nearest(wanted, registry.pages())
        hint = f"did you mean {close}?" if close else "`shardc explain` lists all"
        raise click.UsageError(f"there is no code `{code}`; {hint}")
    output.write(registry.page(wanted), sys.stdout)
