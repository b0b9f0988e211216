"""A program on two ranks of the pretended device, of which one leaves its second step: the run ends by its limit for
stalls. Prints what the user sees. `python -m tests.device.stuck FOLDER SECONDS`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from shardlang.runtime.comm.mesh import world
from shardlang.runtime.device import Timeout
from shardlang.runtime.launch.devices import DeviceChoice
from shardlang.runtime.launch.launcher import launch_program, read_program
from shardlang.runtime.step.train import TrainingRun
from tests.check.checked import TRAIN
from tests.device.pretended import NAME, register
from tests.emit.sources import emitted_files

PROGRAM = """
use std.nn: Linear

dim batch = 4, d = 8

model Net {
  layer only = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    return only(x)
  }
}

strategy s {
  mesh dp = 2
  split batch over dp
}
"""


def main(folder: Path, seconds: float) -> int:
    register()
    for name, text in emitted_files(PROGRAM + TRAIN, 2, "s").items():
        (folder / name).write_text(text)

    def stuck(*given: Any) -> None:
        run = TrainingRun(*given[:3])
        update = run.model.update

        def updated(at: int, total: int) -> bool:
            while at == 2 and world.rank == 1:
                time.sleep(1)
            return update(at, total)

        run.model.update = updated  # type: ignore[method-assign]
        run.train()

    program, main_file = read_program(folder / "main.py"), folder / "main.py"
    code = launch_program(
        program, main_file, 2, DeviceChoice(NAME), folder / "logs", None, None, work=stuck, stall=seconds
    )  # fmt: skip
    print(f"a collective may take {Timeout.collective.total_seconds():.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
