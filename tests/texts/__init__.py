"""What errors say besides their message, of every code: `python -m tests.texts` replaces all helps, places or labels
and lists the codes whose tests do not notice.

A code that checking a program shows has a `diagnostics` block in its page (`tests/mdtest.py`). The pages of the others
show in ```text blocks what the cases of this folder make (`cases.py`), or the modules of
`tests/importing/test_pages.py`.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

from shardlang.diagnostics.diagnostic import Sink
from shardlang.errors import RunError
from shardlang.sources.source import Span

# What is replaced, if anything: also in processes that tests start.
KIND = "TESTS_TEXTS"
KINDS = ("help", "place", "label")
OTHER = "another text"


def replace() -> None:
    """Replaces all texts of the kind that the environment names."""
    kind = os.environ.get(KIND)
    if kind is None:
        return
    report, raised = Sink.report, RunError.__init__

    def reported(self: Sink, code: str, message: str, span: Span | None, label: str = "", **more: Any) -> None:
        if kind == "help" and more.get("help"):
            more["help"] = OTHER
        if kind == "place" and span is not None:
            span = Span(span.source, 0, 0)
        if kind == "label":
            label = label and OTHER
            if span is not None:
                placed = self.placed(span)
                span = Span(span.source, span.start, span.end, tuple((at, OTHER) for at, _ in placed.callers))
            more["labels"] = [(at, text and OTHER) for at, text in more.get("labels", ())]
        report(self, code, message, span, label, **more)

    def made(self: RunError, code: str, message: str, **more: Any) -> None:
        if kind == "help" and more.get("help"):
            more["help"] = OTHER
        if kind == "place" and more.get("file") is not None:
            more.update(file=Path(OTHER), line=None)
        raised(self, code, message, **more)

    Sink.report, RunError.__init__ = reported, made  # type: ignore[method-assign]
    if kind == "place" and importlib.util.find_spec("torch"):
        from shardlang.runtime.launch import rank

        rank.cited = lambda *_: OTHER
