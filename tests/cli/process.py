"""The words of a command -> what `shardc` says and how it ends, in a process of its own, from which ranks are forked.

`NET` is the program of tests of commands, whose numbers are not what they are about.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests import warm

SHARDC = (sys.executable, "-c", "from shardlang.cli.main import main; main()")
NET = """\
dim batch = 8, d = 4

model Net {
  param w: [d] = normal(0.5)

  forward(x: [batch, d]) -> [batch, d] {
    return x * w
  }
}

strategy dp {
  mesh dp = auto
  split batch over dp
}

train {
  model = Net()
  data = random(x: [batch, d], batches = 3)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  epochs = 2
}
"""


def shardc(*words: str, folder: Path | None = None, input: str | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a folder, by default in this one."""
    return warm.run([*SHARDC, *words], cwd=folder, input=input)
