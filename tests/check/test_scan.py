"""`scan`: a call of the cell for each place of a dim, types of states, and what is wrong with a scan."""

from __future__ import annotations

import pytest

from tests.check.checked import Checked, checked
from tests.check.test_dims import terms

PROGRAM = """
use std.nn: Linear

dim batch = 8, seq = 5, d = 16, hidden = 4

model Cell {{
  layer mix = Linear(d, hidden)

  forward(x: [batch, d], h: [batch, hidden]) -> [batch, d], [batch, hidden] {{
    after = tanh(mix(x) + h)
    return x * 2, after
  }}
}}

model Net {{
  layer cell = Cell()
  param start: [hidden] = zeros()

  forward(x: [{dims}]) {{
    first = expand(start -> [batch, hidden])
    {lines}
  }}
}}

train {{
  model = Net()
  data = random(x: [{dims}], batches = 2)
  loss = mean(model(x))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}}
"""


def scanned(lines: str, dims: str = "batch, seq, d") -> Checked:
    return checked(PROGRAM.format(lines=lines, dims=dims))


@pytest.mark.parametrize(("dims", "found"), [
    ("batch, seq, d", ["batch", "seq", "d"]),
    ("seq, batch, d", ["seq", "batch", "d"]),
])  # fmt: skip
def test_outputs_are_stacked_where_the_dim_was(dims: str, found: list[str]) -> None:
    program = scanned("y, last = scan(cell, x, first, over = seq)\n    return mean(y) + mean(last)", dims)
    assert program.messages == []
    assert terms(program, "y") == found and terms(program, "last") == ["batch", "hidden"]
    assert len([call for call in program.graph.calls if call.path == "cell"]) == 5
    assert [op.attrs["index"] for op in program.graph.ops if op.operator == "scanned"] == list(range(5))


@pytest.mark.parametrize(("lines", "code", "said"), [
    ("return scan(start, x, over = seq)", "SH297", "`scan` calls a layer, and this is a tensor"),
    ("return scan(cell, x, 1, over = seq)", "SH297", "`scan` goes through tensors, and this is a number"),
    ("return scan(cell, first, x, over = seq)", "SH297", "`scan` goes through values with `seq`, then come states"),
    ("return scan(cell, x, x, over = seq)", "SH256", "`h` of `cell` needs `hidden`"),
    ("return scan(cell, x, first)", "SH221", "`scan` needs `over`"),
    ("return scan(cell, over = seq)", "SH221", "`scan` needs `x`"),
    ("return scan(cell, x, first, over = sequence)", "SH250", "there is no dim `sequence` here"),
    ("return scan(cell, x, first, along = seq)", "SH220", "`scan` has no argument `along`"),
])  # fmt: skip
def test_what_is_wrong_with_a_scan(lines: str, code: str, said: str) -> None:
    found = [m for m in scanned(lines).messages if not m.startswith(("SH223", "SH222"))]
    assert any(m.startswith(code) and said in m for m in found), found


def test_too_many_steps_are_told_with_their_numbers() -> None:
    text = PROGRAM.replace("seq = 5", "seq = 9000")
    lines = "y, last = scan(cell, x, first, over = seq)\n    return mean(y) + mean(last)"
    found = checked(text.format(lines=lines, dims="batch, seq, d")).messages
    assert "SH217: 9,000 steps of 6 operators are more than the 20,000 that a program has" in found
