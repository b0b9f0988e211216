"""Every example under each of its strategies, and every program of specs/ whose data the runtime makes, in small sizes.

    python -m tests.device [--compiled] [--only WORD]

Each is trained on the CPU and on the pretended device: the losses are the same, to the bit where it computes in f32 or
f64. With --compiled it is trained on the CPU as it is and with `compile = blocks` in place of that: the losses are the
same but for rounding, each kind of block is one graph, and there is no break. One line a run; ends with 1 where one
does not hold.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.device.run import OnBoth
from tests.device.run import trained as on_both
from tests.end_to_end.curves import ROOT, RunOf
from tests.end_to_end.test_curves import write_images
from tests.end_to_end.test_hosted import clicks
from tests.end_to_end.test_specification_runs import PROGRAMS
from tests.end_to_end.translator import SIZES, made_pairs
from tests.runtime.compiling import Both
from tests.runtime.compiling import trained as compiled

STEPS = 3
FOUR = [("data_parallel", 2), ("tensor_parallel", 2), ("sharded", 2), ("pipeline", 4)]
ROUNDING = {"bf16": 1e-2, "f32": 1e-5, "f64": 1e-9}
MESHES: Mapping[str, list[tuple[str, int]]] = {
    "contrastive": FOUR,
    "dense_chain": [("rows_then_columns", 4), ("named", 4)],
    "digits": [("", 1), ("data_parallel", 2), ("tensor_parallel", 2), ("both", 4), ("sharded", 2)],
    "distillation": FOUR,
    "gan": FOUR,
    "gru": FOUR,
    "llama": [("", 1), ("fsdp", 2), ("large", 8)],
    "lora": FOUR,
    "mnist_ddp": [("", 1), ("ddp", 2)],
    "operator_parallel": [("mixed", 8)],
    "quickstart": [("propagated", 8)],
    "transformer": [("data_parallel", 2), ("model_parallel", 2), ("three_d", 4)],
    "unet": FOUR,
    "wide_deep": [("host_device", 2), ("split_tables", 2)],
}
SMALLER = {
    "llama": {
        "batch": "16", "seq": "16", "model.vocab": "64", "model.d": "32", "model.heads": "4", "model.kv_heads": "2",
        "model.ffn": "64", "model.layers": "4", "large.pp": "2", "large.tp": "2", "large.cp": "2",
    },
    "transformer": SIZES,
    "wide_deep": {"batch": "16", "model.vocab": "200", "model.width": "8"},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A program under strategies on ranks. settings: as of `--set`."""

    name: str
    text: str
    runs: list[RunOf]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def precision(self) -> str:
        found = re.search(r"^  precision = (\w+)", self.text, re.MULTILINE)
        return found[1] if found else "f32"


def cases() -> Iterator[Case]:
    for file in sorted((ROOT / "examples").glob("*.shard")):
        text, count = re.subn(r"^  (epochs|steps) = \d+", f"  steps = {STEPS}", file.read_text(), flags=re.MULTILINE)
        assert count == 1, file
        runs = [RunOf(*run) for run in MESHES[file.stem]]
        strategies = set(re.findall(r"^strategy (\w+)", text, re.MULTILINE))
        assert strategies == {run.strategy for run in runs if run.strategy}, file
        yield Case(file.stem, text, runs, SMALLER.get(file.stem, {}))
    for name, block in PROGRAMS.items():
        text = re.sub(r"^  (epochs|steps) = \d+", f"  steps = {STEPS}", block.text, flags=re.MULTILINE)
        ranks = int(block.option("ranks") or 1)
        run = RunOf(block.option("strategy") or "" if ranks > 1 else "", ranks)
        yield Case(name, text, [run], block.overrides)


def write_data(folder: Path) -> None:
    """The files that examples read."""
    data = folder / "data"
    write_images(data / "mnist", "train", 400)
    write_images(data / "mnist", "t10k", 100)
    (data / "criteo_sample.txt").write_text(clicks(160))
    (data / "fr_en.txt").write_text(made_pairs())
    np.random.default_rng(1).integers(0, 64, 16 * 17 * (STEPS + 1), "u2").tofile(data / "tokens.bin")


def wrong(case: Case, found: OnBoth | Both) -> str:
    """What does not hold, or ""."""
    if isinstance(found, OnBoth):
        cpu, device = found.figures()
        exact = case.precision != "bf16"
        graphs = ""
    else:
        cpu, device, exact = found.eager, found.compiled, False
        graphs = f"{found.graphs} graphs of {found.kinds} kinds, {found.breaks} breaks; {found.said}"
        if found.graphs == found.kinds and not found.breaks and not found.said:
            graphs = ""
    rounding = 0.0 if exact else ROUNDING[case.precision]
    same = len(cpu) == len(device) > 0 and all(
        abs(x - y) <= rounding * abs(x) for x, y in zip(cpu, device, strict=True)
    )
    return graphs or ("" if same else f"{device}, and {cpu} on the CPU")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compiled", action="store_true", help="compile blocks, on the CPU")
    parser.add_argument("--only", default="", metavar="WORD", help="programs with WORD in their name")
    given = parser.parse_args(arguments)
    failed = count = 0
    with tempfile.TemporaryDirectory() as work:
        write_data(Path(work))
        for number, case in enumerate(c for c in cases() if given.only in c.name):
            folder = Path(work) / str(number)
            folder.mkdir()
            try:
                if given.compiled:
                    found = compiled(case.text, case.runs, folder, base=Path(work), settings=case.settings)
                else:
                    found = on_both(case.text, case.runs, folder, Path(work), case.settings)
                told = {run: wrong(case, each) for run, each in found.items()}
            except AssertionError as error:
                told = {run: str(error)[-2000:] for run in case.runs}
            for run, fault in told.items():
                print(f"{case.name} {run.strategy} on {run.ranks}: {fault or 'the same'}", flush=True)
            count, failed = count + len(told), failed + sum(map(bool, told.values()))
    print(f"{count} runs, {failed} failed")
    return 1 if failed or not count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
