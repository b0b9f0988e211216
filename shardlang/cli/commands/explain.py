"""`shardc explain`: the page of a code, what is declared under a name, or the list of all; on a
terminal in lines that fit it."""

from __future__ import annotations

import itertools
import re
import shutil
import sys
import textwrap

import click

from shardlang.cli import candidates, output
from shardlang.diagnostics import explain_pages
from shardlang.hints.nearest import offer

# What a line begins with that stays as it is in a page: code, a table, a heading.
_KEPT = ("    ", "```", "|", "#")


@click.command(
    "explain", epilog="Examples: shardc explain SH304; shardc explain matmul; shardc explain adamw; shardc explain"
)
@click.argument("words", nargs=-1, metavar="[CODE|NAME]", shell_complete=candidates.explained)
def command(words: tuple[str, ...]) -> None:
    """Print the page of a diagnostic's code: what it means, and an example.

    Or what an operator, an optimizer, a schedule of the learning rate, a data source or an initial
    value is: its arguments with their defaults, its meaning, and which dims may be split. Or a word
    of the language, a setting, a library (`std.nn`) or a model in one (`Linear`).

    Words of others, such as fsdp or gradient accumulation, are told what is written here.

    Without a word, list all."""
    word = " ".join(words) or None
    if word is not None and re.fullmatch(r"(SH)?[0-9]+", word, re.IGNORECASE):
        code = f"SH{word.upper().removeprefix('SH')}"
        if code not in explain_pages.pages():
            raise click.UsageError(
                f"there is no code `{code}`; {offer(code, explain_pages.pages(), '`shardc explain` lists all')}"
            )
        output.write(_fitted(explain_pages.page(code)), sys.stdout)
        return
    from shardlang.cli import reference

    names = reference.names()
    if word is None:
        lines = [f"{known}  {explain_pages.title(known)}" for known in explain_pages.pages()]
        lines += [f"{name}  {reference.summary(name)}" for name in dict.fromkeys(names)]
        room = _room()
        lines = lines if room is None else [textwrap.fill(line, room, subsequent_indent="    ") for line in lines]
        output.write("\n".join(lines) + "\n", sys.stdout)
        return
    try:
        output.write(_fitted(reference.entry(word)), sys.stdout)
    except KeyError:
        raise click.UsageError(reference.absent(word)) from None


def _room() -> int | None:
    """The columns of the terminal; None where the output is none."""
    return max(40, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def _fitted(page: str) -> str:
    """A page of Markdown whose paragraphs fit the terminal."""
    room = _room()
    if room is None:
        return page
    from shardlang.cli.reference import fitted

    parts = page.split("\n\n")
    code = list(itertools.accumulate(part.count("```") for part in parts))
    shown = [
        part if inside % 2 or part.startswith(_KEPT) or "```" in part else fitted(part, min(room, 100))
        for part, inside in zip(parts, code, strict=True)
    ]
    return "\n\n".join(shown)
