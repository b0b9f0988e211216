"""Where a device says what its context and libraries take, `tune` offers what `plan` accepts, and says what a margin
costs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from shardlang import driver
from shardlang.cli.main import run
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import device, needed
from shardlang.folds.reserved.footprint import footprint
from shardlang.plan.plan import Plan
from shardlang.sources.source import Source
from tests.emit import sources

# A device that the tensors of the fastest plan fill, and no more: torch's segments, NCCL's buffers and the context
# need room too.
TEXT = """\
use std.llama: Llama

dim batch = 32, seq = 2048

device card {
  memory = 4.8GB
  reserved = 0.8GB
  compute = 989TFLOP/s
  bandwidth = 3350GB/s
  link = 900GB/s
}

strategy open {
  mesh dp = auto
  split batch over dp
  microbatches 1
  zero 3 over dp
  recompute auto
}

train {
  model = Llama(vocab = 8192, d = 1024, heads = 16, kv_heads = 16, ffn = 2816, layers = 8)
  data = tokens("data/*.bin", batch = batch, seq = seq)
  loss = cross_entropy(model(tokens), label)
  optimizer = adamw(lr = 3e-4)
  precision = bf16(stream = bf16)
  steps = 10
}
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("tuned") / "t.shard"
    file.write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        shown: list[object] = []
        patch.setattr("shardlang.cli.output.show_json", shown.append)
        assert run(["tune", str(file), "--ranks", "8", "--json"]) == 0
    return json.loads(json.dumps(shown[0]))


def planned(text: str) -> list[str]:
    """The codes that `plan` reports of a strategy that was offered."""
    strategy = re.sub(r"^##.*\n", "", text, flags=re.MULTILINE)
    text = TEXT.replace("train {", strategy + "\ntrain {")
    return [d.code for d in sources.tried(text, 8, "open_8")[1].found]


def test_what_is_offered_is_accepted(found: dict[str, Any]) -> None:
    for row in found["best"]:
        assert planned(row["text"]) == [], row["text"]
        assert 0.95 * 4.8e9 < row["memory"] <= 4.8e9


def test_a_margin_has_its_price(found: dict[str, Any]) -> None:
    best, spare = found["best"][0], found["spare"]
    assert best["memory"] > 0.95 * 4.8e9 >= spare["memory"]
    assert planned(spare["text"]) == []
    assert spare["predicted"]["step_s"] > best["predicted"]["step_s"]
    assert spare["facts"]["recompute"] != best["facts"]["recompute"]


# Eight stages whose coordinates are nearly full in different degree.
STAGED = (
    TEXT.replace("batch = 32", "batch = 64").replace("memory = 4.8GB", "memory = 6.5GB\n  communicator = 0.2GB")
    .replace("mesh dp = auto", "mesh pp = 8, dp = auto").replace("microbatches 1", "microbatches 16")
    .replace("zero 3 over dp", "stages over pp balanced").replace("layers = 8", "layers = 16")
)  # fmt: skip


def planned_as(rules: str, memory: str = "6.5GB", vocab: int = 8192) -> Plan:
    text = STAGED.replace("strategy open", "strategy written").replace("recompute auto", rules)
    text = text.replace("6.5GB", memory).replace("vocab = 8192", f"vocab = {vocab}")
    return sources.planned(text, 8, "written", name="t.shard")


def test_every_coordinate_is_held_to_its_segments() -> None:
    """Not that alone whose tensors take most: torch's allocator takes more than they on each that is nearly full."""
    rules = 'schedule "gpipe"'
    wide = planned_as(rules, "80GB", 256)
    memory = max(needed(wide)) + 2 * 10**8
    plan = planned_as(rules, f"{memory}B", 256)
    has = device(plan.program)
    assert has is not None
    close = [at for at, bytes in enumerate(needed(plan)) if bytes > 0.95 * has.memory]
    assert len(close) > 2
    for at in close:
        found = footprint(plan, has.memory, has.reserved, True, has.group, has.node, at)
        assert needed(plan)[at] == found.device > needed(wide)[at] or needed(wide)[at] == max(needed(wide))


def test_what_was_found_is_not_lost_to_fewer_layers() -> None:
    """A plan that is written and fits is not faster than what is found."""
    program = driver.check_source(Source("t.shard", STAGED), sink := Sink())
    answer = driver.tune_program(program, driver.TuneRequest(8), sink) if program is not None else None
    step = driver.predict_plan(planned_as("at blocks[0..6]: recompute all but products"), Sink())
    assert answer is not None and step is not None
    assert answer.rows[0].prediction.step_s <= step.step_s
