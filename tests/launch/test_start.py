"""The script that starts torchrun on a host, as signals of Slurm reach it: with an agent and a rank that sleep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from shardlang.launch import torchrun
from tests.waits import until

# The agent waits for a rank that saves for two seconds when it hears SIGUSR1, and ends with 75.
RANK = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGUSR1, lambda *_: (time.sleep(2), sys.exit(75)))
open(sys.argv[1], "w").close()
time.sleep(60)
"""
AGENT = "( trap '' USR1; {python} -c \"$RANK\" {ready} & wait $!; exit 1 ) &\n"


def children(of: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(of)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def test_a_host_whose_step_is_ended_while_it_saves_has_saved(tmp_path: Path) -> None:
    """`srun --kill-on-bad-exit` ends the others when the first host has saved: all of their processes get SIGTERM."""
    script, ready = tmp_path / "start.sh", tmp_path / "ready"
    agent = AGENT.format(python=sys.executable, ready=ready)
    script.write_text(f"set -eu\n{torchrun._WAITS}{agent}{torchrun._ENDS}")
    process = subprocess.Popen(["bash", script], env={**os.environ, "RANK": RANK}, stderr=subprocess.PIPE)
    try:
        until(ready.exists)
        process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        # The script itself, the agent, and the `sleep` of its wait.
        for each in (*children(process.pid), process.pid):
            os.kill(each, signal.SIGTERM)
        assert process.wait() == 75
    finally:
        process.kill()
