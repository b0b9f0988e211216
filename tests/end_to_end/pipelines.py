"""Generated pipelines, whose bytes in the plan are held to those of real ranks: what each coordinate sends in a step,
to the byte, and the most that each holds at one time, to 2 %.

Tables are tied over stages, and weights are used transposed. `python -m tests.end_to_end.pipelines --count 200` runs
as many as one likes, from `--seed` on, prints what differs, and at the end the command for each seed that did. The
peak is compared where the plan says that it is whole: not where a backward is cut in two.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from shardlang.folds.peak.report import lacks, moment
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.traffic import sent_bytes
from shardlang.plan.plan import Plan
from shardlang.step.stages import stages_by_coordinate
from tests.emit import sources
from tests.end_to_end.peaks import peaks
from tests.end_to_end.watching import found as written_by
from tests.end_to_end.wired import wired

TRAIN = """
strategy s {
  RULES
}

train {
  model = MODEL
  data = random(tokens: i64[batch, seq] < VOCAB, label: i64[batch, seq] < VOCAB, batches = 2)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = OPTIMIZER
  precision = PRECISION
  steps = 3
}
"""
# The table is the head too, and the scale is of all layers. Each layer's weight is used once as it is, once transposed.
TIED = """\
dim batch = BATCH, seq = SEQ, d = WIDTH, ffn = FFN, vocab = VOCAB

model Layer {
  param w: [d, ffn] = normal(0.1)
  param bias: [ffn] = zeros()

  forward(x: [..., d]) -> [..., d] {
    h = gelu(x @ w + bias)
    return x + einsum(h, w -> [..., d])
  }
}

model Net {
  param table: [vocab, d] = normal(0.1)
  param scale: [d] = normal(0.5)
  layer parts[LAYERS] = Layer()

  forward(tokens: i64[batch, seq]) -> [batch, seq, vocab] {
    h0 = embedding(tokens, table)
STEPS
    return einsum(hLAYERS, table -> [batch, seq, vocab])
  }
}
"""
GPT2 = """\
use std.gpt2: GPT2

dim batch = BATCH, seq = SEQ
"""


def written(seed: int) -> tuple[str, int]:
    """A program, and its ranks."""
    rng = random.Random(seed)
    dims = {"BATCH": rng.choice((8, 16)), "SEQ": rng.choice((8, 12, 16)), "WIDTH": rng.choice((32, 48, 64))}
    dims |= {"FFN": rng.choice((64, 96, 128)), "VOCAB": rng.choice((60, 64, 96, 256))}
    layers, tied = rng.choice((4, 6)), rng.random() < 0.5
    steps = "\n".join(f"    h{n + 1} = parts[{n}](h{n}) * scale" for n in range(layers))
    made = f"GPT2(vocab = VOCAB, d = WIDTH, heads = 4, layers = {layers}, max_len = SEQ, dropout = 0.0)"
    text = TIED.replace("STEPS", steps).replace("LAYERS", str(layers)) if tied else GPT2
    text += TRAIN.replace("MODEL", "Net()" if tied else made).replace("RULES", "\n  ".join(_rules(rng, dims)))
    dims |= {"OPTIMIZER": rng.choice(("adamw(lr = 1e-3)", "sgd(lr = 1e-3)", "sgd(lr = 1e-3, momentum = 0.9)"))}
    dims |= {"PRECISION": rng.choice(("f32", "f32", "bf16"))}
    for name, value in dims.items():
        text = text.replace(name, str(value))
    return text, 4 if "dp = 2" in text or "tp = 2" in text or "pp = 4" in text else 2


def _rules(rng: random.Random, dims: dict[str, int]) -> Iterator[str]:
    axis = rng.choice(("pp = 2", "pp = 2, dp = 2", "pp = 2, dp = 2", "pp = 2, tp = 2", "pp = 4"))
    schedule, virtual = rng.choice((
        ("gpipe", 1), ("1f1b", 1), ("1f1b", 1), ("interleaved_1f1b", 1), ("zero_bubble", 1), ("dualpipe_v", 2),
    ))  # fmt: skip
    virtual = 1 if "pp = 4" in axis else virtual
    schedule = "1f1b" if "pp = 4" in axis else schedule
    yield f"mesh {axis}"
    yield (
        "split batch over dp"
        if "dp" in axis
        else "split ffn, vocab over tp"
        if "tp" in axis
        else "bucket gradients 1MB"
    )
    yield f"stages over pp balanced{f', virtual = {virtual}' if virtual > 1 else ''}"
    yield f"microbatches {4 if schedule != 'dualpipe_v' else 8 if dims['BATCH'] == 16 else 4}"
    yield f'schedule "{schedule}"'
    if "dp" in axis and rng.random() < 0.7:
        yield f"zero {rng.choice((1, 2, 3))} over dp"
    if "dp" in axis and rng.random() < 0.4:
        yield f"bucket gradients {rng.choice(('2KB', '10KB', '25KB'))}"


def planned(text: str, ranks: int) -> Plan | None:
    """The plan of a pipeline; None where its strategy does not fit it."""
    return sources.tried(text, ranks, "s")[0]


def differs(plan: Plan, text: str, folder: Path) -> list[str]:
    """What the plan says otherwise than the ranks do, a line for each coordinate and kind of bytes."""
    here = list(stages_by_coordinate(plan))
    each = plan.ranks // len(here)
    held = peaks(text, plan.ranks, folder / "run", "s") if not lacks(plan) else []
    counted = written_by(folder / "run", plan.ranks, "sent") if held else wired(text, plan.ranks, folder / "run", "s")
    bytes_ = [sum(rank.values()) for rank in counted]
    rows = [(at, bytes_[at * each : (at + 1) * each], sum(sent_bytes(plan, mine))) for at, mine in enumerate(here)]
    found = [f"ranks of coordinate {at} send {row} bytes, and the plan says {said}" for at, row, said in rows
             if row != [said] * each]  # fmt: skip
    for at, peak in enumerate(step_peaks(plan) if held else ()):
        there = max(held[at * each : (at + 1) * each])
        if not 0.98 <= there.bytes / peak.bytes <= 1.02:
            most = f"a rank of coordinate {at} holds {there.bytes} bytes at {there.at}"
            found.append(f"{most}, and the plan says {peak.bytes} at {moment(plan, peak)}")
    return found


def tried(seed: int) -> tuple[Plan | None, list[str]]:
    """The plan of a seed, if its strategy fits, and what differs, or the end of what its ranks said as they failed."""
    text, ranks = written(seed)
    plan = None
    try:
        if (plan := planned(text, ranks)) is None:
            return None, []
        with tempfile.TemporaryDirectory() as folder:
            return plan, differs(plan, text, Path(folder))
    except Exception as error:  # the next seeds are tried all the same
        return plan, [f"{type(error).__name__}: {line}" for line in str(error).strip().splitlines()[-8:]]


def main(arguments: Sequence[str]) -> int:
    """0 where all bytes agree."""
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.pipelines", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="pipelines that are planned and run")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args(arguments)
    run, whole, wrong, seed = 0, 0, list[int](), options.seed
    while run < options.count:
        plan, found = tried(seed)
        run += plan is not None or bool(found)
        whole += plan is not None and not lacks(plan)
        wrong += [seed] if found else []
        said = "\n  ".join(found) or ("equal" if plan is not None else "not planned")
        print(f"{run} of {options.count}, seed {seed}: {said}", flush=True)
        seed += 1
    print(f"{run} pipelines of seeds {options.seed} to {seed - 1}, {whole} with their peaks; {len(wrong)} differ")
    for seed in wrong:
        print(f"python -m tests.end_to_end.pipelines --seed {seed} --count 1")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
