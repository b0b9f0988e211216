"""`python -m tests.search.verified [--ranks 2,4,8] [--only NAME,...] [--modes exact,...]`: the strategies that
`shardc tune` writes for the examples compute what one device does.

Each example, in sizes that run in seconds, is tuned for a fast machine and for one that computes slowly, on which
other strategies are the best. The best is verified on real ranks, the others of the table on simulated ones.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardlang.search.request import MODES, PROPAGATION
from tests import warm
from tests.cli.process import SHARDC
from tests.end_to_end.curves import ROOT

# Sizes that run in seconds. What is compared does not depend on them.
FEW: dict[str, dict[str, str]] = {
    "transformer": {
        "batch": "8", "src": "8", "tgt": "8", "model.layers": "2", "model.d": "32", "model.ffn": "64",
        "model.vocab": "64",
    },
    "llama": {
        "batch": "8", "seq": "16", "model.layers": "2", "model.d": "64", "model.ffn": "128", "model.vocab": "256",
        "model.heads": "16", "model.kv_heads": "8",
    },
    "wide_deep": {"model.vocab": "2000"},
}  # fmt: skip
SLOW = """device slow {
  memory = 80GB
  compute = 20GFLOP/s
  bandwidth = 20GB/s
  link = 20GB/s
}

cluster slow_node {
  nodes = 1
  devices = 8
  device = slow
}
"""


def shardc(*words: str) -> tuple[int, str, str]:
    done = warm.run([*SHARDC, *words], cwd=ROOT, timeout=None)
    return done.returncode, done.stdout, done.stderr


def sets(program: str) -> list[str]:
    return [word for path, value in FEW.get(program, {}).items() for word in ("--set", f"{path}={value}")]


def tuned(file: Path, ranks: int, cluster: str, mode: str) -> Mapping[str, Any] | str:
    """The answer of the search, or what it said instead."""
    asked = ["--ranks", str(ranks), "--cluster", cluster, "--search-mode", mode, "--budget", "2", "--top", "3"]
    code, out, err = shardc("tune", str(file), *asked, "--json", *sets(file.stem))
    found: Mapping[str, Any] | str = json.loads(out) if code == 0 else err.strip() or f"exit code {code}"
    return found


def verified(file: Path, strategy: str, title: str, ranks: int, real: bool) -> str:
    """What is wrong with a strategy; "" where it computes the same."""
    copy = file.with_name(f"{file.stem}_tuned.shard")
    head, mark, rest = file.read_text().rpartition("\ntrain {")
    copy.write_text(f"{head}\n{strategy}{mark}{rest}")
    asked = ["--ranks", str(ranks), "--strategy", title, "--steps", "2", "--json"]
    asked.append("--real" if real else "--simulated-only")
    code, out, err = shardc("verify", str(copy), *asked, *sets(file.stem))
    if code == 0:
        return ""
    checks = json.loads(out)["checks"] if out else []
    return f"exit code {code}: {checks[0].get('difference') if checks else err.strip()}"


def lines(file: Path, folder: Path, ranks: int, modes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What was looked at, and what is wrong with it."""
    slow = folder / "slow.shard"
    slow.write_text(SLOW)
    for cluster in ("std.clusters.h100_pod", str(slow)):
        for mode in modes:
            found, named = tuned(file, ranks, cluster, mode), f"{file.stem} on {ranks}, {Path(cluster).stem}, {mode}"
            if isinstance(found, str):
                # The first strategy of the file may be for another rank count.
                said = "SH326" in found or (mode == PROPAGATION and "error[SH3" in found)
                yield f"{named}: {found.splitlines()[0]}", "" if said else found
                continue
            texts = dict.fromkeys(row["text"] for row in found["best"])
            for at, text in enumerate(texts):
                wrong = verified(file, text, found["strategy"], ranks, at == 0 and mode == modes[0])
                yield f"{named}, number {at + 1}", f"{wrong}\n{text}" if wrong else ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--only", default="")
    parser.add_argument("--modes", default=",".join(MODES))
    asked = parser.parse_args(arguments)
    only, wrong, total = [n for n in asked.only.split(",") if n], 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "examples"
        shutil.copytree(ROOT / "examples", folder)
        for file in sorted((ROOT / "examples").glob("*.shard")):
            for ranks in map(int, asked.ranks.split(",")) if not only or file.stem in only else ():
                begun = time.monotonic()
                for what, fault in lines(folder / file.name, folder, ranks, asked.modes.split(",")):
                    total, wrong = total + 1, wrong + bool(fault)
                    print(f"{what}: {fault or 'right'} ({time.monotonic() - begun:.0f} s)", flush=True)
    print(f"{total - wrong} of {total} are right")
    return 1 if wrong or not total else 0


if __name__ == "__main__":
    sys.exit(main())
