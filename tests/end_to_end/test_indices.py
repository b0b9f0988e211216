"""Indices that a program computes: one that is no place of its dim ends the run, under all strategies in one way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shardlang.errors import RunError
from shardlang.graph.bounds import computed_indices
from shardlang.graph.graph import Graph
from shardlang.interpret.meaning import initial, whole
from shardlang.interpret.ranks import ranks
from shardlang.plan.plan import Plan
from shardlang.runtime.functions import indices
from tests.cli.process import shardc
from tests.emit import sources

TEXT = """\
use std.nn: Linear

dim batch = 8, rows = 8, d = 4, classes = 6

model Rows {
  param table: [rows, d] = normal(1.0)

  forward(ids: i64[batch]) -> [batch, d] {
    x = FOUND
    return x
  }
}

model Net {
  layer first = Rows()
  layer last = Linear(d, classes)

  forward(ids: i64[batch]) -> [batch, classes] {
    return last(first(ids))
  }
}

strategy data { mesh dp = auto
  split batch over dp
  zero 3 over dp }

strategy rows_apart { mesh tp = auto
  split rows over tp
  microbatches 2 }

strategy exchanged { mesh dp = auto
  split batch, rows over dp }

strategy classes_apart { mesh tp = auto
  split classes over tp
  at first: recompute }

strategy staged { mesh pp = auto
  stages over pp { 0: first
    1: last }
  microbatches 2 }

strategy hosted { mesh tp = auto
  split rows over tp
  at first.table, first.x: place on host }

train {
  model = Net()
  data = numpy("train.npz", ids: i64[batch], label: i64[batch], shuffle = false)
  EVAL
  loss = LOSS
  optimizer = sgd(lr = 0.1)
  precision = f64
  COMPILE
  epochs = 1
}
"""
EMBEDDING, LABEL = "embedding(ids * 3, table)", "cross_entropy(model(ids), label + 2)"
FOUND = {
    "embedding": EMBEDDING,
    "take": "take(table, ids * 3, over = rows)",
    "one_hot": "cast(one_hot(ids * 3, rows), f64) @ table",
    "gather": "table[rows = 0] * rearrange(gather(CORNERS, ids * 3, over = rows) -> [batch, 1])",
}
LOSSES = {
    "cross_entropy": LABEL,
    "smoothed": "cross_entropy(model(ids), label + 2, label_smoothing = 0.1)",
    "ignoring": "cross_entropy(model(ids), label + 2, ignore_index = -3)",
    "nll_loss": "nll_loss(log_softmax(model(ids), over = classes), label + 2)",
}
IDS = "`ids * 3` has the index {}, and must be from 0 to 7: `rows` is 8"
LABELS = "`label + 2` has the index {}, and must be from 0 to 5: `classes` is 6"


def text(found: str = EMBEDDING, loss: str = LABEL, eval: str = "", compile: str = "") -> str:
    made = TEXT.replace("FOUND", found).replace("LOSS", loss).replace("EVAL", eval).replace("COMPILE", compile)
    return made.replace("CORNERS", "cast(one_hot(ids, rows), f64)")


def written(folder: Path, name: str = "train.npz", ids: int = 2, label: int = 3) -> None:
    """Sixteen examples, of which the fourth has this id and this label."""
    all_ids, labels = np.tile([0, 1, 2], 6)[:16], np.tile([0, 1, 2], 6)[:16]
    all_ids[3], labels[3] = ids, label
    np.savez(folder / name, ids=all_ids, label=labels)


def planned(made: str, strategy: str) -> Plan:
    return sources.planned(made, 2, strategy, name="net.shard")


def fields(graph: Graph, ids: int, label: int) -> dict[int, torch.Tensor]:
    """A batch, of which the fourth example has this id and this label."""
    made = {"ids": torch.arange(8) % 3, "label": torch.arange(8) % 3}
    made["ids"][3], made["label"][3] = ids, label
    return {v: made[graph.values[v].name] for v in graph.data}


def refused(plan: Plan, ids: int, label: int, simulated: bool) -> str:
    """What one device, or simulated ranks, say of a batch; "" where they compute it."""
    batch, params = fields(plan.graph, ids, label), initial.initial(plan.graph, 1)
    try:
        if simulated:
            ranks.run(plan, batch, ranks.store(plan, params))
        else:
            whole.run(plan.graph, batch, params)
    except RunError as error:
        return str(error)
    return ""


STRATEGIES = ("data", "rows_apart", "exchanged", "classes_apart", "staged", "hosted")
CASES = [
    *((FOUND[name], LABEL, ids, 3, IDS) for name in FOUND for ids in (3, -1)),
    *((EMBEDDING, LOSSES[name], 2, label, LABELS) for name in LOSSES for label in (4, -3)),
]


@pytest.mark.parametrize(("found", "loss", "ids", "label", "words"), CASES)
def test_one_device_and_all_strategies_say_the_same(found: str, loss: str, ids: int, label: int, words: str) -> None:
    made = text(found, loss)
    first = planned(made, STRATEGIES[0])
    told = refused(first, ids, label, simulated=False)
    assert words.format(3 * ids if words is IDS else label + 2).split(":")[0] in told
    assert "SH519" in told and "--> net.shard:" in told
    for strategy in STRATEGIES if found == EMBEDDING else set(STRATEGIES) - {"exchanged", "hosted"}:
        assert refused(planned(made, strategy), ids, label, simulated=True) == told, strategy
        assert not refused(planned(made, strategy), 2, 3, simulated=True)


def run(folder: Path, strategy: str, *words: str) -> str:
    """What `shardc run` says on two real ranks; the exit code first."""
    ended = shardc("run", "net.shard", "--ranks", "2", "--strategy", strategy, "--device", "cpu", *words, folder=folder)
    return f"{ended.returncode} {ended.stderr.partition('  log:')[0]}"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["ids", "label"])
def test_real_ranks_end_with_the_same_words(tmp_path: Path, what: str) -> None:
    (tmp_path / "net.shard").write_text(text())
    written(tmp_path, **{what: 4})
    told = {run(tmp_path, strategy) for strategy in STRATEGIES}
    words = IDS.format(12) if what == "ids" else LABELS.format(6)
    assert len(told) == 1 and told.pop().startswith(f"3 error[SH519]: {words}\n  --> net.shard:")


@pytest.mark.slow
def test_verify_and_simulated_runs_do_so_too(tmp_path: Path) -> None:
    (tmp_path / "net.shard").write_text(text())
    written(tmp_path, ids=4)
    verified = shardc("verify", "net.shard", "--ranks", "2", "--strategy", "rows_apart", folder=tmp_path)
    assert verified.returncode == 3 and IDS.format(12) in verified.stderr and "SH510" not in verified.stderr
    assert IDS.format(12) in run(tmp_path, "rows_apart", "--simulate")


@pytest.mark.slow
def test_evaluation_and_compiled_blocks_do_so_too(tmp_path: Path) -> None:
    """In `eval` a loss is summed by another text; a compiled function looks at each index, too."""
    written(tmp_path)
    written(tmp_path, "test.npz", label=6)
    eval = 'eval = numpy("test.npz", ids: i64[batch], label: i64[batch], shuffle = false)'
    (tmp_path / "net.shard").write_text(text(eval=eval))
    for strategy in ("data", "classes_apart"):
        assert LABELS.format(8) in run(tmp_path, strategy), strategy
    written(tmp_path, ids=-1)
    (tmp_path / "net.shard").write_text(text(compile="compile = blocks"))
    for strategy in ("data", "rows_apart"):
        assert IDS.format(-3) in run(tmp_path, strategy), strategy


def test_what_is_known_is_not_looked_at() -> None:
    """Fields are looked at as they are read, places are what they are; both may be moved."""
    known = {
        "embedding(ids, table)",
        "embedding(roll(ids, over = batch, shift = 1), table)",
        "embedding(argmax(embedding(ids, table), over = d), table)",
        "rearrange(embedding(top_k(embedding(ids, table), 1, over = d), table) -> [batch, d])",
    }
    for found in known:
        graph = planned(text(found, "cross_entropy(model(ids), label)"), "data").graph
        assert not computed_indices(graph), found
    assert [each.what for each in computed_indices(planned(text(), "data").graph).values()] == ["ids * 3", "label + 2"]


class Apart:
    """A device whose host does not wait for it."""

    apart = True

    def host_memory(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(like)


def test_a_device_ends_the_program_and_the_host_knows_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indices, "kind_of", lambda device: Apart())
    monkeypatch.setattr(indices, "_ends", {})
    place = "ids * 3", "rows", "net.shard", 9
    indices.within(torch.tensor([0, 7]), 8, *place)
    indices.within(torch.tensor([0, -100, 7]), 8, *place, -100)
    assert indices.met() is None
    with pytest.raises(RuntimeError, match=r"an index of `ids \* 3` is not from 0 to 7 \(net.shard:9\)"):
        indices.within(torch.tensor([0, 12]), 8, *place)
    assert IDS.format(12) in str(indices.met())
