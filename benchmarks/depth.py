"""Claim: check, plan and emission follow what is different in a model, not how deep it is; Llama 405B takes 1 s, and
the proof that its ranks communicate alike a fifth of planning, on however many ranks.

Llama at 405B's sizes (stdlib/llama.shard), dp x tp x pp on 16,384 ranks and on 256, zero 1; 10,000 equal layers; 500
and 5,000 equal layers in balanced stages; and 1,000 and 10,000 operators that are all different. Each run is a process
of its own; the interpreter's start and imports do not count, and memory is all that the process has at its peak.

    python benchmarks/depth.py [turns]
"""

from __future__ import annotations

import gc
import json
import resource
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

from large_model import written_out
from timing import Timing, ratios, verdict

LLAMA = """
use std.llama: Llama

dim batch = 32768, seq = 8192

strategy big {{
  mesh {mesh}
  split batch over dp
  split heads, kv_heads, ffn, vocab over tp
  {stages}
  microbatches 16
  zero 1 over dp
}}

train {{
  model = Llama(vocab = 128256, d = 16384, heads = 128, kv_heads = 8, ffn = 53248, layers = {layers})
  data = random(tokens: i64[batch, seq] < 128256, label: i64[batch, seq] < 128256, batches = 1, seed = 1)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 3e-4, betas = (0.9, 0.95), weight_decay = 0.1)
  precision = bf16
  clip = 1.0
  steps = 1
}}
"""
EQUAL = """
dim batch = 32768, d = 1024

model Block {{
  param scale: [d] = ones()

  forward(x: [batch, d]) -> [batch, d] {{
    return x * scale
  }}
}}

model Deep {{
  layer blocks[{layers}] = Block()

  forward(x: [batch, d]) -> [batch, d] {{
    return x |> blocks
  }}
}}

strategy s {{
  mesh {mesh}
  split batch over dp
  {stages}
}}

train {{
  model = Deep()
  data = random(x: [batch, d], label: [batch, d], batches = 1, seed = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 1
}}
"""
STAGED = {"mesh": "pp = 16, dp = auto", "stages": "stages over pp balanced\n  microbatches 16"}
FLAT = {"mesh": "dp = auto", "stages": ""}
STAGED_405B = {
    "mesh": "pp = 16, dp = auto, tp = 8",
    "stages": 'stages over pp balanced, virtual = 2\n  schedule "interleaved_1f1b"',
}
RANKS = {"405B on 256": 256, "1,000 different": 8, "10,000 different": 8}  # all else is on 16,384
RUNS = {
    "12 layers": (LLAMA, 12, {"mesh": "dp = auto, tp = 8", "stages": ""}),
    "126 layers": (LLAMA, 126, {"mesh": "dp = auto, tp = 8", "stages": ""}),
    "405B": (LLAMA, 126, STAGED_405B),
    "405B on 256": (LLAMA, 126, STAGED_405B),
    "10,000 equal": (EQUAL, 10_000, FLAT),
    "500 in stages": (EQUAL, 500, STAGED),
    "5,000 in stages": (EQUAL, 5_000, STAGED),
    "1,000 different": (written_out, 1_000, {}),
    "10,000 different": (written_out, 10_000, {}),
}


def measure(name: str) -> dict[str, float]:
    """Processor seconds of each part and the peak of memory (MB) of one run, in this process."""
    from shardlang import driver
    from shardlang.diagnostics.diagnostic import Sink
    from shardlang.emit.emit import emission, files_of
    from shardlang.matched.proof import prove
    from shardlang.sources.source import Source

    def whole(layers: int) -> dict[str, float]:
        """As `driver.compile_source` does it."""
        sink, at = Sink(), list[float]()
        text = template(layers) if callable(template) else template.format(layers=layers, **rules)
        source = Source("depth.shard", text)

        def parts(runs: bool, sink: Sink) -> None:
            at[1:] = []
            program = driver.check_source(source, sink, runs=runs)
            at.append(time.process_time())
            plan = driver.plan_program(program, None, RANKS.get(name, 16_384), sink) if program else None
            at.append(time.process_time())
            if plan is None:
                return
            made = emission(plan, sink)
            files = files_of(made)
            at.append(time.process_time())
            prove(made, files, sink)
            at.append(time.process_time())

        at.append(time.process_time())
        driver.in_runs(parts, sink)
        assert not sink.found, sink.found[:5]
        found = dict(zip(("check", "plan", "emit", "proof"), (b - a for a, b in pairwise(at)), strict=True))
        return {**found, "all": at[-1] - at[0]}

    template, layers, rules = RUNS[name]
    gc.disable()  # as `shardc` does
    whole(32)  # imports, and what is read once
    found = whole(layers)
    return {**found, "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found: dict[str, list[dict[str, float]]] = {name: [] for name in RUNS}
    for _ in range(turns):
        for name, runs in found.items():
            command = [sys.executable, str(Path(__file__)), "--measure", name]
            runs.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    for name, runs in found.items():
        middle = sorted(runs, key=lambda run: run["all"])[len(runs) // 2]
        print(f"  {name:16} {'  '.join(f'{part} {value:.2f}' for part, value in middle.items())}")

    def timings(part: str) -> dict[str, Timing]:
        return {name: Timing(tuple(run[part] for run in runs)) for name, runs in found.items()}

    seconds, memory = timings("all"), timings("memory")
    plans, proofs = timings("plan"), timings("proof")
    share = [run["proof"] / run["plan"] for run in found["405B"]]
    linear = [ratio / 10 for ratio in ratios(plans, "5,000 in stages", "500 in stages")]
    different = [ratio / 10 for ratio in ratios(seconds, "10,000 different", "1,000 different")]
    held = [
        verdict("126 layers / 12, time", ratios(seconds, "126 layers", "12 layers"), 1.3),
        verdict("126 layers / 12, memory", ratios(memory, "126 layers", "12 layers"), 1.3),
        verdict("405B on 16,384 ranks / 1 s", seconds["405B"].seconds, 1.0),
        verdict("405B: the proof / planning", share, 0.2),
        verdict("405B: the proof on 16,384 ranks / on 256", ratios(proofs, "405B", "405B on 256"), 1.2),
        verdict("10,000 equal layers / 2 s", [s / 2 for s in seconds["10,000 equal"].seconds], 1.0),
        verdict("5,000 layers in balanced stages / ten times 500", linear, 1.3),
        verdict("10,000 different operators / ten times 1,000", different, 1.3),
    ]
    return 0 if all(held) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2])))
    else:
        sys.exit(main())
