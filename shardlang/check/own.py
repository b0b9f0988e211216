"""Declarations of data sources, schedules and optimizers that Python computes, as plain values.

Reading them is files/own.py's; nothing here imports the Python file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import Param
from shardlang.sources.source import Span

# What an optimizer needs to see at once: each element alone, rows, or the whole parameter.
NEEDS = {"elements": "elements", "rows": "rows", "whole matrices": "whole"}


@dataclass(frozen=True, slots=True)
class OwnDefinition:
    """A Python function of the user's, and the declaration of it.

    file: the Python file, from the folder of the program. path: the same file, to read it. source,
    digest: of its text and of the declaration's. home: the file that declares it. verified: whether
    its lock says that both have passed `shardc verify`; sources and schedules need none."""

    kind: str
    name: str
    function: str
    file: str
    path: str
    source: str
    digest: str
    home: str
    verified: bool
    span: Span


@dataclass(frozen=True, slots=True)
class OwnDecl(OwnDefinition):
    """A definition with how it is called. settings: what the function gets. fields: of a source, as
    `data_sources.DataSourceKind` has them; dims: those that a call names; batch: the first dim of
    each field. needs, state: of an optimizer."""

    settings: tuple[Param, ...]
    fields: Mapping[str, tuple[str, tuple[int | str, ...], int | str | None]] = field(default_factory=dict)
    dims: tuple[str, ...] = ()
    batch: str = ""
    needs: str = ""
    state: tuple[str, ...] = ()

    @property
    def declaration(self) -> OwnDecl:
        """As an operator's (ops/declared.py), which `shardc verify` tries beside them."""
        return self

    def given(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a call, in order, with defaults; not those that are dims."""
        defaults = {param.name: param.default for param in self.settings if not param.required}
        names = [param.name for param in self.settings if param.kind != "newdim"]
        return {name: arguments.get(name, defaults.get(name)) for name in names}
