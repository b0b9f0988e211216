"""`python -m tests.search.graphs [--count 200] [--seed 0]`: what operators choose against all that they could, on
random graphs of up to 6 operators.

The integer program takes as little as the best of all options together; so does dynamic programming on chains, and
elsewhere it takes no less.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import re
import sys

from shardlang import driver
from shardlang.cost.hardware import Hardware
from shardlang.diagnostics.diagnostic import Sink
from shardlang.search.splits.chain import in_sequence
from shardlang.search.splits.choices import Choices, found_choices, resolved
from shardlang.search.splits.halving import greedily
from shardlang.search.splits.integer_program import solved
from shardlang.search.splits.seconds import SplitPrices
from shardlang.sources.source import Source

PROGRAM = """dim batch = 8, p = 8, q = 16, r = 4

model Net {{
{params}

  forward(x: [batch, p]) -> [batch, {out}] {{
{statements}
  }}
}}

strategy s {{
  mesh {mesh}
}}

train {{
  model = Net()
  data = random(x: [batch, p], batches = 4, seed = 1)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}}
"""
# More options together than these are not all tried.
MOST = 30_000


def program(rng: random.Random, chain: bool) -> tuple[str, tuple[str, ...]]:
    """The text of a random program of at most 4 operators and a loss of 2, and its axes."""
    params, statements, values = list[str](), list[str](), [("x", "p")]
    for at in range(rng.randint(1, 4)):
        (a, dim), (b, other) = values[-1] if chain else rng.choice(values), rng.choice(values)
        kinds = ["product", "product", "relu", "softmax", *(["add", "mul"] if not chain and other == dim else [])]
        kind, into = rng.choice(kinds), dim
        if kind == "product":
            into = rng.choice([each for each in "pqr" if each != dim])
            params.append(f"  param w{at}: [{dim}, {into}] = normal(0.1)")
            text = f"{a} @ w{at}"
        else:
            text = {"relu": f"relu({a})", "softmax": f"softmax({a}, over = {dim})"}.get(kind, "")
            text = text or f"{a} {'+' if kind == 'add' else '*'} {b}"
        statements.append(f"    h{at} = {text}")
        values.append((f"h{at}", into))
    last, out = values[-1]
    if not params:
        params, last = [f"  param w: [{out}] = normal(0.1)"], f"{last} * w"
    axes = rng.choice((("t",), ("t",), ("a", "b")))
    mesh = ", ".join(f"{axis} = {rng.choice((2, 4)) if len(axes) == 1 else 2}" for axis in axes)
    lines = "\n".join([*statements, f"    return {last}"])
    return PROGRAM.format(params="\n".join(params), out=out, statements=lines, mesh=mesh), axes


def hardware(rng: random.Random) -> Hardware:
    """A machine on which now computing, now latency, now bytes decide."""
    rate = 10.0 ** rng.randint(6, 12)
    slow = 10.0 ** rng.randint(-9, -5)
    return Hardware(
        "h", compute=rate, compute_f32=rate, bandwidth=10.0 ** rng.randint(7, 11), link=10.0 ** rng.randint(6, 10),
        link_latency=slow, devices=16, launch=slow, base=slow,
    )  # fmt: skip


def choices(rng: random.Random, chain: bool) -> tuple[str, Choices]:
    """A random program and its choices, not too many to try all."""
    while True:
        text, axes = program(rng, chain)
        sink = Sink()
        checked = driver.check_source(Source("t.shard", text), sink)
        if checked is None:
            continue  # a value that nothing reads
        ranks = math.prod(map(int, re.findall(r"= (\d)", text.partition("mesh ")[2].partition("\n")[0])))
        read = resolved(checked, checked.strategies[0], ranks)
        assert read is not None, text
        rates = SplitPrices(hardware(rng), read[0].meshes, ranks)
        found = found_choices(read, axes, axes, rates)
        if found is not None and math.prod(len(choice.options) for choice in found.choices) <= MOST:
            return text, found


def wrong(rng: random.Random) -> str | None:
    """What is wrong with the choices of one graph; None where nothing is."""
    chain = rng.random() < 0.4
    text, of = choices(rng, chain)
    least = min(map(of.seconds, itertools.product(*(range(len(choice.options)) for choice in of.choices))))
    solution = solved(of)
    if solution is None or not solution.optimal or of.seconds(solution.picks) > least * (1 + 1e-9):
        return f"the integer program takes {solution and of.seconds(solution.picks)}, {least} is least\n{text}"
    ways = of.seconds(in_sequence(of, None)), of.seconds(greedily(of))
    if min(ways) < least * (1 - 1e-9) or (chain and ways[0] > least * (1 + 1e-9)):
        return f"dynamic programming takes {ways[0]}, halving {ways[1]}, {least} is least\n{text}"
    limit = rng.randint(0, max(of.kept(solution.picks), 1))
    fitting = of.kept(in_sequence(of, limit))
    smallest = sum(min(choice.kept) for choice in of.choices)
    if fitting > max(limit, smallest):
        return f"{fitting} bytes are kept, {limit} is the limit and {smallest} could be kept\n{text}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked, failed = parser.parse_args(), 0
    for seed in range(asked.seed, asked.seed + asked.count):
        found = wrong(random.Random(seed))
        if found is not None:
            failed += 1
            print(f"--seed {seed}: {found}", flush=True)
    print(f"{asked.count - failed} of {asked.count} graphs: no options take less")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
