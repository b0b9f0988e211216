"""Claim: programs trained by `shardc run` on a GPU have the CPU's losses, by float64 within 1e-9, compiled ones too.

The examples whose data is there, benchmarks/programs in small sizes, and a GPT-2 under each setting that sends work or
bytes elsewhere on a device. One GPU, which several runs share.

    python -m benchmarks.gpu.alike [--device cpu]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from timing import verdict

from benchmarks.gpu.nets import PROGRAMS, TINY
from benchmarks.gpu.place import Place, place

RUN = "import sys; from shardlang.cli.main import main; sys.exit(main())"
EXAMPLES = PROGRAMS.parent.parent / "examples"
RULES = {
    "recomputed": "at blocks[*]: recompute", "saved on the host": "at blocks[*]: place saved on host",
    "microbatches": "microbatches 2", "in chunks": "at train.loss: chunks 4",
    "a table on the host": "at embed.positions: place on host",
}  # fmt: skip
GPT2 = {**TINY, "model.max_len": "16", "model.dropout": "0.1", "train.epochs": "5"}
LLAMA = {**TINY, "model.kv_heads": "1", "model.ffn": "64", "train.epochs": "5"}
TABLES = {"batch": "64", "vocab": "500", "train.epochs": "5"}


# How far a loss may be from the CPU's, relative: in less than 64 bits some three times what was seen on an H200.
LIMITS = {"f64": 1e-9, "f32": 4e-7, "bf16": 2e-4, "f16": 2e-5}


@dataclass(frozen=True)
class Case:
    """A program and how it is run. compiled: on the device. run: the text of a Python that is `shardc` there."""

    name: str
    file: Path
    settings: dict[str, str]
    compiled: bool = False
    precision: str = "f64"
    strategy: str = ""
    ranks: int = 1
    run: str = RUN

    def losses(self, device: str, folder: Path) -> list[float]:
        """The losses of its steps on a device."""
        metrics = folder / "figures.jsonl"
        given = {"train.precision": self.precision, **self.settings}
        command = [
            sys.executable, "-c", self.run, "run", str(self.file), "--ranks", str(self.ranks), "--device", device,
            "--metrics", str(metrics), "--log-dir", str(folder / "logs"),
            *["--strategy", self.strategy] * bool(self.strategy), *["--compile"] * (self.compiled and device != "cpu"),
            *(word for name, value in given.items() for word in ("--set", f"{name}={value}")),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise RuntimeError(f"{self.name} on {device} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return [step["loss"] for step in map(json.loads, metrics.read_text().splitlines()) if "loss" in step]

    def apart(self, device: str) -> float:
        """The farthest loss on the device from the CPU's, relative."""
        with tempfile.TemporaryDirectory() as folder:
            sides = []
            for side in ("cpu", device):
                (here := Path(folder) / f"{len(sides)}-{side}").mkdir()
                sides.append(self.losses(side, here))
        on_host, there = sides
        assert len(on_host) == len(there) > 1
        return max(abs(a / b - 1) for a, b in zip(there, on_host, strict=True))


def cases(here: Place, folder: Path) -> list[Case]:
    """All of them, or on the CPU one."""
    gpt2 = PROGRAMS / "gpt2.shard"
    found = [Case(name, EXAMPLES / f"{name}.shard", {"train.epochs": "1"}) for name in
             ("digits", "contrastive", "distillation", "gan", "gru", "lora", "unet")]  # fmt: skip
    for name, rule in RULES.items():
        (file := folder / f"{name}.shard").write_text(f"{gpt2.read_text()}\nstrategy own {{\n  {rule}\n}}\n")
        found.append(Case(name, file, GPT2, strategy="own"))
    for compiled in (False, True):
        word = ", compiled" if compiled else ""
        found += [
            Case(f"gpt2{word}", gpt2, GPT2, compiled),
            Case(f"gpt2 in f32{word}", gpt2, GPT2, compiled, "f32"),
            Case(f"gpt2 in bf16{word}", gpt2, GPT2, compiled, "bf16"),
            Case(f"gpt2 in f16{word}", gpt2, GPT2, compiled, "f16"),
            Case(f"llama{word}", PROGRAMS / "llama.shard", LLAMA, compiled),
            Case(f"llama in bf16{word}", PROGRAMS / "llama.shard", LLAMA, compiled, "bf16"),
            Case(f"tables on the host{word}", PROGRAMS / "wide_deep.shard", TABLES, compiled),
            Case(f"a translator{word}", PROGRAMS / "translator.shard", {"train.epochs": "5"}, compiled),
        ]
    return found if here.whole else [case for case in found if case.name == "digits"]


def main() -> int:
    here = place()
    with tempfile.TemporaryDirectory() as folder:
        return 0 if all(judged(here, cases(here, Path(folder)), 10)) else 1


def judged(here: Place, chosen: Sequence[Case], together: int) -> list[bool]:
    """Runs the cases, so many at a time, and prints of each how far it is; whether each holds."""
    held = []
    with ThreadPoolExecutor(together if here.whole else 1) as pool:
        begun = [pool.submit(case.apart, here.devices.kind) for case in chosen]
        for case, future in zip(chosen, begun, strict=True):
            try:
                apart = future.result()
            except RuntimeError as error:
                print(error)
                held.append(False)
                continue
            limit = LIMITS[case.precision]
            label = f"{case.name}: farthest loss from the CPU's, {apart:.1e} relative / {limit:.0e}"
            held.append(verdict(label, [apart / limit], 1.0))
    return held


if __name__ == "__main__":
    sys.exit(main())
