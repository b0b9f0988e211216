"""`python -m tests.documents.bless`: writes specs/reference.md anew from the declarations. Review the difference."""

from __future__ import annotations

from pathlib import Path

from shardlang.cli.reference import page

SPECS = Path(__file__).parents[2] / "specs"
REFERENCE = SPECS / "reference.md"

if __name__ == "__main__":
    REFERENCE.write_text(page(), "utf-8")
