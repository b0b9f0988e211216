"""The order in which a reader meets the pages of the site, and where each is in it.

`SECTIONS` has every page of specs/ once, and tests hold it to that. The pages of codes follow by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from shardlang.diagnostics import explain_pages

ROOT = Path(__file__).resolve().parents[1]
CODES, TRY = "codes/index.md", "try.md"


def _specs(names: str) -> tuple[str, ...]:
    return tuple(f"specs/{name}.md" for name in names.split())


# A heading -> the files of its pages, from the root of the project.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "Start": ("README.md",),
    "Tutorial": _specs(
        "tutorial/1_first_program tutorial/2_layouts tutorial/3_transformer tutorial/4_from_torch tutorial/5_cluster"
    ),
    "Language": _specs(
        "models dims operators scan training data schedules random transformers recipes by_name extensions syntax"
    ),
    "Strategies": _specs(
        "layouts strategies stages microbatches places redistribution overlap communication hardware predicted"
    ),
    "Commands": (
        *_specs("command editors"),
        "editors/README.md",
        *_specs("why diff report tune verify diagnostics python"),
    ),
    "Running": _specs("running emitted compiling checkpoints generate events launching"),
    "With torch": _specs("coming_from pytorch import bind weights torch_checkpoints"),
    "Reference": (*_specs("reference plan-json"), "benchmarks/README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
}


@cache
def places() -> Mapping[str, str]:
    """The file of each page, from the root of the project -> its place in the site, in reading order."""
    found = {file: _place(file) for files in SECTIONS.values() for file in files}
    codes = {path.relative_to(ROOT).as_posix(): f"codes/{code}.md" for code, path in explain_pages.pages().items()}
    return {**found, **codes}


def _place(file: str) -> str:
    named = {"README.md": "index.md", "benchmarks/README.md": "benchmarks.md", "editors/README.md": "in_editors.md"}
    return named.get(file, file.removeprefix("specs/"))


def navigation() -> list[dict[str, list[str]]]:
    """The `nav` of mkdocs."""
    sections = [{heading: [places()[file] for file in files]} for heading, files in SECTIONS.items()]
    sections[0]["Start"].append(TRY)
    return [*sections, {"Codes": [CODES, *(place for place in places().values() if place.startswith("codes/"))]}]
