"""The report of a plan as text: as wide as the terminal, elsewhere 120 columns."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import click

from shardlang.cli import output
from shardlang.cli.plan_view.columns import Line
from shardlang.cli.plan_view.parameters import parameters
from shardlang.cli.plan_view.program import Detail, program
from shardlang.cli.plan_view.screen import heading, screen
from shardlang.display import safe

Found = Mapping[str, Any]
NARROWEST, PIPED = 80, 120
_STYLES: Mapping[str, Mapping[str, Any]] = {"title": {"bold": True}, "layer": {"bold": True}, "sent": {"fg": "cyan"}}


def print_plan(found: Found, detail: Detail, part: bool) -> None:
    """Prints a report, of a part of the model without what is about the whole."""
    coloured = output.coloured(sys.stdout)
    room = max(NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else PIPED
    for line in lines(found, room, detail, part):
        text = safe(line.text.rstrip())
        styled = click.style(text, **_STYLES[line.kind]) if coloured and line.kind else text
        output.write(f"{styled}\n", sys.stdout)


def lines(found: Found, room: int, detail: Detail, part: bool) -> Iterator[Line]:
    first = heading(found, room) if part else screen(found, room, detail.full)
    return chain(first, program(found, room, detail), parameters(found, room, detail.full))
