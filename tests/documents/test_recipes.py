"""Every recipe runs, on one rank and on two, with the same finite losses; those that name a layer of torch are it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from shardlang.cli.main import run
from tests.documents.bless import SPECS
from tests.mdtest import blocks

PAGE = (SPECS / "recipes.md").read_text("utf-8")
LINES = PAGE.splitlines()
# A program by the heading it stands under.
RECIPES = {next(x for x in LINES[b.line - 2 :: -1] if x.startswith("## "))[3:]: b for b in blocks(PAGE)}


def losses(path: Path, ranks: int) -> list[float]:
    figures = path.with_suffix(f".{ranks}.jsonl")
    assert run(["run", str(path), "--ranks", str(ranks), "--simulate", "--metrics", str(figures)]) == 0
    return [json.loads(line)["loss"] for line in figures.read_text().splitlines()]


@pytest.mark.parametrize("title", list(RECIPES))
def test_a_recipe_trains_on_one_rank_as_on_two(title: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.shard"
    path.write_text(RECIPES[title].text, "utf-8")
    one, two = losses(path, 1), losses(path, 2)
    assert len(one) == 3 and all(map(math.isfinite, one))
    assert two == pytest.approx(one, rel=1e-5)
