"""Claim: start to end, quickstart on 8 ranks takes at most half of `torchrun --nproc-per-node 8` on one all-reduce.

python benchmarks/quickstart_process.py [turns]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from timing import interleave, process, ratios, verdict

EXAMPLE = Path(__file__).parent.parent / "examples" / "quickstart.shard"
ALL_REDUCE = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1)
dist.all_reduce(x)
assert x.item() == dist.get_world_size()
dist.destroy_process_group()
"""


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    tools = Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "all_reduce.py"
        script.write_text(ALL_REDUCE)
        timings = interleave(
            {
                "shardc run": process(
                    [str(tools.with_name("shardc")), "run", str(EXAMPLE), "--ranks", "8", "--log-dir", f"{folder}/logs"]
                ),
                "torchrun": process([str(tools.with_name("torchrun")), "--nproc-per-node", "8", str(script)]),
            },
            turns,
        )
    for name, timing in timings.items():
        print(f"{name:14} {timing}")
    return 0 if verdict("shardc run / torchrun", ratios(timings, "shardc run", "torchrun"), 0.5) else 1


if __name__ == "__main__":
    sys.exit(main())
