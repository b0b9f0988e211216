"""Numbers beside whole numbers, tensors and bools: every line of an emitted program makes what its comment says, in
every precision.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

from shardlang.ops.texts import TORCH_DTYPES
from shardlang.runtime.launch.launcher import read_program
from shardlang.runtime.logs import Log
from shardlang.runtime.step.train import TrainingRun, datasets
from tests.emit.sources import main_file, parsed

PROGRAM = """
dim batch = 4, d = 3

model Net {
  param w: [d] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    return x * w
  }
}

train {
  model = Net()
  data = random(x: [batch, d], n: i64[batch, d] < 5, batches = 2)
  y = model(x)
  b = n > 2
  s = sum(n)
EXPRESSIONS
  loss = mean(y)
  optimizer = sgd(lr = 0.1)
  precision = PRECISION
  steps = 1
}
"""


def expressions() -> list[str]:
    """Operators of a number and a value of each kind, on either side; of two values; of numbers alone."""
    found = ["x * 1"]  # a 1 of floating type, before there is a 1.0
    for value in ("n", "x", "s", "b"):
        for number in ("1", "0.5", "1.0"):
            found += [f"{number} {sign} {value}" for sign in ("+", "*", "/", "**")]
            found += [f"{value} {sign} {number}" for sign in ("/", "**")]
            found += [f"maximum({number}, {value})", f"where(b, {number}, {value})"]
        found += [f"(-2) / {value}", f"{value} * (-2)"]
        found += [f"{value} {sign} {other}" for sign in ("*", "/") for other in ("n", "x", "s", "b")]
    found += ["1 / (1 + n)", "1 - n", "s - 0.5", "arange(d) * 0.5", "mean(n)", "mean(b)", "sum(b)"]
    found += ["where(b, 1, 0)", "where(b, 1.0, 0.0)", "where(b, 1, 0.5)"]
    return [*found, *(f"{name}({x})" for name in ("exp", "abs", "detach") for x in ("2", "2.5"))]


def made(precision: str, folder: Path) -> dict[str, tuple[str, Tensor]]:
    """What each line of `forward` makes, by name: the element type that its comment tells, and the value."""
    lines = [f"  v{i} = {e}\n  metric m{i} = mean(cast(v{i}, f32))" for i, e in enumerate(expressions())]
    text = PROGRAM.replace("EXPRESSIONS", "\n".join(lines)).replace("PRECISION", precision)
    main = main_file(text, 1)
    parsed(main)
    (folder / "main.py").write_text(main)
    program = read_program(folder / "main.py")
    assert program.forward is not None
    code, found = program.forward.__code__, {}

    def returned(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code is code:
            found.update(frame.f_locals)

    sys.setprofile(returned)
    try:
        TrainingRun(program, datasets(program), Log(None, None)).train()
    finally:
        sys.setprofile(None)
    told = dict(re.findall(r"^ +(\w+) = .*# (\w+)\[", main, re.MULTILINE))
    return {name: (dtype, found[name]) for name, dtype in told.items()}


@pytest.mark.parametrize("precision", ["f32", "f64", "bf16"])
def test_every_line_makes_what_its_comment_says(precision: str, tmp_path: Path) -> None:
    found = made(precision, tmp_path)
    assert len(found) > len(expressions())
    assert {name: told for name, (told, x) in found.items() if str(x.dtype) != TORCH_DTYPES[told]} == {}
    assert torch.get_default_dtype() is torch.float32
