"""Programs on the pretended device: their losses are the CPU's to the bit, and nothing of host and device is mixed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.device.run import OnBoth, trained
from tests.end_to_end.curves import ROOT, RunOf
from tests.end_to_end.test_hosted import TEXT, clicks

pytestmark = pytest.mark.slow


def _same(found: OnBoth, name: str = "loss") -> None:
    cpu, device = found.figures(name)
    assert len(cpu) > 1 and cpu == device


def _nothing_waits(found: OnBoth) -> None:
    """The host gives the device work and never waits for it: neither for a number nor for a copy."""
    for counts in found.counts:
        assert counts["waits"] == {}
        assert [place for place in counts["copies"] if "waited for" in place] == []


@pytest.mark.parametrize("optimizer", ["adam(lr = 3.5e-3)", "adamw(lr = 3.5e-3)"])
def test_tables_on_the_host_of_ranks_on_a_device(optimizer: str, tmp_path: Path) -> None:
    """Gradients of tables are exchanged where they are; the norm and one optimizer are of host and device."""
    (tmp_path / "clicks.txt").write_text(clicks(64))
    (rules, _) = TEXT.split("  optimizer at wide_table")
    text = f"{rules.replace('EVAL', '')}  optimizer = {optimizer}\n  clip = 0.5\n  epochs = 1\n}}\n"
    runs = [RunOf("host_device", 1), RunOf("host_device", 2), RunOf("split_tables", 2), RunOf("exchanged", 2)]
    for found in trained(text, runs, tmp_path).values():
        _same(found)


def test_the_examples_that_have_their_data(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "digits.shard").read_text().replace("epochs = 10", "epochs = 1")
    runs = [RunOf("", 1), RunOf("both", 4), RunOf("sharded", 2)]
    for found in trained(text, runs, tmp_path, ROOT / "examples").values():
        _same(found)
        _same(found, "accuracy")
        _nothing_waits(found)


STAGED = """
dim batch = 16, d = 8

model Block(h: dim = 4) {
  param w: [d, h] = normal(0.3)
  param v: [h, d] = normal(0.3)
  param s: [d] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    return x + (relu(x @ w) @ v) * s
  }
}

model Net {
  layer blocks[4] = Block()

  forward(x: [batch, d]) -> [batch, d] {
    return x |> blocks
  }
}

strategy both {
  mesh pp = 2, dp = 2
  split batch over dp
  stages over pp balanced
  microbatches 4
  zero 3 over dp
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 4, seed = 1)
  out = model(x)
  loss = mse_loss(out, y)
  metric size = mean(out * out)
  optimizer = adamw(lr = 1e-2)
  clip = 0.5
  steps = 3
}
"""


LOW = """
use std.gpt2: GPT2

dim batch = 8, seq = 8

strategy whole {
  mesh dp = 2
  split batch over dp
  microbatches 2
}

strategy rows {
  mesh dp = 2
  split batch over dp
  microbatches 2
  zero 1 over dp
}

train {
  model = GPT2(vocab = 58, d = 32, heads = 2, layers = 2, max_len = 8, dropout = 0.0)
  data = random(tokens: i64[batch, seq] < 58, label: i64[batch, seq] < 58, batches = 4)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-2)
  precision = bf16
  steps = 4
}
"""


def test_one_kernel_a_step_casts_all_parameters(tmp_path: Path) -> None:
    """In bf16, for any number of microbatches. Under ZeRO another one joins the rows of a bucket; this rank's own are
    among those that have come, and are copied again only where they changed since. In each microbatch one casts both
    gradients of a product with a bias, of which a layer has six, and one that of each of the table's two uses; under
    ZeRO the positions have a copy too.
    """
    gradients = 2 * (2 * 6 + 2)
    runs = {RunOf("whole", 2): 4 * (1 + gradients), RunOf("rows", 2): 4 * (2 + gradients + 2)}
    for run, found in trained(LOW, list(runs), tmp_path).items():
        cpu, device = found.figures()
        assert device == pytest.approx(cpu, rel=1e-2) and len(cpu) == 4
        assert [counts["kernels"]["_foreach_copy_"] for counts in found.counts] == [runs[run]] * 2
        _nothing_waits(found)


def test_no_group_is_made_after_the_start(tmp_path: Path) -> None:
    """Also for messages of stages, for sums of figures and for the norm: all are there before the first step."""
    run = RunOf("both", 4)
    found = trained(STAGED, [run], tmp_path)[run]
    _same(found)
    _nothing_waits(found)
    assert [counts["groups"][counts["groups_before"] :] for counts in found.counts] == [[]] * 4
    assert "0>2 pretended" in found.counts[0]["groups"]


def test_the_memory_of_each_rank_is_compared_with_its_plan(tmp_path: Path) -> None:
    """At the end, where they are far from each other, by one line for all ranks and without a further group."""
    run = RunOf("both", 4)
    found = trained(STAGED, [run], tmp_path, peak=1_000_000_000)[run]
    assert [line for line in found.counts[0]["notes"] if "GB" in line] == []  # the plan has no device: it counts none
    text = STAGED.replace("train {", "device card {\n  memory = 80GB\n  compute = 100TFLOP/s\n}\n\ntrain {")
    (folder := tmp_path / "planned").mkdir()
    found = trained(text, [run], folder, peak=1_000_000_000)[run]
    for counts in found.counts:
        [line] = [line for line in counts["notes"] if "GB" in line]
        assert re.fullmatch(r"rank \d held 1.00 GB at most, and the plan counts 0.00 GB: \d+ % more", line)
        assert counts["groups"][counts["groups_before"] :] == []


BEGUN = """
dim batch = 8, seq = 4, d = 8, h = 6

model Step {
  param w: [d, h] = normal(0.3)

  forward(x: [batch, d], before: [batch, h]) -> [batch, h] {
    return tanh(x @ w + before)
  }
}

model Net {
  layer step = Step()

  forward(x: [batch, seq, d]) -> [batch, h] {
    last = scan(step, x, expand(0.0 -> [batch, h]), over = seq)
    return last
  }
}

strategy split {
  mesh dp = 2
  split batch over dp
}

train {
  model = Net()
  data = random(x: [batch, seq, d], y: [batch, h], batches = 4, seed = 1)
  loss = mse_loss(model(x), y)
  optimizer = adamw(lr = 1e-2)
  steps = 3
}
"""


def test_a_number_that_is_repeated_is_on_the_device(tmp_path: Path) -> None:
    """As the state before the first step of a recurrence is; none of its elements comes from the host."""
    run = RunOf("split", 2)
    found = trained(BEGUN, [run], tmp_path)[run]
    _same(found)
    _nothing_waits(found)


@pytest.mark.parametrize("precision", ["f32", "tf32"])
def test_a_device_rounds_products_where_that_is_asked_for(precision: str, tmp_path: Path) -> None:
    """What is kept and what the host computes is in f32 all the same."""
    run = RunOf("both", 4)
    found = trained(STAGED.replace("steps = 3", f"steps = 3\n  precision = {precision}"), [run], tmp_path)[run]
    _same(found)
    assert [counts["rounds"] for counts in found.counts] == [precision == "tf32"] * 4


def test_a_step_is_timed_by_the_device(tmp_path: Path) -> None:
    """Not by the host, which runs ahead of it: here a kernel takes a millisecond. Records say that it does."""
    run = RunOf("both", 4)
    found = trained(STAGED, [run], tmp_path)[run]
    times = found.figures("step_ms")[1]
    assert all(time == round(time) > 50 for time in times)
    assert max(times[1:]) - min(times[1:]) <= 0.2 * max(times), times
    assert all(counts["ahead"] for counts in found.counts)


TENSOR = """
use std.gpt2: GPT2

dim batch = 8, seq = 8

strategy sequence {
  mesh tp = 2
  split heads, ffn, vocab over tp
  split seq over tp?
  at blocks[*]: recompute
}

strategy gathers {
  mesh tp = 2
  split heads, ffn, vocab over tp
  split seq over tp?
  microbatches 2
  at blocks[*]: recompute gathers
}

train {
  model = GPT2(vocab = 32, d = 16, heads = 2, layers = 2, max_len = 8, dropout = 0.1)
  data = random(tokens: i64[batch, seq] < 32, label: i64[batch, seq] < 32, batches = 4)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-3)
  epochs = 1
}
"""


def test_gradients_of_weights_beside_the_sums_of_their_operands(tmp_path: Path) -> None:
    """A device computes one while the other travels (tests/runtime/test_beside.py), the CPU does not: the products of
    q, k, v and up in each layer and of the logits, in each microbatch of four steps.
    """
    runs = {RunOf("sequence", 2): 1, RunOf("gathers", 2): 2}
    for run, found in trained(TENSOR, list(runs), tmp_path).items():
        _same(found)
        _nothing_waits(found)
        assert [counts["products_beside"] for counts in found.counts] == [4 * runs[run] * (2 * 4 + 1)] * 2


LOOKED_UP = """
dim batch = 8, seq = 4, rows = 8, d = 4, classes = 6

model Net {
  param table: [rows, d] = normal(1.0)
  param out: [d, classes] = normal(1.0)

  forward(ids: i64[batch, seq]) -> [batch, seq, classes] {
    return take(table, ids * 3, over = rows) @ out
  }
}

strategy split {
  mesh tp = 2
  split rows over tp
}

train {
  model = Net()
  data = random(ids: i64[batch, seq] < 3, label: i64[batch, seq] < 4, batches = 3)
  loss = cross_entropy(model(ids), label + 2, ignore_index = 2)
  optimizer = sgd(lr = 0.1)
  steps = 3
}
"""


def test_nothing_waits_for_indices_that_the_program_computes(tmp_path: Path) -> None:
    run = RunOf("split", 2)
    found = trained(LOOKED_UP, [run], tmp_path)[run]
    _same(found)
    _nothing_waits(found)
    # Of the ids and of the labels, in each of three steps.
    assert [counts["kernels"]["_assert_async"] for counts in found.counts] == [6, 6]
