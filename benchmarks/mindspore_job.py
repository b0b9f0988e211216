"""Claim: as a whole job, quickstart's net data-parallel on 8 ranks takes at most 0.25 of MindSpore's CPU package.

MindSpore wants an environment of its own (`python3.11 -m venv DIR && DIR/bin/pip install mindspore==2.10.0`), whose
folder the environment variable MINDSPORE names.

    MINDSPORE=DIR python benchmarks/mindspore_job.py [turns]
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from pathlib import Path

from timing import interleave, process, ratios, verdict

HERE = Path(__file__).parent
RANKS = 8


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def mindspore(environment: Path, folder: Path) -> float:
    """Seconds of one job, from msrun's start to its end."""
    command = [
        str(environment / "bin" / "msrun"), f"--worker_num={RANKS}", f"--local_worker_num={RANKS}",
        f"--master_port={_free_port()}", f"--log_dir={folder}", "--join=True",
        str(HERE / "by_hand" / "quickstart_mindspore.py"),
    ]  # fmt: skip
    # msrun starts the workers with the `python` that it finds first.
    os.environ["PATH"] = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return process(command)()


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    environment = os.environ.get("MINDSPORE")
    if not environment or not (Path(environment) / "bin" / "msrun").exists():
        print("skipped: MINDSPORE is not set to the folder of an environment that has it (see the script)")
        return 0
    shardc = str(Path(sys.executable).with_name("shardc"))
    with tempfile.TemporaryDirectory() as folder:
        program = str(HERE / "programs" / "quickstart.shard")
        ours = process(
            [shardc, "run", program, "--ranks", str(RANKS), "--device", "cpu", "--log-dir", f"{folder}/logs"]
        )
        timings = interleave(
            {"shardc run": ours, "MindSpore": lambda: mindspore(Path(environment), Path(folder) / "mindspore")},
            turns,
            warmup=0,
        )
    for name, timing in timings.items():
        print(f"{name:10} {timing}")
    return 0 if verdict("quickstart on 8 ranks / MindSpore", ratios(timings, "shardc run", "MindSpore"), 0.25) else 1


if __name__ == "__main__":
    sys.exit(main())
