"""What SH450 and SH326 offer was planned: typed as it stands, it fits."""

from __future__ import annotations

import re

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.folds.fits import needed
from shardlang.plan.resolve import OF_SIZES
from shardlang.sources.source import Source
from tests.emit import sources

TEXT = """\
use std.llama: Llama

dim batch = 64, seq = 64

device card {
  memory = MEMORY
  compute = 1TFLOP/s
  bandwidth = 100GB/s
  link = 10GB/s
}

strategy ddp {
  mesh dp = auto
  split batch over dp
}

strategy open {
  mesh dp = auto, tp = auto
  split batch over dp
  split heads, kv_heads, ffn over tp
}

strategy again {
  mesh dp = auto
  split batch over dp
  at blocks[*]: recompute all but products
  microbatches 2
}

train {
  model = Llama(vocab = 64, d = 64, heads = 4, ffn = 128, layers = 8)
  data = random(tokens: i64[batch, seq] < 64, label: i64[batch, seq] < 64, batches = 2)
  loss = cross_entropy(model(tokens), label)
  optimizer = adamw(lr = 3e-4)
  precision = bf16
  steps = 2
}
"""


def told(memory: str, strategy: str | None, ranks: int, text: str = TEXT, tune: bool = False) -> list[Diagnostic]:
    """The mistakes of a program whose device has so much memory."""
    program = driver.check_source(Source("t.shard", text.replace("MEMORY", memory)), sink := Sink(), strategy=strategy)
    assert program is not None, [d.message for d in sink.found]
    if tune:
        driver.tune_program(program, driver.TuneRequest(ranks, strategy, budget=0.5), sink)
    else:
        driver.plan_program(program, strategy, ranks, sink)
    return sink.found


def typed(text: str, strategy: str, rules: list[str]) -> str:
    """The program with rules in place of those of their kind."""
    head, body = text.split(f"strategy {strategy} {{\n", 1)
    own, rest = body.split("}\n", 1)
    kinds = [rule.rpartition(": ")[2].split()[0] for rule in rules]
    kept = [line for line in own.splitlines() if not any(re.match(rf"  (at .*: )?{kind}\b", line) for kind in kinds)]
    return "\n".join([f"{head}strategy {strategy} {{", *kept, *(f"  {rule}" for rule in rules), "}", rest])


# Strategy, ranks, whether `tune` looks -> sizes of memory. Of 7 sizes under each of them every form of help is here.
MEMORY = {
    ("again", 1, False): ("24MB",),
    ("again", 4, False): ("24MB", "12MB", "1MB"),
    ("ddp", 1, False): ("12MB", "6MB", "1MB"),
    ("ddp", 4, False): ("24MB", "6MB", "3MB"),
    ("open", 4, False): ("9MB",),
    ("again", 4, True): ("24MB", "12MB"),
    ("ddp", 4, True): ("24MB", "6MB"),
    ("open", 1, True): ("12MB", "1MB"),
    ("open", 4, True): ("4.5MB", "3MB", "1MB"),
}


@pytest.mark.parametrize(
    ("strategy", "ranks", "tune", "memory"), [(*how, size) for how, sizes in MEMORY.items() for size in sizes]
)
def test_what_is_offered_fits(strategy: str, ranks: int, tune: bool, memory: str) -> None:
    found = told(memory, strategy, ranks, tune=tune)
    if not found:
        return
    (mistake,) = found
    assert mistake.code == ("SH325" if strategy == "open" and not tune else "SH326" if tune else "SH450")
    assert mistake.help
    for help in mistake.help:
        rules = re.findall(r"`([^`]*)`", help)
        more = [int(rule.split()[1]) for rule in rules if rule.startswith("--ranks")]
        if re.search(r"\bfits?\b", help) and "nothing" not in help:
            changed = typed(TEXT, strategy, [rule for rule in rules if not rule.startswith("--")])
            assert not told(memory, strategy, (more or [ranks])[0], changed, tune), help


def test_the_bytes_that_only_zero_makes_less_are_told() -> None:
    (mistake,) = told("6MB", "ddp", 4)
    assert mistake.help[0].startswith("parameters, gradients and optimizer alone take ")
    (rule,) = re.findall(r"`(zero . over dp)`", mistake.help[0])
    said, left = re.findall(r"[\d.]+ MB", mistake.help[0])
    plan = sources.planned(typed(TEXT, "ddp", [rule]).replace("MEMORY", "1GB"), 4, "ddp")
    assert float(left.split()[0]) * 1e6 < float(said.split()[0]) * 1e6 < max(needed(plan)) * 9


NET = """\
use std.nn: Linear

dim batch = 256, d = 32, ffn = 30

model Net {
  layer parts[2] = Linear(d, d)
  layer up = Linear(d, ffn)

  forward(x: [batch, d]) -> [batch, ffn] {
    return x |> parts |> up
  }
}

strategy s {
  RULES
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, ffn], batches = 2)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""
STAGES = "stages over pp {\n    0: parts[0]\n    1: parts[1], up\n  }"
MESHES = [
    ("mesh dp = 32; split batch over dp", 30),
    ("mesh dp = auto; split batch over dp", 30),
    ("mesh dp = auto, tp = 6; split batch over dp; split d over tp", 32),
    ("mesh dp = auto, tp = 3; split batch over dp; split d over tp", 32),
    ("mesh dp = 2, tp = 3; split batch over dp; split ffn, d over tp", 6),
    ("mesh dp = auto, tp = 4; split batch over dp; split ffn over tp", 160),
    ("mesh dp = 4, tp = 4; split batch over dp; split ffn over tp", 16),
    ("mesh dp = auto, tp = 4; split batch over dp; split ffn over tp", 4),
    (f"mesh pp = 2; {STAGES}", 3),
    (f"mesh pp = 3; {STAGES}", 3),
    (f"mesh pp = 3, dp = auto; {STAGES}; split batch over dp", 12),
]


@pytest.mark.parametrize(("rules", "ranks"), MESHES)
def test_sizes_and_ranks_that_are_offered_have_no_mistake(rules: str, ranks: int) -> None:
    """Each by itself, on the ranks that stand beside it; two sizes that are told with each other, together."""
    text = NET.replace("RULES", rules.replace("; ", "\n  "))

    def mistakes(sizes: dict[str, int], ranks: int) -> list[Diagnostic]:
        given = {f"s.{axis}": str(size) for axis, size in sizes.items()}
        return sources.tried(text, ranks, "s", settings=given)[1].found

    offered, helps = 0, [help for mistake in mistakes({}, ranks) for help in mistake.help]
    for part in (part for help in helps for part in re.split("; or |, or take |^or take ", help)):
        on = [int(number) for number in re.findall(r"\d+", "".join(re.findall(r"on ([\d, or]+) rank", part)))]
        pairs = [{axis: int(size)} for axis, size in re.findall(r"`(\w+) = (\d+)`", part)]
        pairs = [{**pairs[0], **pairs[1]}] if " with `" in part else pairs
        if (named := re.match(r"`(\w+)` could be ([\d, or]+)", part)) is not None:
            pairs = [{named[1]: int(size)} for size in re.findall(r"\d+", named[2])]
        for sizes in pairs or [{}] * bool(on):
            for count in sizes.values() if "as many" in part else on or [ranks]:
                offered += 1
                codes = {mistake.code for mistake in mistakes(sizes, count)}
                assert not codes & OF_SIZES, (part, sizes, count)
    assert offered, helps


def test_every_hole_is_underlined() -> None:
    rules = ["mesh dp = auto, tp = auto, pp = auto", "split batch over dp", "split auto over tp"]
    rules += ["stages over pp auto", "microbatches auto", "schedule auto", "zero auto over dp", "recompute auto"]
    (mistake,) = told("1GB", "ddp", 4, typed(TEXT, "ddp", rules))
    assert mistake.code == "SH325" and mistake.primary is not None
    many = int(re.findall(r"leaves (\d+) things", mistake.message)[0])
    assert many == len({(at.span.start, at.span.end) for at in (mistake.primary, *mistake.labels)}) == 9


def test_a_size_that_an_option_gives_is_told() -> None:
    text = NET.replace("RULES", "mesh dp = auto, tp = auto\n  split batch over dp")
    (mistake,) = sources.tried(text, 30, "s", settings={"s.tp": "4"})[1].found
    assert (mistake.code, mistake.notes) == ("SH303", ("`--set s.tp=4` is in force",))
