"""`python -m tests.mutants.pairs [--only NAME ...]`: makes faults, and runs generated pairs until one fails.

For each fault that `tests/generated` is to find: the first pair that fails in a copy of the tree that has the fault,
and what it says. Ends with 1 where none does. NAME is a part of a fault's name.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.generated.__main__ import REAL_SEEDS
from tests.generated.memory import RESERVED
from tests.generated.scope import BEYOND
from tests.generated.strategies import CUT
from tests.mutants.fault import ROOT, Fault
from tests.mutants.faults import FAULTS
from tests.mutants.trial import Copy

RUN = ("-m", "tests.generated")
HIDDEN = ("mask of minus infinity", CUT)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Of pairs with the features, among so many seeds on simulated ranks (every other one on a real one too), then so
    many on real ranks; `seed` is the first.
    """

    simulated: int = 0
    real: int = 0
    features: tuple[str, ...] = ()
    seed: int = 40_000


# A fault by its name, and the pairs among which one is to fail.
FOUND = {
    # metrics in stages and microbatches
    # numbers beside pending sums, and masks counted in the loss
    "numbers are no part of what is known ahead": Pairs(real=50, features=("masked loss",)),
    "numbers are not seen": Pairs(real=50, features=("number on a total",)),
    "two totals of which one is of data are no ratio": Pairs(simulated=400, features=("masked loss",)),
    # states that calls share, rows that constants look up
    "autograd counts the move of running statistics": Pairs(real=50, features=("shared state",), seed=624),
    "rows are counted of every operator": Pairs(simulated=200, features=("rows of a constant",)),
    "places of ids are rows of the table": Pairs(real=50, features=("rows of a constant",), seed=528),
    # memory of a device with `reserved`
    "what was given back is still there": Pairs(simulated=800, features=(RESERVED,)),
    "NCCL leaves all to torch": Pairs(simulated=800, features=(RESERVED,)),
    # queries that see no key
    "what a kernel says of a query that sees no key is believed": Pairs(real=30, features=HIDDEN),
    "minus infinity less minus infinity": Pairs(real=30, features=HIDDEN),
    # whole numbers, casts and saturation
    "numbers of a run in float64 are float32": Pairs(simulated=400, features=("integers in floats",)),
    "whole numbers are divided in float32": Pairs(simulated=400, features=("integers in floats",)),
    "f32 is f64 in a run in f64": Pairs(real=50, features=("cast of data",), seed=1204),
    # indices that the program computes
    "an index of no place is a zero": Pairs(real=10, features=(BEYOND,)),
    "the size is an index": Pairs(real=30, features=(BEYOND,)),
    "simulated ranks take any index": Pairs(simulated=200, features=(BEYOND,)),
    # gradients that are no numbers
    "gradients of nan are no mistake": Pairs(real=60, features=("gradient of nan",), seed=43_700),
    "a gradient that is not finite updates": Pairs(real=400, features=("gradient of nan",)),
    # gradients in another order of memory, empty parts of what is computed again
    "gradients of a backward in two lie as they were made": Pairs(
        real=60, features=("gradients as autograd makes them", "a backward in two")
    ),
    "an empty part keeps what its kernel keeps": Pairs(real=60, features=("empty parts",)),
    "silu is a quotient": Pairs(simulated=400, features=("saturated",), seed=41_657),
}


def search(copy: Copy, fault: Fault, pairs: Pairs) -> tuple[str, float]:
    """What the first failing pair says, with how many seeds it took, "" where none fails; and the seconds."""
    begun, before = time.monotonic(), (copy.root / "shardlang" / fault.file).read_text("utf-8")
    with tempfile.TemporaryDirectory(prefix="pairs-") as folder:
        given = ["--folder", folder, "--seed", str(pairs.seed), "--first", "--whole"]
        given += ["--feature", *pairs.features] if pairs.features else []
        try:
            copy.write(fault.file, fault.mutated(copy.root))
            done = copy.run(*RUN, *given, "--count", str(pairs.simulated), "--real", str(pairs.real))
        finally:
            copy.write(fault.file, before)
        failed = re.findall(r"^(?:wrong|crashed|invalid): (.+)$", done.stdout, re.MULTILINE)
        if failed:
            kind, _, seed = Path(failed[0]).stem.partition("-")
            tried = int(seed) % REAL_SEEDS - pairs.seed + 1
            again = {"simulated": "--count", "real": "--real"}[kind], "1", "--seed", f"{int(seed) % REAL_SEEDS}"
            if copy.run(*RUN, "--count", "0", *again).returncode:
                raise RuntimeError(f"{fault.name}: seed {seed} fails without it too")
            return f"{tried} seeds, {_said(Path(failed[0]))}", time.monotonic() - begun
    if done.returncode:
        raise RuntimeError(f"{fault.name}: {done.stderr[-2000:]}")
    return "", time.monotonic() - begun


def _said(file: Path) -> str:
    """The pair's seed, ranks and kind, and the last line of what went wrong."""
    head, *rest = (line for line in file.read_text("utf-8").splitlines() if line.startswith("#"))
    return f"{head.removeprefix('# ')}: {rest[-1].removeprefix('#').strip()}" if rest else head


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.pairs", description=__doc__)
    parser.add_argument("--only", metavar="NAME", nargs="+", default=[], help="faults whose name holds NAME")
    only, faults, missed = parser.parse_args().only, {f.name: f for f in FAULTS}, 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Copy.of(ROOT, Path(folder))
        for name, pairs in FOUND.items():
            if not only or any(part in name for part in only):
                said, seconds = search(copy, faults[name], pairs)
                missed += not said
                print(f"{'found' if said else 'missed':6} {seconds:5.0f} s  {name}: {said[:240]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
