"""The report of a plan as text: as wide as the terminal, elsewhere 120 columns."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

import click

from shardlang.cli import output
from shardlang.cli.columns import Line
from shardlang.cli.plan_parameters import parameters
from shardlang.cli.plan_program import Detail, program
from shardlang.cli.plan_screen import heading, screen
from shardlang.display import safe

Found = Mapping[str, Any]
NARROWEST, PIPED = 80, 120
_STYLES = {"title": {"bold": True}, "layer": {"bold": True}, "sent": {"fg": "cyan"}}


def print_plan(found: Found, detail: Detail, part: bool) -> None:
    """Prints a report, of a part of the model without what is about the whole."""
    coloured = output.coloured(sys.stdout)
    for line in _lines(found, _room(), detail, part):
        text = safe(line.text.rstrip())
        styled = click.style(text, **_STYLES[line.kind]) if coloured and line.kind else text
        output.write(f"{styled}\n", sys.stdout)


def _room() -> int:
    return max(NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else PIPED


def _lines(found: Found, room: int, detail: Detail, part: bool) -> Iterator[Line]:
    first = heading(found, room) if part else screen(found, room, detail.full)
    return chain(first, program(found, room, detail), parameters(found, room, detail.full))


def part_of(found: Found, selects: Callable[[str], str]) -> dict[str, Any]:
    """The report with those operators, layers and parameters alone whose paths a selector covers."""

    def named(path: str) -> bool:
        return bool(selects(path))

    def items(given: list[Found], first: str, layer: str) -> list[Found]:
        """Those of `given` that are selected; written for layer `first`, they are looked at as those of `layer`."""
        kept = []
        for item in given:
            if "layers" in item:
                inner = block(item, first, layer)
                kept += [inner] if inner is not None else []
            elif named(_moved(found["operators"][item["operator"]]["name"], first, layer)):
                kept.append(item)
        return kept

    def block(item: Found, first: str, layer: str) -> Found | None:
        mine = item["layers"][0]
        chosen = {}
        for path in item["layers"]:
            here = _moved(path, first, layer)
            inside = item["items"] if here and named(here) else items(item["items"], *((mine, here) if mine else (first, layer)))
            chosen.update({path: inside} if inside else {})
        return {**item, "written": mine, "layers": list(chosen), "items": next(iter(chosen.values()))} if chosen else None

    kept = [p for p in found["parameters"] if named(p["path"])]
    return {**found, "blocks": items(found["blocks"], "", ""), "parameters": kept}


def _moved(path: str, first: str, layer: str) -> str:
    """A path below layer `first` as that below `layer`."""
    return layer + path[len(first) :] if first and path.startswith(first) else path
