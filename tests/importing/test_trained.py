"""Imported models train on four ranks as their modules do; `python -m tests.importing.trained` does all strategies."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the library transformers is not installed")

from tests.importing.fourteen.cases import CASES
from tests.importing.trained import CLOSE, EXACT, STRATEGIES, losses, prepared

# Each model under one strategy, each strategy with several models.
PAIRS = [(name, STRATEGIES[at % len(STRATEGIES)]) for at, name in enumerate(CASES)]


@pytest.mark.parametrize(("name", "strategy"), PAIRS, ids=map(":".join, PAIRS))
def test_a_model_trains_as_its_module_does(name: str, strategy: str, tmp_path: Path) -> None:
    found, expected = prepared(name, tmp_path)
    assert found.report["largest difference"] <= EXACT
    assert len(set(expected)) == len(expected)
    assert losses(tmp_path, strategy) == pytest.approx(expected, abs=CLOSE, rel=0)
