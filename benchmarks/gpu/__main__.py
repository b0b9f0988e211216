"""Runs the scripts for a GPU one after another and ends with a table of their ratios.

python -m benchmarks.gpu                all of them
python -m benchmarks.gpu NAME ...       some
python -m benchmarks.gpu --list         their claims
python -m benchmarks.gpu --device cpu   in tiny sizes on the CPU, only to see that they run: no limit is judged
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.__main__ import Suite
from benchmarks.gpu.place import arguments, place

NAMES = (
    "random_bits", "nccl_api", "attention", "empty_rows", "alike", "precision", "llama_one", "gpt2_dropout", "idle",
    "memory", "tables", "shared", "several",
)  # fmt: skip
SUITE = Suite(Path(__file__).parent, NAMES)


def main() -> int:
    given, names = arguments()
    if names != ["--list"]:
        place()
    command = [sys.executable, "-m", "benchmarks.gpu.{name}", "--device", given.device, "--turns", str(given.turns)]
    return SUITE.main(names, command)


if __name__ == "__main__":
    sys.exit(main())
