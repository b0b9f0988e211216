"""`shardc explain`: the page of a code, what is declared under a name, or the list of all."""

from __future__ import annotations

import re
import sys

import click

from shardlang.cli import output
from shardlang.diagnostics import explain_pages
from shardlang.diagnostics.nearest import offer

_ALL = "`shardc explain` lists all"


@click.command(
    "explain", epilog="Examples: shardc explain SH304; shardc explain matmul; shardc explain adamw; shardc explain"
)
@click.argument("word", required=False, metavar="[CODE|NAME]")
def command(word: str | None) -> None:
    """Print the page of a diagnostic's code: what it means, and an example.

    Or what an operator, an optimizer, a schedule of the learning rate, a data source or an initial
    value is: its arguments with their defaults, its meaning, and which dims may be split.

    Without a word, list all."""
    if word is not None and re.fullmatch(r"(SH)?[0-9]+", word, re.IGNORECASE):
        code = f"SH{word.upper().removeprefix('SH')}"
        if code not in explain_pages.pages():
            raise click.UsageError(f"there is no code `{code}`; {offer(code, explain_pages.pages(), _ALL)}")
        output.write(explain_pages.page(code), sys.stdout)
        return
    from shardlang.cli import reference

    names = reference.names()
    if word is None:
        lines = [f"{known}  {explain_pages.title(known)}" for known in explain_pages.pages()]
        lines += [f"{name}  {reference.summary(name)}" for name in dict.fromkeys(names)]
        output.write("\n".join(lines) + "\n", sys.stdout)
    elif word in names:
        output.write(reference.entry(word), sys.stdout)
    else:
        hint = offer(word, [*names, *explain_pages.pages()], _ALL)
        raise click.UsageError(f"there is nothing called `{word}` to explain; {hint}")
