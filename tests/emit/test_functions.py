"""Calls that are told to be the same block have the same text, letter for letter, and each step stands in one place."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.emit.emit import emission
from shardlang.emit.functions import FunctionBody, _carried
from shardlang.emit.scene import calls_of
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from shardlang.step.blocks.call import BlockCall
from tests.emit.sources import main_file, planned
from tests.end_to_end.test_folded import LLAMA, LOW, TRANSLATOR
from tests.generated import program, strategies
from tests.plan.test_equal_layers import filled


def generated(seed: int) -> Plan | None:
    """The plan of a generated pair; None where it is refused."""
    rng, sink = random.Random(seed), Sink()
    written = program.write(rng)
    checked = driver.check_source(Source("generated.shard", written.text("")), Sink())
    assert checked is not None
    rules = strategies.write(rng, checked.graph, None, written.apart, written.deep)
    checked = driver.check_source(Source("generated.shard", written.text(rules.text)), sink)
    return driver.plan_program(checked, None, rules.ranks, sink) if checked is not None else None


def functions_of(body: FunctionBody) -> Iterator[tuple[FunctionBody, BlockCall]]:
    """The calls of functions below a body, each with the body of the block that it is an instance of."""
    for item in body.items:
        for call in calls_of(item):
            inner = FunctionBody(body.functions, body.scene, call)
            yield inner, call
            yield from functions_of(inner)


def calls(call: BlockCall) -> Iterator[BlockCall]:
    """All calls in a call."""
    for item in call.items:
        if isinstance(item, BlockCall):
            yield item
            yield from calls(item)


def held(plan: Plan) -> int:
    """How many calls were looked at."""
    made, looked = emission(plan), 0
    for forward in made.forwards:
        for body in (forward.trained, forward.shown):
            steps = list(body.call.steps())
            assert len(steps) == len(set(steps))
            assert set(steps) == {step for step in body.scene.steps if not body.scene.forms.silent(step)}
            for inner, call in functions_of(body):
                written = made.functions.made[call.block, body.scene.training].text
                assert written.partition("(")[2] == inner.text(), call.path
                looked += 1
    return looked


@pytest.mark.parametrize(
    ("text", "strategy", "ranks", "least"),
    [(TRANSLATOR, "three_d", 8, 18), (TRANSLATOR, "looped", 4, 18), (LOW, "sharded", 2, 18), (LLAMA, "staged", 2, 12)],
)
def test_the_same_block_has_the_same_text(text: str, strategy: str, ranks: int, least: int) -> None:
    assert held(planned(text, ranks, strategy)) >= least


def test_the_same_block_of_generated_programs_has_the_same_text() -> None:
    plans = [plan for plan in map(generated, range(40_000, 40_120)) if plan is not None]
    assert len(plans) > 60
    assert sum(map(held, plans)) > 30


APART = """strategy apart {
  mesh dp = auto
  split batch over dp
  at encoder.blocks[1].y: [batch, src@dp, d]
  at decoder.blocks[2]: recompute
}

train {"""


def test_a_layer_that_is_treated_differently_is_a_block_of_its_own() -> None:
    text = TRANSLATOR.replace("train {", APART).replace("layers: int = 3", "layers: int = 5")
    plan = planned(text, 2, "apart")
    assert held(plan) >= 10
    blocks = {call.path: call.block for call in calls(emission(plan).forwards[0].trained.call)}
    encoder, decoder = ([blocks[f"{name}.blocks[{at}]"] for at in range(5)] for name in ("encoder", "decoder"))
    assert encoder[1] not in encoder[2:] and encoder[2] == encoder[3] == encoder[4]
    assert decoder[2] not in (decoder[1], *decoder[3:]) and decoder[1] == decoder[3] == decoder[4]
    forward = emission(plan).written[0].texts[0]
    assert "for block in p.encoder.blocks[2:5]:" in forward and "for layer in p.decoder.blocks[3:5]:" in forward
    assert re.search(r"rt\.recompute\(\s*decoder_block_\d, p\.decoder\.blocks\[2\], ", forward)
    assert "encoder_block(p.encoder.blocks[0], x)" in forward


def test_a_loop_carries_each_result_to_the_operand_that_reads_it() -> None:
    def call(at: int, reads: tuple[int, ...], gives: tuple[int, ...]) -> BlockCall:
        return BlockCall(f"blocks[{at}]", "Block", (), tuple((v, -1) for v in reads), tuple((v, -1) for v in gives), 0)

    readers = dict.fromkeys([(v, -1) for v in range(9)], 1)
    crossed = [call(0, (0, 1, 8), (2, 3)), call(1, (3, 2, 8), (4, 5)), call(2, (5, 4, 8), (6, 7))]
    assert _carried(crossed, readers) == {0: 1, 1: 0}
    assert _carried([*crossed[:2], call(2, (4, 5, 8), (6, 7))], readers) is None  # not crossed in the last
    assert _carried(crossed, readers | {(3, -1): 2}) is None  # read by another one too
    assert _carried([*crossed[:2], call(2, (5, 4, 0), (6, 7))], readers) is None  # another memory
    assert _carried(crossed[:1], readers) is None


SCALES = """
dim batch = 4, d = 2

model Scale {
  param by: [d] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    return x * by
  }
}

model Deep {
  layer blocks[LAYERS] = Scale()

  forward(x: [batch, d]) -> [batch, d] {
    return x |> blocks
  }
}

train {
  model = Deep()
  data = random(x: [batch, d], batches = 1)
  loss = mean(model(x))
  optimizer = sgd(lr = 0.1)
  steps = 1
}
"""


@pytest.mark.parametrize(("layers", "inline"), [(64, True), (65, False)])
def test_very_many_layers_are_a_loop_also_where_each_is_one_line(layers: int, inline: bool) -> None:
    text = main_file(SCALES.replace("LAYERS", str(layers)), 1)
    assert ("for block in p.blocks[1:" in text) is not inline
    assert text.count(".by ") == (layers if inline else 2)  # the first layer's operand has no gradient


def test_names_do_not_grow_with_the_layers_before() -> None:
    """What a function is given is called by its own path, however much it was computed from."""
    text = filled({
        "STATES": "", "NORM": "relu(v0)", "RESULT": "v3", "LAST": "b", "COUNT": "6", "OTHERS": "1", "NESTED": "1",
        "BODY": "v1 = dropout(v0, 0.1)\n    v2 = inner(v1)\n    v3 = v2 @ up @ down", "BESIDE": "beside",
        "RULES": "mesh dp = 2, tp = 2\n  split batch over dp\n  split d over tp\n  at **.inner: recompute",
        "OPTIMIZER": "optimizer = adamw(lr = 1e-3)\n  freeze at blocks[*].inner", "PRECISION": "bf16", "DEVICE": "",
    })  # fmt: skip
    longest = max(len(name) for name in re.findall(r"\w+", main_file(text, 4)))
    assert longest < 40
