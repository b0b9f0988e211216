"""`place saved on host`: what layers save for backward waits on the host, and no number changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.device.run import OnBoth, trained
from tests.end_to_end.curves import RunOf

pytestmark = pytest.mark.slow

RULES = {
    "tensor": "mesh mp = 2\nsplit heads, ffn over mp\nsplit seq over mp?",
    "whole": "mesh dp = 2\nsplit batch over dp\nzero 3 over dp\nmicrobatches 2",
    "staged": "mesh pp = 2\nstages over pp balanced\nmicrobatches 4",
    "bubbles": 'mesh pp = 2\nstages over pp balanced\nmicrobatches 4\nschedule "zero_bubble"',
    "some": "mesh dp = 2\nsplit batch over dp\nat blocks[2]: recompute\nat blocks[1].a: recompute",
}
TEXT = """
use std.transformer: EncoderBlock

dim batch = 8, seq = 4, d = 16, heads = 2, ffn = 32

model Net {
  layer blocks[4] = EncoderBlock(d, heads, ffn, dropout = 0.25)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    return x |> blocks
  }
}
STRATEGIES
train {
  model = Net()
  data = random(x: [batch, seq, d], y: [batch, seq, d], batches = 2, seed = 1)
  loss = mse_loss(model(x), y)
  optimizer = adamw(lr = 1e-2)
  precision = PRECISION
  steps = 2
}
"""


def program(precision: str) -> str:
    strategies = []
    for name, rules in RULES.items():
        layers = "blocks[0..2], blocks[3]" if name == "some" else "blocks[*]"
        for more in ("", f"\nat {layers}: place saved on host"):
            lines = "\n  ".join((rules + more).splitlines())
            strategies.append(f"\nstrategy {name}{'_sent' if more else ''} {{\n  {lines}\n}}\n")
    return TEXT.replace("STRATEGIES", "".join(strategies)).replace("PRECISION", precision)


def ways(found: OnBoth) -> list[Counter[str]]:
    """Of each rank, how many copies go each way in the lines that send what is saved."""
    made = [Counter[str]() for _ in found.counts]
    for counted, counts in zip(made, found.counts, strict=True):
        assert counts["waits"] == {}
        for place, count in counts["copies"].items():
            assert "waited for" not in place
            counted[place.partition(" at device.py")[0]] += count if " at device.py" in place else 0
    return made


@pytest.mark.parametrize(("precision", "names"), [("f32", [*RULES]), ("bf16", ["whole"])])
def test_no_number_changes(precision: str, names: list[str], tmp_path: Path) -> None:
    runs = [RunOf(f"{name}{sent}", 2) for name in names for sent in ("", "_sent")]
    found = trained(program(precision), runs, tmp_path)
    for name in names:
        plain, sent = found[RunOf(name, 2)], found[RunOf(f"{name}_sent", 2)]
        assert plain.figures()[1] == sent.figures()[1], name
        assert sent.figures()[0] == sent.figures()[1], name
        for before, after in zip(ways(plain), ways(sent), strict=True):
            more = after - before
            assert more["to the host"] == more["to the device"] > 20, (name, before, after)
