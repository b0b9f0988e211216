"""A failing program -> a smaller one that fails alike: without lines, then without tokens, then without letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.fuzz.case import Case
from tests.fuzz.pool import outcomes
from tests.fuzz.trial import Fault
from tests.fuzz.words import pieces

TRIALS = 600


def shrunk(case: Case, fault: Fault) -> Case:
    """The smallest found in a bounded number of trials. Command lines and folders stay as they are."""
    left = [TRIALS if fault.sort not in ("time", "memory", "death") else 20]

    def fails(text: str) -> bool:
        if left[0] <= 0:
            return False
        left[0] -= 1
        trial = replace(case, text=text.encode("utf-8", "surrogatepass"))
        (outcome,) = outcomes(lambda index: trial, [0])
        return any((f.sort, f.where) == (fault.sort, fault.where) for f in outcome.faults)

    try:
        text = case.text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return case
    if case.argv is not None or case.files or not fails(text):
        return case
    for split in (lambda t: t.splitlines(keepends=True), pieces, list):
        text = _reduced(split(text), fails)
    return replace(case, text=text.encode("utf-8", "surrogatepass"))


def _reduced(parts: Sequence[str], fails: Callable[[str], bool]) -> str:
    """Takes away ever smaller runs of parts while what is left still fails (delta debugging)."""
    parts, size = list(parts), max(1, len(parts) // 2)
    while True:
        at = 0
        while at < len(parts):
            rest = [*parts[:at], *parts[at + size :]]
            if rest and fails("".join(rest)):
                parts = rest
            else:
                at += size
        if size == 1:
            return "".join(parts)
        size //= 2
