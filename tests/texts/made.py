"""What cases are made with: errors and diagnostics as their users see them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.full import full
from shardlang.errors import RunError
from shardlang.sources.source import Source, Span
from tests import warm
from tests.cli.process import SHARDC


def told(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """What the RunError says that a call raises."""
    try:
        found = call(*given, **named)
    except RunError as error:
        return str(error)
    raise AssertionError(f"no error: {found}")


def reported(call: Callable[[Sink], object]) -> str:
    """What is shown of the diagnostics that a call reports."""
    sink = Sink()
    call(sink)
    return full(sink.found).rstrip("\n")


def said(*words: str, before: str = "") -> str:
    """What a command of `shardc` says of its mistakes, in this folder. before: what is changed in its process first."""
    done = warm.run([*SHARDC[:2], f"{before}\n{SHARDC[2]}", *words])
    assert done.returncode, done.stdout
    text = done.stderr.replace(f"{Path.cwd()}/", "")
    return re.sub(r"\n\n\d+ errors?\n$", "", text)


def place(name: str, text: str, line: str) -> Span:
    """The place of a line in a file with this text."""
    at = text.index(line)
    return Span(Source(name, text), at, at + len(line))
