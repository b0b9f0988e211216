"""Kills ranks of runs at random moments, and says whether all went on.

    python -m tests.kills [--count 200] [--stops 20] [--saves 60] [--torchrun 2] [--seed 0] [--folder DIR]

--saves: kills during a save, at least. --torchrun: kills under torchrun itself, whose ranks import torch at each start;
the others of that half have what torchrun gives to ranks. --folder: where runs that are not as they should be stay.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.kills.kills import STALL, trials


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kills")
    for name, default in (("--count", 200), ("--stops", 20), ("--saves", None), ("--torchrun", 2), ("--seed", 0)):
        parser.add_argument(name, type=int, default=default)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    saves = given.saves if given.saves is not None else given.count * 3 // 10
    folder = given.folder or Path(tempfile.mkdtemp(prefix="kills-"))
    begun = time.monotonic()
    found = trials(given.count, given.stops, saves, folder, given.seed, given.torchrun)
    kills, stops = found[: given.count], found[given.count :]
    during = sum(each.hit is not None and each.hit.saving for each in kills)
    ways = {way: sum(each.way == way for each in kills) for way in ("forked", "apart", "torchrun")}
    went_on, told = (sum(not each.wrong for each in some) for some in (kills, stops))
    print(f"{went_on} of {len(kills)} killed went on with the same numbers; {during} during a save; {ways}")
    longest = max((each.seconds for each in stops), default=0.0)
    print(f"{told} of {len(stops)} stopped ended, after {longest:.1f} s at most (the limit is {STALL + 5:.1f} s)")
    print(f"{time.monotonic() - begun:.0f} s")
    return 0 if went_on + told == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
