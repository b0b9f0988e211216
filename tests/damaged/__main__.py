"""Damages checkpoints, each in another way, and says whether runs that go on are right.

    python -m tests.damaged [--count 60] [--first 0] [--seed 0] [--folder DIR]

--first: the number of the first trial. --folder: where runs that are not as they should be stay.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.damaged.damaged import table, trials


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.damaged")
    for name, default in (("--count", 60), ("--first", 0), ("--seed", 0)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="damaged-"))
    found = trials(given.count, folder, given.seed, first=given.first)
    print(table(found))
    return 1 if any(each.wrong for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
