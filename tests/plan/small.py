"""The small programs that the language is explained with, with strategies of a test in place of their own."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str, strategies: str = "", **changes: str) -> str:
    """One of examples/. `batch="8"` changes the size of a dim. The result of the quickstart is called `y`."""
    text = (EXAMPLES / f"{name}.shard").read_text().replace("return a @ w2", "y = a @ w2\n    return y")
    text = re.sub(r"^strategy .*?^}\n", "", text, flags=re.MULTILINE | re.DOTALL)
    for dim, size in changes.items():
        text = re.sub(rf"\b{dim} = \d+", f"{dim} = {size}", text, count=1)
    return text.replace("train {", f"{strategies}\ntrain {{")


def strategy(rules: str) -> str:
    """A strategy of rules with semicolons between."""
    return f"strategy s {{\n  {rules.replace('; ', chr(10) + '  ')}\n}}\n"
