"""`python -m tests.emit.bless [NAME...]`: writes the goldens anew. Review the difference as the product that it is."""

from __future__ import annotations

import sys

from tests.emit.cases import CASES, GOLDEN, emitted


def main(names: list[str]) -> None:
    """Write the goldens of the named cases, or of all, and say which have changed."""
    GOLDEN.mkdir(exist_ok=True)
    for case in CASES:
        if names and case.name not in names:
            continue
        text = emitted(case)
        before = case.golden.read_text() if case.golden.exists() else None
        case.golden.write_text(text)
        print(f"{'same' if before == text else 'written'}  {case.golden.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
