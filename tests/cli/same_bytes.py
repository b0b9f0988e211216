"""Prints what each command says of every program there is: of examples, of the pages, and of some mistakes made here.

`test_same_bytes` runs it in processes whose sets of texts go in different orders, and compares the lines. With a number
of 0 to 2 it prints those of every third program, from that on.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.full import full
from shardlang.folds.report import report
from shardlang.sources.source import Source
from tests.mdtest import blocks, texts

ROOT = Path(__file__).resolve().parents[2]
RANKS = {"operator_parallel": 8, "dense_chain": 4, "quickstart": 8, "transformer": 8}

# A dim that several layers have, none of them near by spelling; a result that `einsum` cannot name.
MISTAKES = {
    "unknown dims": """
use std.transformer: EncoderBlock

dim batch = 4, seq = 8, d = 16

model Wrapped(width: dim, channels: dim, many: dim) {
  layer block = EncoderBlock(width, many, channels)
  param extra: [channels] = zeros()
  dim channels_out = 3

  forward(x: [batch, seq, width]) -> [batch, seq, width] {
    return block(x) * sum(extra)
  }
}

model Net {
  layer blocks[2] = Wrapped(d, 32, 4)
  layer others[2] = Wrapped(d, 32, 4)
  layer last = Wrapped(d, 32, 4)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    return x |> blocks |> others |> last
  }
}

strategy tp {
  mesh mp = auto
  split channels, many, width, heads, ffn over mp
}

train {
  model = Net()
  data = random(x: [batch, seq, d], y: [batch, seq, d], batches = 4)
  loss = mse_loss(model(x), y)
  optimizer = adam(lr = 1e-3)
  steps = 1
}
""",
    "einsum": """
dim batch = 4, a = 8, b = 8, c = 8, e = 8

model Net {
  param w: [a * b, c * e] = normal(0.1)

  forward(x: [batch, a * b]) -> [batch, a * e] {
    return einsum(x, w -> [batch, a * e])
  }
}
""",
}


def programs() -> Iterator[tuple[Source, int | None, dict[str, str]]]:
    """Text, ranks and overrides of each program that imports no file."""
    for path in sorted((ROOT / "examples").glob("*.shard")):
        yield Source(path.name, path.read_text("utf-8")), RANKS.get(path.stem, 4), {}
    for name, text in MISTAKES.items():
        yield Source(f"{name}.shard", text), 2, {}
    for folder in ("specs", "tests/diagnostics"):
        for path in sorted((ROOT / folder).glob("*.md")):
            page = path.read_text("utf-8")
            for block in blocks(page):
                if not (block.option("file") or texts(page) or "parse" in block.options):
                    ranks = block.option("ranks")
                    yield (
                        Source(f"{path.stem}:{block.line}", block.text),
                        int(ranks) if ranks else None,
                        block.overrides,
                    )


def said(source: Source, ranks: int | None, overrides: dict[str, str]) -> str:
    """All that check, plan, compile and fmt write of a program."""
    sink, written = Sink(), []
    program = driver.check_source(source, sink, overrides)
    if program is not None:
        plan = driver.check_strategies(program, None, ranks, sink)
        if plan is not None:
            written.append(json.dumps(report(plan)))
            files = driver.emit_plan(plan, sink) or {}
            written += [f"{name}\n{text}" for name, text in files.items()]
    return "\n".join([*written, full(sink.found, False), driver.format_source(source, Sink()) or ""])


def main(first: int = 0, step: int = 1) -> None:
    for source, ranks, overrides in islice(programs(), first, None, step):
        print(source.name, hashlib.sha256(said(source, ranks, overrides).encode()).hexdigest())


if __name__ == "__main__":
    main(*((int(sys.argv[1]), 3) if sys.argv[1:] else ()))
