"""The memory that simulated ranks are said to need, against what a process of them takes."""

from __future__ import annotations

import sys

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.interpret.ranks.limits import needed
from shardlang.sources.source import Source
from tests import warm
from tests.end_to_end.curves import ROOT

EXAMPLE = ROOT / "examples" / "digits.shard"
RANKS, SIZES = 32, {"hidden": "8192"}
SCRIPT = """
import resource, sys
from shardlang.cli.main import run
code = run(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
sys.exit(code)
"""


@pytest.mark.parametrize("strategy", ["data_parallel", "tensor_parallel", "both", "sharded"])
def test_what_is_said_is_taken(strategy: str) -> None:
    """No more than a tenth beyond it, by which a run might be killed; and no less than half, lest runs be refused that
    would fit. What an allocator takes varies by that much from program to program.
    """
    sets = [word for path, value in SIZES.items() for word in ("--set", f"{path}={value}")]
    command = ["verify", str(EXAMPLE), "--ranks", str(RANKS), "--strategy", strategy, "--simulated-only", *sets]
    done = warm.run([sys.executable, "-c", SCRIPT, *command], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    peak = int(done.stdout.rpartition("peak ")[2])
    source = Source(str(EXAMPLE), EXAMPLE.read_text())
    program = driver.check_source(source, Sink(), {**SIZES, "train.precision": "f64"})
    assert program is not None
    plan = driver.plan_program(program, strategy, RANKS, Sink())
    assert plan is not None
    assert 0.5 * needed(plan) < peak < 1.1 * needed(plan), (peak, needed(plan))
