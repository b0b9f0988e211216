"""The plans whose emitted programs are kept as goldens: each an example under one of its strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.emit.sources import emitted_files

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).resolve().parent / "golden"


@dataclass(frozen=True)
class Case:
    """A program of `folder`, one of its strategies ("" for the first) and a number of ranks."""

    program: str
    strategy: str
    ranks: int
    folder: str = "examples"

    @property
    def name(self) -> str:
        return "_".join(part for part in (self.program, self.strategy, str(self.ranks)) if part)

    def golden(self, file: str) -> Path:
        """Where an emitted file is kept: a program of several has a folder."""
        folder = GOLDEN / self.name
        return folder / file if folder.is_dir() or file != "main.py" else GOLDEN / f"{self.name}.py"


CASES = (
    Case("quickstart", "propagated", 8),
    Case("operator_parallel", "mixed", 8),
    Case("dense_chain", "rows_then_columns", 4),
    Case("digits", "both", 8),
    Case("digits", "sharded", 8),
    Case("mnist_ddp", "ddp", 2),
    Case("tagger", "both", 4, "tests/emit/programs"),
    Case("clicks", "exchanged", 4, "tests/emit/programs"),
    Case("staged", "looped", 4, "tests/emit/programs"),
    Case("staged", "recomputed", 8, "tests/emit/programs"),
)


def emitted(case: Case) -> Mapping[str, str]:
    """The files of a case, by the same road as `shardc compile`."""
    file = f"{case.program}.shard"
    return emitted_files((ROOT / case.folder / file).read_text(), case.ranks, case.strategy, file)
