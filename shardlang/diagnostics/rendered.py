"""Diagnostics -> their text in one of four forms; of very many the first, and a count of the rest.

A file may have a mistake in each of its lines. All are found and counted; as many are shown as
someone reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from shardlang.diagnostics.diagnostic import ORDER, SHOWN, Diagnostic

OUTPUTS = ("full", "concise", "json", "sarif")


def rendered(found: Sequence[Diagnostic], output: str, colour: bool = False) -> str:
    """The text of diagnostics in one of OUTPUTS; each renderer is imported when it is used."""
    first, rest = shown(found)
    if output == "sarif":
        from shardlang.diagnostics.sarif import sarif

        return sarif(first, rest)
    if output == "full":
        from shardlang.diagnostics.full import full

        return full(first, colour) + (f"{_more(rest)}\n\n" if rest else "")
    from shardlang.diagnostics.lines import concise, jsonlines

    if output == "json":
        return jsonlines(first) + (f"{json.dumps({'more': rest.total(), 'codes': rest})}\n" if rest else "")
    return concise(first) + (f"shardc: note: {_more(rest)}\n" if rest else "")


def shown(found: Sequence[Diagnostic]) -> tuple[Sequence[Diagnostic], Counter[str]]:
    """The diagnostics to show, the most severe if there are very many, in their order; and how many
    of the rest have each code."""
    if len(found) <= SHOWN:
        return found, Counter()
    ordered = sorted(range(len(found)), key=lambda at: (ORDER.index(found[at].severity), at))
    return [found[at] for at in sorted(ordered[:SHOWN])], Counter(found[at].code for at in sorted(ordered[SHOWN:]))


def _more(rest: Counter[str]) -> str:
    listed = ", ".join(f"{count} of {code}" for code, count in rest.most_common())
    return f"and {rest.total()} more, which are not shown: {listed}"
