"""Claim: a model of 10,000 operators checks and plans in 2 s; planning it for 4,096 ranks takes at most 1.2 times 8.

Two models: one of 1,000 equal blocks, and one whose 10,000 statements are all written out.

    python benchmarks/large_model.py [turns]
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable

from timing import interleave, ratios, verdict

from shardlang.check.check import check
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.planned import plan
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse

STRATEGY = """
strategy both {
  mesh dp = auto, mp = 2
  split batch over dp
  split hidden over mp
}

train {
  model = Deep()
  data = random(x: [batch, d], label: [batch, d], batches = 1, seed = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""

BLOCKS = (
    """
dim batch = 4096, d = 1024, hidden = 4096

model Block {
  param up: [d, hidden] = normal(0.02)
  param down: [hidden, d] = normal(0.02)
  param scale: [d] = ones()
  param shift: [d] = zeros()

  forward(x: [batch, d]) -> [batch, d] {
    n = layer_norm(x, scale, shift, over = d)
    h = n @ up
    a = gelu(h)
    s = sigmoid(h)
    g = a * s
    y = g @ down
    t = tanh(y)
    u = t + y
    r = x + u
    return relu(r)
  }
}

model Deep {
  layer blocks[1000] = Block()

  forward(x: [batch, d]) -> [batch, d] {
    return x |> blocks
  }
}
"""
    + STRATEGY
)


def written_out(statements: int = 10_000) -> str:
    """A model of so many statements (a multiple of 10): a product every tenth, elementwise operators between."""
    kinds = ("relu({0})", "{0} + {1}", "tanh({0})", "{0} * {1}", "sigmoid({0})", "{0} - {1}", "gelu({0})", "abs({0})")
    lines, last, before = [], "x", "x"
    for i in range(statements):
        text = f"{last} @ w" if i % 10 == 9 else kinds[i % len(kinds)].format(last, before)
        lines.append(f"    v{i} = {text}")
        before, last = last, f"v{i}"
    body = "\n".join(lines)
    # A product with [d, hidden] and back keeps the shape [batch, d] between the groups of ten.
    body = body.replace("@ w", "@ up @ down")
    used = f"    return {last} + {before}"
    return (
        "dim batch = 4096, d = 1024, hidden = 4096\n\nmodel Deep {\n  param up: [d, hidden] = normal(0.02)\n"
        "  param down: [hidden, d] = normal(0.02)\n\n  forward(x: [batch, d]) -> [batch, d] {\n"
        f"{body}\n{used}\n  }}\n}}\n{STRATEGY}"
    )


def timed(text: str, ranks: int) -> Callable[[], dict[str, float]]:
    """A function that parses, checks and plans `text` and returns the seconds of each stage."""

    def run() -> dict[str, float]:
        sink = Sink()
        start = time.perf_counter()
        file = parse(Source("large.shard", text), sink)
        parsed = time.perf_counter()
        program = check(file, sink, lambda *_: None)
        checked = time.perf_counter()
        planned = plan(program, None, ranks, sink) if program else None
        done = time.perf_counter()
        gc.collect()
        if sink.failed or planned is None:
            sys.exit("\n".join(d.message for d in sink.found[:5]))
        return {
            "parse": parsed - start,
            "check": checked - parsed,
            "plan": done - checked,
            "all": done - start,
            "operators": len(planned.ops),
        }

    return run


def measure(label: str, text: str, turns: int) -> bool:
    few, many = timed(text, 8), timed(text, 4096)
    stages = few()
    print(
        f"{label}: {stages['operators']} operators; parse {stages['parse']:.2f} s, check {stages['check']:.2f} s, "
        f"plan {stages['plan']:.2f} s"
    )
    timings = interleave(
        {"8 ranks": lambda: few()["plan"], "4096 ranks": lambda: many()["plan"], "whole": lambda: few()["all"]}, turns
    )
    for name, timing in timings.items():
        print(f"  {name:12} {timing}")
    grows = verdict(f"{label}, plan for 4,096 ranks / for 8", ratios(timings, "4096 ranks", "8 ranks"), 1.2)
    whole = verdict(f"{label}, check and plan / 2 s", [s / 2 for s in timings["whole"].seconds], 1.0)
    return grows and whole


def main() -> int:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    gc.disable()  # as `shardc` does
    held = [measure("1,000 blocks", BLOCKS, turns), measure("written out", written_out(), turns)]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
