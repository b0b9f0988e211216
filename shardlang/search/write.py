"""A found strategy -> the text of it that a person could have written, and the file with it in its
place."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.format.format import format_file
from shardlang.search.print_rules import FOUND
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import parse

MARK = "## tuned"


def text_of(strategy: ast.Strategy, reasons: Sequence[str]) -> str:
    """The strategy in its one form, below its reasons; what nobody wrote is marked."""
    lines = [_marked(rule) for rule in strategy.rules]
    title = strategy.name.text
    written = "\n".join([*(f"## {reason}" for reason in reasons), f"strategy {title} {{", *lines, "}", ""])
    sink = Sink()
    file = parse(Source(FOUND, written), sink)
    if sink.failed:
        raise InternalError(f"a found strategy does not parse: {sink.found[0].message}")
    return format_file(file)


def _marked(rule: ast.Rule) -> str:
    text = rule.span.text
    found = rule.span.source.name == FOUND and "\n" not in text
    return f"{text}  # found" if found and not isinstance(rule, ast.Mesh) else text


def written_into(file: ast.File, behind: str | None, title: str, text: str) -> str | None:
    """The text of a file with a strategy behind the one called `behind` (by default the last), or
    where an earlier one that was tuned stands; None where one of that name was not tuned."""
    whole = file.source.text
    named = {strategy.name.text: strategy.span for strategy in file.strategies}
    if title in named:
        start = _tuned(whole, named[title].start)
        return None if start is None else whole[:start] + text.rstrip("\n") + whole[named[title].end :]
    after = named.get(behind or "") or (file.strategies[-1].span if file.strategies else None)
    end = after.end if after is not None else len(whole)
    line = re.compile(r"[^\r\n]*").match(whole, end)
    end = line.end() if line is not None else end  # behind a comment on the same line
    if after is None:
        return f"{whole}{'' if whole.endswith(chr(10)) or not whole else chr(10)}{chr(10) * bool(whole)}{text}"
    return f"{whole[:end]}\n\n{text.rstrip(chr(10))}{whole[end:]}"


def _tuned(whole: str, start: int) -> int | None:
    """Where the reasons of a tuned strategy begin, which are right before it."""
    lines = whole[:start].split("\n")[:-1]
    at = len(lines)
    while at and lines[at - 1].startswith("##"):
        at -= 1
    if at == len(lines) or not lines[at].startswith(MARK):
        return None
    return sum(len(line) + 1 for line in lines[:at])
