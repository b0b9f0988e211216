"""Claim: twice as many operators, mistakes, selectors or microbatches take at most 2.3 times the time of `check` and
`plan`.

Each file is made in two sizes, the larger of twice as much, and each run is a process of its own. Processor time is
compared; the interpreter's start and imports do not count.

    python benchmarks/growth.py [turns]
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from timing import Timing, ratios, verdict

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 2.3
# What there is more of -> the command, its ranks, the file of a size, the smaller size.
Text = Callable[[int], str]
TRAIN = """train {
  model = M()
  data = random(x: [batch, d], batches = 1)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""
BLOCK = "model B {\n  param w: [d] = ones()\n  forward(x: [batch, d]) -> [batch, d] {\n    return x * w\n  }\n}\n"


def program(body: str, members: str = "  param w: [d] = ones()\n", more: str = "", rules: str = "") -> str:
    rules = rules or "  mesh dp = auto\n  split batch over dp\n"
    forward = f"  forward(x: [batch, d]) -> [batch, d] {{\n{body}    return y\n  }}\n"
    model = f"model M {{\n{members}{forward}}}\n"
    return f"dim batch = 131072, d = 8\n{more}{model}strategy s {{\n{rules}}}\n{TRAIN}"


def deep(layers: int, rules: str = "") -> str:
    return program("    y = x |> a\n", f"  layer a[{layers}] = B()\n", BLOCK, rules)


def selectors(rule: str) -> Text:
    start = "  mesh dp = auto\n  split batch over dp\n"
    return lambda n: deep(n, start + "".join(f"  {rule}\n".format(i=i) for i in range(n)))


def statements(line: str) -> Text:
    return lambda n: program("".join(f"    {line}\n".format(i=i) for i in range(1, n)) + "    y = x * w\n")


def chain(n: int) -> str:
    lines = "".join(f"    h{i} = relu({f'h{i - 1}' if i else 'x'})\n" for i in range(n))
    return program(f"{lines}    y = h{n - 1} * w\n")


def staged(microbatches: int) -> str:
    rules = f'  mesh pp = 32\n  stages over pp balanced\n  microbatches {microbatches}\n  schedule "1f1b"\n'
    return deep(64, rules)


FILES: dict[str, tuple[str, int, Text, int]] = {
    "unknown values": ("check", 2, statements("v{i} = relu(xq{i})"), 4_000),
    "unknown operators": ("check", 2, statements("v{i} = reluu{i}(x)"), 4_000),
    "unused values": ("check", 2, statements("v{i} = relu(x)"), 4_000),
    "selectors of nothing": ("check", 2, selectors("at b[{i}].q{i}: recompute"), 2_000),
    "selectors of single layers": ("check", 2, selectors("at a[{i}]: recompute"), 2_000),
    "operators": ("check", 2, chain, 2_000),
    "operators, planned": ("plan", 2, chain, 2_000),
    "microbatches": ("check", 32, staged, 1_024),
    "microbatches, planned": ("plan", 32, staged, 1_024),
}


def measure(name: str, factor: int) -> float:
    """Processor seconds of a command on a file, in this process."""
    from shardlang.cli.main import run

    command, ranks, text, size = FILES[name]

    def taken(size: int) -> float:
        Path("main.shard").write_text(text(size))
        begun = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = run([command, "main.shard", "--ranks", str(ranks)])
        assert code in (0, 1)
        return time.process_time() - begun

    gc.disable()  # as `shardc` does
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        taken(64)  # imports, and what is read once
        found = taken(size * factor)
        os.chdir(ROOT)
    return found


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    held = []
    for name in FILES:
        seconds: dict[str, list[float]] = {"once": [], "twice": []}
        for _ in range(turns):
            for factor, taken in enumerate(seconds.values(), 1):
                command = [sys.executable, str(Path(__file__)), "--measure", name, str(factor)]
                made = subprocess.run(command, check=True, capture_output=True, text=True)
                taken.append(json.loads(made.stdout))
        timings = {size: Timing(tuple(taken)) for size, taken in seconds.items()}
        print(f"  {name:28} {timings['once']}, twice as many {timings['twice']}")
        held.append(verdict(f"twice as many {name}", ratios(timings, "twice", "once"), LIMIT))
    return 0 if all(held) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
    else:
        sys.exit(main())
