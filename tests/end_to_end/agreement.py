"""`shardc verify` of programs under all their strategies, on 1 to 8 real ranks and 16 to 512 simulated, as a table.

    python -m tests.end_to_end.agreement [--folder examples] [--only NAME,...] [--real 1,2,8] [--simulated 16,512]

A count that a strategy's mesh does not allow is left out; that is judged by planning. It takes an hour; each line
is printed as it is known. Ends with 1 where a line does not agree.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests import warm
from tests.cli.process import SHARDC
from tests.end_to_end.curves import ROOT

REAL, SIMULATED = (1, 2, 3, 4, 5, 6, 7, 8), (16, 32, 64, 128, 256, 512)
SMALL = {
    "batch": "8", "src": "8", "tgt": "8", "model.layers": "2", "model.d": "32", "model.ffn": "64", "model.vocab": "64",
}  # fmt: skip
LLAMA = {
    "batch": "8", "seq": "16", "model.layers": "2", "model.d": "64", "model.ffn": "128", "model.vocab": "256",
    "model.heads": "16", "model.kv_heads": "8",
}  # fmt: skip
# For real ranks: sizes that run in seconds. What is compared does not depend on them.
FEW: dict[str, dict[str, str]] = {"transformer": SMALL, "llama": LLAMA, "wide_deep": {"model.vocab": "2000"}}


def sizes(program: str, ranks: int, real: bool) -> tuple[Mapping[str, str], ...]:
    """Sizes to try, the first that a strategy can be planned with is taken.

    Simulated ranks are all in one process: many of them want sizes that divide, and small copies.
    """
    many = str(ranks)
    wide = {"model.heads": many, "model.d": str(max(32, ranks)), "model.ffn": str(max(64, ranks))}
    simulated: dict[str, tuple[Mapping[str, str], ...]] = {
        "digits": ({"batch": "512", "hidden": "512"},),
        "mnist_ddp": ({"batch": many},),
        "transformer": ({**SMALL, "batch": many}, {**SMALL, **wide, "model.vocab": str(max(64, ranks))}),
        "wide_deep": ({"batch": many, "model.vocab": "2048", "model.width": "2" if ranks > 64 else "80"},),
        "llama": ({**LLAMA, "batch": many}, {**LLAMA, "batch": str(ranks // 4), "model.layers": "8"}),
    }
    return (FEW.get(program, {}),) if real else simulated.get(program, ({},))


@dataclass(frozen=True)
class Line:
    """One program under one strategy on one number of ranks."""

    program: str
    ranks: int
    sizes: Mapping[str, str]
    strategy: str


def fitting(file: Path, ranks: int, sizes: Mapping[str, str]) -> tuple[str, ...]:
    """The strategies that can be planned on so many ranks."""
    program = driver.check_source(Source(str(file), file.read_text()), Sink(), sizes)
    if program is None:
        return ()
    names = [s.name.text for s in program.strategies]
    return tuple(name for name in names if driver.plan_program(program, name, ranks, Sink()) is not None)


def lines(folder: Path, only: Sequence[str], real: Sequence[int], simulated: Sequence[int]) -> Iterator[Line]:
    for file in sorted(folder.glob("*.shard")):
        if only and file.stem not in only:
            continue
        for ranks in (*real, *simulated):
            taken: set[str] = set()
            for tried in sizes(file.stem, ranks, ranks in real):
                found = tuple(name for name in fitting(file, ranks, tried) if name not in taken)
                taken.update(found)
                for name in found:
                    yield Line(file.stem, ranks, tried, name)


def verified(folder: Path, line: Line, real: bool, steps: int) -> dict[str, Any]:
    """What `shardc verify --json` prints."""
    sets = [word for path, value in line.sizes.items() for word in ("--set", f"{path}={value}")]
    options = ["--ranks", str(line.ranks), "--strategy", line.strategy, "--steps", str(steps), "--json", *sets]
    options.append("--real" if real else "--simulated-only")
    command = [*SHARDC, "verify", str(folder / f"{line.program}.shard"), *options]
    done = warm.run(command, cwd=ROOT, timeout=None)
    if not done.stdout:
        return {"ok": False, "error": done.stderr or f"the process ended with {done.returncode}"}
    checks = json.loads(done.stdout)["checks"]
    return next(check for check in checks if check["strategy"] == line.strategy)


def row(line: Line, check: Mapping[str, Any], real: bool, seconds: float) -> str:
    sides = [check.get(side) or {} for side in ("emitted", "simulated")]
    counts = [f"{s.get('values', 0)}/{s.get('gradients', 0)}/{s.get('parameters', 0)}" if s else "-" for s in sides]
    worst = max((s["largest_error"] or 0.0 for s in sides if s), default=0.0)
    verdict = "agrees" if check.get("ok") else f"DIFFERS {check.get('difference') or check.get('error')}"
    kind = "real" if real else "simulated"
    return (
        f"{line.program:18} {line.strategy:18} {line.ranks:4} {kind:9} {counts[0]:>14} {counts[1]:>14} "
        f"{worst:8.1e} {check.get('data', '-'):6} {seconds:6.1f} s  {verdict}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "examples")
    parser.add_argument("--only", default="")
    parser.add_argument("--real", default=",".join(map(str, REAL)))
    parser.add_argument("--simulated", default=",".join(map(str, SIMULATED)))
    parser.add_argument("--steps", type=int, default=3)
    given = parser.parse_args(arguments)
    real, simulated = ([int(n) for n in text.split(",") if n] for text in (given.real, given.simulated))
    print(
        f"{'program':18} {'strategy':18} rank kind        emitted v/g/p  simulated v/g/p  error data     time",
        flush=True,
    )
    wrong = total = 0
    for line in lines(given.folder, [n for n in given.only.split(",") if n], real, simulated):
        begun, on_real = time.monotonic(), line.ranks in real
        check = verified(given.folder, line, on_real, given.steps)
        total += 1
        wrong += not check.get("ok")
        print(row(line, check, on_real, time.monotonic() - begun), flush=True)
    print(f"{total - wrong} of {total} agree")
    return 1 if wrong or not total else 0


if __name__ == "__main__":
    sys.exit(main())
