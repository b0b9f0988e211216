"""Whatever the language allows as a name works: Python's words, what Python and the runtime have for themselves.

Each name stands for a thing of each sort in turn; the numbers are those of the same program with plain names.
"""

from __future__ import annotations

import keyword
import re
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests.emit.sources import emitted_files, parsed
from tests.end_to_end.curves import Figures, RunOf, figures

TEXT = """\
dim BATCH = 8, D = 4

fn FN(x: [n, m]) -> [n, m] {
  FN_LOCAL = x * 2
  return relu(FN_LOCAL)
}

model INNER {
  param PARAM: [D] = constant(0.5)
  state STATE: [D] = constant(0.1)
  forward(FORMAL: [BATCH, D]) -> [BATCH, D] {
    LOCAL = FORMAL * PARAM
    return LOCAL + STATE
  }
}

model MODEL {
  param OUTER: [D] = constant(0.5)
  layer LAYER = INNER()
  layer ARRAY[2] = INNER()
  forward(x: [BATCH, D]) -> [BATCH, D] {
    FIRST = ARRAY(x)
    SECOND = LAYER(FIRST)
    return FN(SECOND) * OUTER
  }
}

strategy STRATEGY {
  mesh AXIS = auto
  split BATCH over AXIS
  zero 3 over AXIS
  microbatches 2
  at LAYER: recompute
}

train {
  model = MODEL()
  data = random(FIELD: [BATCH, D], LABEL: [BATCH, D], batches = 2)
  eval = random(FIELD: [BATCH, D], LABEL: [BATCH, D], batches = 1)
  SCORES = model(FIELD)
  loss = mse_loss(SCORES, LABEL)
  metric METRIC = mean(SCORES)
  optimizer = adam(lr = 0.01)
  steps = 2
}
"""
PLAIN = {
    "BATCH": "batch", "D": "d", "FN": "act", "FN_LOCAL": "y", "INNER": "Inner", "PARAM": "w", "STATE": "s",
    "FORMAL": "x", "LOCAL": "z", "MODEL": "Net", "OUTER": "scale", "LAYER": "one", "ARRAY": "many", "FIRST": "h",
    "SECOND": "g", "STRATEGY": "both", "AXIS": "dp", "FIELD": "x", "LABEL": "label", "SCORES": "y", "METRIC": "size",
}  # fmt: skip
RESERVED = {"if", "else", "return", "and", "or", "not"}  # words of the language
WORDS = [word for word in (*keyword.kwlist, *keyword.softkwlist) if word not in RESERVED]
NAMES = [
    "_", "__", "_items", "_made", "_sizes", "__class__", "__dict__", "__weakref__", "__init__", "__getattr__",
    "__name__", "self", "p", "rt", "torch", "F", "mesh", "mesh2", "forward", "program", "rows", "totals", "stage0",
    "loss_", "print", "list", "len", "max", "value", "path", "main", "__debug__", "x" * 300, "X" * 300,
]  # fmt: skip


def _named(shift: int, but: tuple[str, ...] = ()) -> dict[str, str]:
    """A name for each role; over all shifts each name comes to each role."""
    names = [*WORDS, *NAMES]
    roles = [role for role in PLAIN if role not in but]
    return {**PLAIN, **{role: names[(shift + 2 * at) % len(names)] for at, role in enumerate(roles)}}


def _text(names: dict[str, str]) -> str:
    return re.sub(r"\b[A-Z_]+\b", lambda found: names.get(found.group(), found.group()), TEXT)


def test_every_name_that_is_allowed_is_python() -> None:
    for shift in range(len(WORDS) + len(NAMES)):
        names = _named(shift)
        for ranks, strategy in ((1, None), (2, names["STRATEGY"])):
            for text in emitted_files(_text(names), ranks, strategy).values():
                parsed(text)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    return figures(_text(PLAIN), [RunOf("both", 2)], tmp_path_factory.mktemp("plain"))[RunOf("both", 2)]


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0, 41])
def test_names_change_no_number(plain: Figures, shift: int, tmp_path: Path) -> None:
    """All but those of fields, on which random numbers depend."""
    names = _named(shift, ("FIELD", "LABEL"))
    run = RunOf(names["STRATEGY"], 2)
    found = figures(_text(names), [run], tmp_path)[run]
    assert found.curve() == plain.curve()
    assert found.curve(names["METRIC"]) == plain.curve("size")
    assert found.evaluations[-1]["eval.loss"] == plain.evaluations[-1]["eval.loss"]


def test_a_tensor_is_not_called_as_a_key_of_its_file() -> None:
    for role in ("OUTER", "STATE"):
        sink = Sink()
        driver.check_source(Source("names.shard", _text({**PLAIN, role: "__metadata__"})), sink)
        assert [d.code for d in sink.found] == (["SH201"] if role == "OUTER" else [])
