"""The complete programs of specs/ are run, each on the ranks that it names: figures and weights are one rank's.

Left out are those that want files, and those of hardware that is larger than a test's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import mdtest
from tests.emit import sources
from tests.end_to_end.curves import ROOT
from tests.generated.real import compared
from tests.generated.worlds import World

pytestmark = pytest.mark.slow


def programs() -> Iterator[tuple[str, mdtest.Block]]:
    """Those that have no mistake and whose data the runtime makes itself, by page and line."""
    for page in sorted((ROOT / "specs").glob("*.md")):
        for block in mdtest.blocks(page.read_text("utf-8")):
            made = re.search(r"^  data = (random|digits)\(", block.text, re.MULTILINE)
            others = re.search(r'^use "|^(device|cluster) |^  (init|checkpoint|log) = ', block.text, re.MULTILINE)
            if made and not others and not block.expected and "parse" not in block.options:
                yield f"{page.name}:{block.line}", block


PROGRAMS = dict(programs())


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[int, World]]:
    found: dict[int, World] = {}
    yield found
    for world in found.values():
        world.close()


def run(block: mdtest.Block, ranks: int, worlds: dict[int, World], folder: Path) -> Path:
    """Runs a program in float64, whatever it says itself; the folder with what it leaves."""
    text = re.sub(r"^  precision = .*\n", "", block.text, flags=re.MULTILINE)
    text = text.replace(", f32)", ", f64)")
    text = re.sub(r"^train \{\n", "train {\n  precision = f64\n", text, flags=re.MULTILINE)
    strategy = block.option("strategy") if ranks > 1 else None
    main = sources.written(folder, text, ranks, strategy, settings=block.overrides)
    failed = worlds.setdefault(ranks, World(ranks)).run(main)
    assert not failed, failed
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_the_specification(name: str, worlds: dict[int, World], tmp_path: Path) -> None:
    block = PROGRAMS[name]
    alone, ranks = run(block, 1, worlds, tmp_path / "alone"), int(block.option("ranks") or 1)
    differs, _ = compared(alone if ranks == 1 else run(block, ranks, worlds, tmp_path / "many"), alone)
    assert not differs, differs


def test_they_are_many() -> None:
    assert len(PROGRAMS) >= 8 and any(name.startswith("microbatches.md") for name in PROGRAMS)
