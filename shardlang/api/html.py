"""Text as a terminal shows it -> HTML for a notebook: escaped, without script, nothing from
elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

# In a notebook the page decides the colours, light or dark.
_STYLE = "margin: 0; white-space: pre; overflow-x: auto; line-height: 1.3"


def text(lines: Iterable[str]) -> str:
    """Lines with equal widths of letters."""
    return f'<pre style="{_STYLE}">{escape(chr(10).join(lines))}</pre>'


def folded(title: str, lines: Iterable[str]) -> str:
    """Lines under a title that shows and hides them."""
    return f"<details><summary>{escape(title)}</summary>{text(lines)}</details>"
