"""Transformers as emitted, on real ranks under every kind of split: their curves and weights are those of one rank."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.end_to_end.curves import RunOf, figures
from tests.models.planned import HERE

pytestmark = pytest.mark.slow
ALONE = RunOf("", 1)
RUNS = {
    "translator": [RunOf("dp", 2), RunOf("mp", 2), RunOf("cp", 4), RunOf("sp", 2), RunOf("mixed", 4)],
    "gpt2": [RunOf("dp", 4), RunOf("mp", 4), RunOf("cp", 2), RunOf("sp", 4), RunOf("mixed", 4)],
    "llama": [RunOf("dp", 2), RunOf("mp", 2), RunOf("cp", 2), RunOf("sp", 4), RunOf("mixed", 4), RunOf("mixed", 8)],
}


def text_of(name: str, precision: str) -> str:
    text = (HERE / f"{name}.shard").read_text()
    assert "steps = 8" in text
    return text.replace("steps = 8", f"steps = 8\n  precision = {precision}")


@pytest.mark.parametrize(("precision", "tolerance"), [("f64", 1e-9), ("f32", 1e-5)])
@pytest.mark.parametrize("name", list(RUNS))
def test_curves_are_those_of_one_rank(name: str, precision: str, tolerance: float, tmp_path: Path) -> None:
    found = figures(text_of(name, precision), [ALONE, *RUNS[name]], tmp_path)
    curve = found[ALONE].curve()
    assert len(curve) == 8
    vocab = 32 if name == "translator" else 48
    assert curve[0] == pytest.approx(math.log(vocab), abs=0.3)
    for run in RUNS[name]:
        assert found[run].curve() == pytest.approx(curve, rel=tolerance), run.name
    if precision == "f64":
        alone = load_file(found[ALONE].weights)
        for run in RUNS[name]:
            mine = load_file(found[run].weights)
            assert mine.keys() == alone.keys()
            worst = {k: (mine[k] - alone[k]).abs().max().item() for k in alone}
            assert max(worst.values()) < 1e-8, (run.name, max(worst, key=lambda k: worst[k]))
