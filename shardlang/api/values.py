"""The results of calls.py: frozen values, which show themselves in a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from shardlang.api.rows import Row, frozen
from shardlang.diagnostics.diagnostic import Diagnostic, Severity
from shardlang.diagnostics.lines import jsonlines
from shardlang.diagnostics.rendered import OUTPUTS, rendered

if TYPE_CHECKING:
    import pandas

    from shardlang.cli.plan_view.columns import PlanLine

# As wide as the text of a command that is piped.
ROOM = 120
# In a notebook the page decides the colours, light or dark.
_STYLE = "margin: 0; white-space: pre; overflow-x: auto; line-height: 1.3"
TABLES = ("operators", "collectives", "parameters", "stages")


@dataclass(frozen=True)
class Program:
    """A program without mistakes. strategies: name and the names of axes. models: name, line.
    parameters: path, shape, dtype, trained. dims: name, size. train: whether it trains."""

    name: str
    strategies: tuple[Row, ...]
    models: tuple[Row, ...]
    parameters: tuple[Row, ...]
    dims: tuple[Row, ...]
    train: bool

    def _repr_html_(self) -> str:
        def line(row: Row) -> str:
            first, *rest = row
            return f"{row[first]}  " + ", ".join(f"{key} {_shown(row[key])}" for key in rest)

        parts = [("strategies", self.strategies), ("models", self.models), ("dims", self.dims)]
        parts += [("parameters", self.parameters)]
        told = [_folded(f"{len(rows)} {what}", map(line, rows)) for what, rows in parts if rows]
        return "".join([_text([f"{self.name}{'' if self.train else ', without train'}"]), *told])


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class Report(Sequence[Row]):
    """All that is to be said of a program: a row for each mistake or warning, with the keys of
    specs/diagnostic.schema.json. program: None where there are mistakes."""

    found: tuple[Diagnostic, ...] = field(repr=False)
    program: Program | None

    @property
    def ok(self) -> bool:
        """Whether there is no mistake; there may be warnings."""
        return not any(each.severity is Severity.ERROR for each in self.found)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple(Row(json.loads(line)) for line in jsonlines(self.found).splitlines())

    def render(self, output: str = "full") -> str:
        """The text of `shardc check --output`: full, concise, json or sarif."""
        if output not in OUTPUTS:
            raise ValueError(f"output is one of {', '.join(OUTPUTS)}, not {output!r}")
        return rendered(self.found, output)

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, at: int | slice) -> Row | tuple[Row, ...]:
        return self.rows[at]

    def __len__(self) -> int:
        return len(self.found)

    def __repr__(self) -> str:
        return f"Report(ok={self.ok}, codes={[each.code for each in self.found]})"

    def _repr_html_(self) -> str:
        return _text(self.render().rstrip().splitlines() or ["no mistake"])


class ProgramError(Exception):
    """A program that cannot be planned or compiled: `report` says why, and so does the text."""

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self.report = report

    def __str__(self) -> str:
        return self.report.render().rstrip()


@dataclass(frozen=True)
class _Seen:
    """The parts of a plan, of all ranks or of one. found: as `shardc plan --json` prints it."""

    found: Mapping[str, Any] = field(repr=False)

    @property
    def operators(self) -> tuple[Row, ...]:
        return self._rows("operators")

    @property
    def collectives(self) -> tuple[Row, ...]:
        """Those of all operators, in order, each with the `operator` that it is for."""
        every = ((o["name"], c) for o in self.found["operators"] for c in o["collectives"])
        return tuple(Row({"operator": name, **c}) for name, c in every)

    @property
    def parameters(self) -> tuple[Row, ...]:
        return self._rows("parameters")

    @property
    def memory(self) -> Row:
        """Bytes of a rank (of all ranks the most): parameters, gradients, optimizer, activations,
        its peak, and what it sends."""
        return Row(self.found["per_rank"])

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `shardc plan --json`, key for key; a copy."""
        found: dict[str, Any] = json.loads(json.dumps(self.found))
        return found

    def _rows(self, table: str) -> tuple[Row, ...]:
        found: tuple[Row, ...] = frozen(self.found[table])
        return found

    def _repr_html_(self) -> str:
        """The first screen as HTML, then the program and the parameters, folded."""
        from shardlang.cli.plan_view.parameters import parameters
        from shardlang.cli.plan_view.program import Detail, program
        from shardlang.cli.plan_view.screen import screen
        from shardlang.paths.patterns import count

        def texts(lines: Iterable[PlanLine]) -> Iterator[str]:
            return (line.text.rstrip() for line in lines)

        number = sum(count(each["path"]) for each in self.found["parameters"])
        return "".join([
            _text(texts(screen(self.found, ROOM))),
            _folded("program", texts(program(self.found, ROOM, Detail()))),
            _folded(f"{number} parameters", texts(parameters(self.found, ROOM, False))),
        ])  # fmt: skip


@dataclass(frozen=True, repr=False)
class RankView(_Seen):
    """A plan as one rank has it: its coordinates on each mesh, its slices, its groups."""

    @property
    def rank(self) -> int:
        return int(self.found["rank"])

    @property
    def coordinates(self) -> tuple[Row, ...]:
        return self._rows("coordinates")

    def __repr__(self) -> str:
        return f"RankView(rank={self.rank}, operators={len(self.found['operators'])})"


@dataclass(frozen=True, repr=False)
class Plan(_Seen):
    """A plan: layouts, collectives and bytes."""

    @property
    def strategy(self) -> str:
        """The name of the strategy; "" where the program has none."""
        return str(self.found["strategy"])

    @property
    def ranks(self) -> int:
        return int(self.found["ranks"])

    @property
    def mesh(self) -> dict[str, int]:
        """The sizes of the axes of the main mesh, outermost first."""
        return {axis["name"]: axis["size"] for mesh in self.found["meshes"][:1] for axis in mesh["axes"]}

    @property
    def stages(self) -> tuple[Row, ...]:
        """The stages of the pipeline; () without."""
        return frozen(self.found["pipeline"]["stages"]) if self.found["pipeline"] is not None else ()

    @property
    def predicted(self) -> Row | None:
        """The time of a step, where the file has speeds (specs/predicted.md)."""
        return Row(self.found["predicted"]) if "predicted" in self.found else None

    def rank(self, rank: int) -> RankView:
        """The plan of one rank, from 0. ValueError where there is no such rank."""
        from shardlang.cli.plan_view.parts import of_rank

        if not isinstance(rank, int) or isinstance(rank, bool):
            raise TypeError(f"a rank is a whole number, not {type(rank).__name__}")
        if not 0 <= rank < self.ranks:
            raise ValueError(f"{rank} is not one of the ranks 0 to {self.ranks - 1}")
        return RankView(of_rank(self.found, rank))

    def dataframe(self, table: str = "operators") -> pandas.DataFrame:
        """A table of the plan for pandas: operators, collectives, parameters, stages.
        ModuleNotFoundError without pandas."""
        if table not in TABLES:
            raise ValueError(f"table is one of {', '.join(TABLES)}, not {table!r}")
        try:
            import pandas
        except ModuleNotFoundError as error:
            if error.name != "pandas":
                raise
            fact = "`dataframe` needs pandas, which is not installed: `pip install pandas` installs it"
            raise ModuleNotFoundError(fact, name="pandas") from None

        return pandas.DataFrame([dict(row) for row in getattr(self, table)])

    def __repr__(self) -> str:
        mesh = ", ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        return f"Plan(strategy={self.strategy!r}, ranks={self.ranks}, mesh=({mesh}))"


@dataclass(frozen=True)
class Compiled:
    """The emitted program. files: name -> text. base: the folder of the program's file, which its
    paths are relative to."""

    files: Mapping[str, str] = field(repr=False)
    plan: Plan
    base: Path = field(repr=False)

    def write(self, folder: str | Path) -> Path:
        """Writes the files to a folder, which is made if absent; the folder. OSError where that
        cannot be, or where another file is in the way: then nothing is written."""
        import click

        from shardlang.cli.commands.compile import write
        from shardlang.errors import RunError

        try:
            write(Path(folder), self.files)
        except (RunError, click.UsageError) as error:
            raise OSError(str(error)) from error
        return Path(folder)

    def _repr_html_(self) -> str:
        return "".join(_folded(name, code.splitlines()) for name, code in self.files.items())


def _text(lines: Iterable[str]) -> str:
    """Lines with equal widths of letters."""
    return f'<pre style="{_STYLE}">{escape(chr(10).join(lines))}</pre>'


def _folded(title: str, lines: Iterable[str]) -> str:
    """Lines under a title that shows and hides them."""
    return f"<details><summary>{escape(title)}</summary>{_text(lines)}</details>"
