"""Outcomes of generated pairs, kept as lines of JSON and counted: kinds, refusals by code, operators, features."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import shardlang.ops.all_families  # noqa: F401
from shardlang.ops.declaration import REGISTRY
from tests.generated.cases import AGREED, CRASHED, INVALID, REFUSED, WRONG, Outcome

# Made by the planner, never written.
INTERNAL = frozenset(name for name, operator in REGISTRY.items() if operator.internal)


@dataclass
class Tally:
    """Counts of simulated or of real pairs. operators: name -> [forward, backward] in pairs that agree."""

    kinds: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    features: Counter[str] = field(default_factory=Counter)
    forward: Counter[str] = field(default_factory=Counter)
    backward: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0
    ties: int = 0
    failed: list[int] = field(default_factory=list)

    def add(self, record: dict[str, Any]) -> None:
        self.kinds[record["kind"]] += 1
        self.codes.update(set(record["codes"]))
        if record["kind"] in (WRONG, INVALID, CRASHED):
            self.failed.append(record["seed"])
        if record["kind"] != AGREED:
            return
        self.features.update(record["features"])
        self.forward.update(record["forward"])
        self.backward.update(record["backward"])
        self.largest = max(self.largest, record["largest"])
        self.ties += record["ties"] > 0

    def line(self) -> str:
        """One line for a run on its way."""
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.kinds.most_common())
        return f"{sum(self.kinds.values())} pairs: {kinds}; largest relative difference {self.largest:.2g}"

    def text(self) -> str:
        """Everything, for the end."""
        total = max(1, self.kinds[AGREED])
        names = sorted(set(REGISTRY) - INTERNAL, key=lambda n: self.forward[n])
        operators = (f"{n} {self.forward[n]}/{self.backward[n]}" for n in names)
        missing = [n for n in names if not self.forward[n]]
        return "\n".join([
            self.line(),
            f"refused by code: {_counts(self.codes)}",
            f"operators in the pairs that agree, forward/gradient (of {total}): {', '.join(operators)}",
            f"operators that no pair reaches: {', '.join(missing) or 'none'}",
            f"features: {_counts(self.features)}",
            f"pairs with ties, where rounding decides: {self.ties}",
            f"failed seeds: {', '.join(map(str, sorted(self.failed))) or 'none'}",
        ])  # fmt: skip


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counter.most_common()) or "none"


@dataclass(frozen=True)
class Kept:
    """A folder with an outcome a line, so that a run may end and go on; failures as .shard files beside it."""

    folder: Path

    def _file(self, real: bool) -> Path:
        return self.folder / ("real.jsonl" if real else "simulated.jsonl")

    def records(self, real: bool) -> Iterator[dict[str, Any]]:
        file = self._file(real)
        for line in file.read_text().splitlines() if file.exists() else ():
            yield json.loads(line)

    def keep(self, outcome: Outcome, real: bool) -> dict[str, Any]:
        """Writes an outcome down; the record."""
        record = asdict(outcome)
        del record["text"]
        record = {k: sorted(v) if isinstance(v, frozenset) else v for k, v in record.items()}
        with self._file(real).open("a") as file:
            file.write(json.dumps(record) + "\n")
        return record

    def fault(self, outcome: Outcome, small: Outcome, real: bool) -> Path:
        """Writes a failing pair down, as it was made and as small as it became."""
        file = self.folder / f"{'real' if real else 'simulated'}-{outcome.seed}.shard"
        what = f"# seed {outcome.seed}, {outcome.ranks} ranks: {outcome.kind}"
        said = "\n".join(f"#   {line}" for line in small.detail.strip().splitlines()[-12:])
        file.write_text(f"{what}\n{said}\n{small.text}\n")
        file.with_suffix(".whole.shard").write_text(outcome.text)
        return file


__all__ = ["INTERNAL", "REFUSED", "Kept", "Tally"]
