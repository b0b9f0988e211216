"""The facts that decide a run's examples, as a checkpoint records them: turns a source that has
been read into facts, and two such records into what differs, in words."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shardlang.checkpoints import data_files
from shardlang.runtime.data.data_files import reading
from shardlang.runtime.data.streams import ENDLESS
from shardlang.runtime.program import BatchSource


def identity(source: BatchSource, length: int) -> dict[str, Any]:
    """The facts of a source of so many examples (-1: without an end): none of them depends on
    strategy or ranks."""
    hidden = (*data_files.PATHS, "workers", "call")
    given = {name: value for name, value in source.arguments.items() if name not in hidden}
    if "call" in source.arguments:
        given["python"] = source.arguments["call"].digest
    fields = {f.name: [f.dtype, *f.shape[1:], *([f"below {f.bound}"] if f.bound else [])] for f in source.fields}
    length = length if length < ENDLESS else -1
    words = {"categories": dict(source.categories)} if source.categories else {}
    own = {"source": source.kind, "length": length, "shuffle": True, **given}
    found = {**own, **words, "fields": fields, "files": [_file(path) for path in source.files]}
    # As it will be read back.
    known: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return known


def _file(path: Path) -> list[Any]:
    with reading(path):
        return data_files.facts_of(path)


def differences(here: Mapping[str, Any], there: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Each difference between two records: its name, here, there. A file may have another name."""
    for name in dict.fromkeys([*here, *there]):
        mine, theirs = here.get(name), there.get(name)
        if name == "files" and isinstance(theirs, list) and mine is not None:
            yield from data_files.differences(mine, theirs)
        elif mine != theirs:
            yield f"data.{name}", mine, theirs
