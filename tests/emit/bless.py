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
        files = emitted(case)
        if len(files) > 1:
            (GOLDEN / case.name).mkdir(exist_ok=True)
        for name, text in files.items():
            path = case.golden(name)
            before = path.read_text() if path.exists() else None
            path.write_text(text)
            print(f"{'same' if before == text else 'written'}  {path.relative_to(GOLDEN)}")


if __name__ == "__main__":
    main(sys.argv[1:])
