"""`python -m tests.hostile --count 20000 --folder DIR`: programs with hostile names, texts, paths and comments,
compiled beside their plain twins. Prints how many were the same, refused and failed.

Outcomes are kept in DIR as they come, so that a run that was ended goes on where it was; failing programs stay there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.hostile.programs import program
from tests.hostile.texts import Hostile
from tests.hostile.trial import FAILED, Outcome, trial


def _line(counts: Counter[str], files: int) -> str:
    return ", ".join(
        [f"{sum(counts.values())} programs", *(f"{n} {kind}" for kind, n in counts.items()), f"{files} files"]
    )


def main(arguments: Sequence[str]) -> int:
    """0 where no program failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--folder", type=Path, help="where outcomes are kept")
    options = parser.parse_args(arguments)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="hostile-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"outcomes are kept in {folder}", flush=True)
    kept = folder / "outcomes.jsonl"
    known = [Outcome(**json.loads(line)) for line in kept.read_text().splitlines()] if kept.exists() else []
    wanted = range(options.seed, options.seed + options.count)
    done = {outcome.seed: outcome for outcome in known if outcome.seed in wanted}
    counts, files, told = Counter(o.kind for o in done.values()), sum(o.files for o in done.values()), time.monotonic()
    with kept.open("a", buffering=1) as file:
        for seed in (seed for seed in wanted if seed not in done):
            outcome = trial(seed)
            file.write(json.dumps(asdict(outcome)) + "\n")
            counts[outcome.kind] += 1
            files += outcome.files
            if outcome.kind == FAILED:
                text = program(seed, Hostile(seed)).text
                (folder / f"{seed}.shard").write_text(text, "utf-8", "surrogatepass", newline="")
                print(f"seed {seed}: {outcome.detail!a}", flush=True)
            if time.monotonic() - told > 30:
                told = time.monotonic()
                print(_line(counts, files), flush=True)
    print(_line(counts, files))
    return 1 if counts[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
