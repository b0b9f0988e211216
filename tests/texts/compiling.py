"""A real case of each error that commands report of programs which have no mistakes that checking them shows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from shardlang.check.generates import generates
from shardlang.cli.output import show_fault
from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.emit import emission, files_of
from shardlang.facts.actions import listed as actions
from shardlang.interpret.ranks import limits
from shardlang.matched import proof
from shardlang.matched.lines import ActionRow, AxisGroup, Line, Local, Uneven
from shardlang.matched.stages import prove_order, prove_types
from shardlang.matched.ties import Joint, prove_ties
from shardlang.runtime.predict.generate import Drawing, Generate
from shardlang.weights.like import like
from tests.cli.process import NET
from tests.emit import sources
from tests.emit.sources import planned
from tests.texts.made import place, reported, said, told

Patch = pytest.MonkeyPatch


def sh402(folder: Path, patch: Patch) -> Iterator[str]:
    Path("net.shard").write_text(NET[: NET.index("train {")])
    for words in (["plan"], ["tune", "--cluster", "std.clusters.h100_pod"]):
        yield said(words[0], "net.shard", "--ranks", "1", *words[1:])


HIDDEN = """\
dim batch = 4, d = 8, hidden = 16

model Net {
  param up: [d, hidden] = normal(0.1)
  param down: [hidden, d] = normal(0.1)

  forward(x: [batch, d]) -> [batch, d] {
    h = relu(x @ up)
    return h @ down
  }
}

strategy wide {
  mesh mp = auto
  split hidden over mp
}

train {
  model = Net()
  data = random(x: [batch, d], batches = 3)
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def sh460(folder: Path, patch: Patch) -> Iterator[str]:
    made = emission(planned(HIDDEN, 2, "wide", "net.shard"))
    text = files_of(made)["main.py"]
    line = "rt.reduce_scatter(out_pending, 0, mesh.mp)"
    assert line in text
    yield reported(lambda sink: proof.prove(made, {"main.py": text.replace(line, "out_pending")}, sink))


MP, PP = AxisGroup(0, ("mp",)), AxisGroup(0, ("pp",))
CUT = Local("f32", (Uneven((3, 2), MP), 8))
EMITTED = """\
def forward(p, x):
    h = rt.all_reduce(h_pending, mesh.mp)
    y = rt.send(y)
    y = rt.receive(y)
"""


def sh461(folder: Path, patch: Patch) -> Iterator[str]:
    plans = Line("all_reduce", MP, (), CUT, CUT, span=place("net.shard", HIDDEN, "h = relu(x @ up)"))
    texts = Line(
        "all_reduce", MP, (), CUT, CUT, span=place("main.py", EMITTED, "h = rt.all_reduce(h_pending, mesh.mp)")
    )
    yield reported(lambda sink: proof._agree([plans], [texts], lambda group: 2, sink))


def sh462(folder: Path, patch: Patch) -> Iterator[str]:
    names = [
        Line(f"the gradient of `{name}`", AxisGroup(0, ()), span=place("main.py", PARAMETERS, line))
        for name, line in zip(("up", "down"), PARAMETERS.splitlines(), strict=True)
    ]
    both, one = (
        Joint((0, 1), AxisGroup(0, ()), counts, line) for counts, line in zip(((8, 8), (8,)), names, strict=True)
    )
    yield reported(lambda sink: prove_ties([[both], [one, one]], sink))


PARAMETERS = """\
rt.Parameter("up", (8,), reduce_stages=(0, 1)),
rt.Parameter("down", (8,), reduce_stages=(0, 1)),
"""


def sh463(folder: Path, patch: Patch) -> Iterator[str]:
    sent = Line("send `y`", PP, (), Local("f32", (4, 8)), span=place("stage0.py", EMITTED, "y = rt.send(y)"))
    taken = Line("receive `y`", PP, (), Local("f32", (4, 16)), span=place("stage1.py", EMITTED, "y = rt.receive(y)"))
    yield reported(lambda sink: prove_types([[sent], [taken]], sink))


ROWS = """\
schedule=[
    "0F0 0B0",
    "1F0 1B0",
    "2F0",
]
"""


def sh464(folder: Path, patch: Patch) -> Iterator[str]:
    value = Local("f32", (4, 8))
    chain = [
        [Line("send `y`", PP, (), value)],
        [Line("receive `y`", PP, (), value, gradient=True), Line("send `z`", PP, (), value)],
        [Line("receive `z`", PP, (), value, gradient=True)],
    ]

    def rows(text: str) -> list[ActionRow]:
        listed = re.findall(r'"([^"]+)"', text)
        return [ActionRow(actions(row), place("main.py", text, f'"{row}"')) for row in listed]

    yield reported(lambda sink: prove_order(chain, rows(ROWS), sink)).partition("\n\n")[0]


def sh510(folder: Path, patch: Patch) -> Iterator[str]:
    """A sum that the runtime takes gives twice what it should."""
    Path("net.shard").write_text(HIDDEN)
    twice = "from shardlang.runtime.comm import blocks as b\nold = b.scattered\nb.scattered = lambda *a: 2 * old(*a)"
    text = said("verify", "net.shard", "--ranks", "2", "--steps", "1", before=twice)
    text = re.sub(r"/\S*/main\.py", "shardlang-verify/main.py", text[text.index("error[") :])
    yield re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.6g}", text)


def sh511(folder: Path, patch: Patch) -> Iterator[str]:
    patch.setattr(limits, "available", lambda: 20_100_000_000)
    plan = planned(HIDDEN.replace("batch = 4", "batch = 1_000_000").replace("= 16", "= 512"), 512, "wide")
    yield reported(lambda sink: limits.check_size(plan, sink))


READS = """\
dim batch = 2, seq = 4, vocab = 8, d = 4

model Net {
  param table: [vocab, d] = normal(0.1)

  forward(ids: i64[batch, seq]) -> [batch, d] {
    return mean(embedding(ids, table), over = seq)
  }
}

train {
  model = Net()
  data = random(ids: i64[batch, seq] < vocab, batches = 2)
  scores = model(ids)
  loss = mean(square(scores))
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def sh518(folder: Path, patch: Patch) -> Iterator[str]:
    program = sources.checked(READS, name="net.shard")
    yield reported(lambda sink: generates(program, None, sink))

    class Passes:
        seq = 4

        def next(self, windows: np.ndarray, at: np.ndarray) -> torch.Tensor:
            return torch.ones(1, 8)

    rank = SimpleNamespace(texts=SimpleNamespace(vocab=8), drawing=Drawing())
    yield told(Generate._try, rank, Passes(), np.zeros((1, 4), np.int64), np.array([1]), torch.zeros(1, 8))


MAP = """\
up.weight = joined.weight part 1 of 2
down.weight = last.weight
"""


def sh609(folder: Path, patch: Patch) -> Iterator[str]:
    save_file({"up.weight": np.ones((2, 3), np.float32), "down.weight": np.ones(2, np.float32)}, "w.safetensors")
    Path("like").mkdir()
    Path("like/config.json").write_text("{}")
    theirs = {"joined.weight": np.zeros((4, 3), np.float32), "last.weight": np.zeros(2, np.float32)}
    save_file(theirs, "like/model.safetensors", {"format": "pt"})
    for text in (MAP, MAP.replace("down.weight = last.weight", "down.weight = joined.weight part 1 of 2")):
        Path("their.map").write_text(text)
        yield said("export", "w.safetensors", "--map", "their.map", "--like", "like", "-o", "out").partition("\n\n")[0]
    Path("theirs").mkdir()
    yield told(like, Path("theirs"))


def sh900(folder: Path, patch: Patch) -> Iterator[str]:
    patch.setattr(sys, "argv", ["shardc", "plan", "net.shard", "--ranks", "8"])
    patch.setattr(sys, "version", "3.12.4 (main)")
    patch.setattr("shardlang.__version__", "0.1.0")
    shown: list[str] = []
    patch.setattr(
        "shardlang.cli.output.show", lambda sink: shown.append(reported(lambda to: to.found.extend(sink.found)))
    )
    show_fault(InternalError("the value `h` has no layout"))
    yield shown[0]
