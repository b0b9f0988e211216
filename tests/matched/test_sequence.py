"""Real ranks issue in a step what the proof says, in order: kind, group and elements of each collective."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.emit.emit import emission, files_of
from shardlang.matched.read_back.program import read
from tests.emit.sources import planned
from tests.end_to_end.test_empty_parts import ATTENTION, REST
from tests.end_to_end.test_wired import DATA, LLAMA, TENSOR, TEXT
from tests.matched.issued import step
from tests.matched.recorded import recorded

pytestmark = pytest.mark.slow
RANKS = 4
STAGES = 'mesh pp = 2, dp = 2\n  split batch over dp\n  stages over pp balanced{}\n  microbatches 4\n  schedule "{}"'
CASES = {
    "zero 2, microbatches": (TEXT, DATA + "zero 2 over dp\n  microbatches 2"),
    "zero 3, recompute": (TEXT, DATA + "zero 3 over dp\n  bucket gradients 30kB\n  at blocks[*]: recompute"),
    "tensor parallel, zero 1": (TEXT, TENSOR + "zero 1 over (dp, tp)"),
    "stages, zero 3": (LLAMA, STAGES.format(", virtual = 2", "interleaved_1f1b") + "\n  zero 3 over dp"),
    "stages, backward in two": (LLAMA, STAGES.format("", "zero_bubble")),
    "a sum behind all that is kept": (LLAMA, TENSOR + "at blocks[*]: recompute"),
    "gathers again": (TEXT, TENSOR + "at blocks[*]: recompute gathers"),
}
# Both scales are of both coordinates, each by other stages.
TIED = """\
use std.nn: Linear

dim batch = 8, d = 8

model Net {
  param one: [d] = normal(0.5)
  param two: [d] = normal(0.5)
  layer parts[4] = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    a = parts[0](x) * one * two
    b = parts[1](a) * one
    c = parts[2](b)
    return parts[3](c) * two
  }
}

strategy s {
  mesh pp = 2, dp = 2
  split batch over dp
  stages over pp, virtual = 2 {
    0: parts[0]
    1: parts[1]
    2: parts[2]
    3: parts[3]
  }
  microbatches 2
  RULES
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 2)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  precision = PRECISION
  steps = 3
}
"""
CASES["tied by other stages"] = TIED, 'schedule "interleaved_1f1b"\n  zero 1 over dp'
CASES["tied, without zero"] = TIED, 'schedule "interleaved_1f1b"'


@pytest.mark.parametrize("case", CASES)
def test_ranks_issue_what_the_proof_says(case: str, tmp_path: Path) -> None:
    program, rules = CASES[case]
    text = program.replace("RULES", rules).replace("PRECISION", "f32")
    made = emission(planned(text, RANKS, "s"))
    files = files_of(made)
    found, said = recorded(files, RANKS, tmp_path / "run"), read(files)
    where = [rank // 2 if len(said.stages) > 1 else 0 for rank in range(RANKS)]
    for rank, coordinate in enumerate(where):
        issued = [[one.purpose, one.kind, list(one.axes), one.elements] for one in step(made, said, coordinate)]
        for purpose in ("values", "messages", "gradients", "parameters"):
            real, ours = ([list(one[1:]) for one in some if one[0] == purpose] for some in (found[rank], issued))
            # Only the operator itself knows how large its statistics are.
            known = [[*one[:2], one[2] * bool(our[2])] for one, our in zip(real, ours, strict=False)]
            assert known + real[len(ours) :] == ours, (rank, purpose)


# One head over two ranks: the second one has none.
ONE_HEAD = ATTENTION.replace("heads = 3", "heads = 1") + REST.replace("f64", "f32").replace("steps = 2", "steps = 3")
HALF = "mesh {} = 2, mp = 2\n  split heads over mp uneven\n  {}\n  at blocks[*]: {}"
AGAIN = "recompute all but products"
EMPTY = {
    "zero 3, again": HALF.format("dp", "split batch over dp\n  zero 3 over dp", AGAIN),
    "zero 3, layers again": HALF.format(
        "dp", "split batch over dp\n  zero 3 over dp\n  bucket gradients 1kB", "recompute"
    ),
    "zero 2, microbatches": HALF.format("dp", "split batch over dp\n  zero 2 over dp\n  microbatches 2", AGAIN),
    "saved on host": HALF.format("dp", "split batch over dp\n  zero 3 over dp", "place saved on host"),
    "stages": HALF.format("pp", 'stages over pp balanced\n  microbatches 2\n  schedule "1f1b"', AGAIN),
    "backward in two": HALF.format("pp", 'stages over pp balanced\n  microbatches 2\n  schedule "zero_bubble"', AGAIN),
}


@pytest.mark.parametrize("case", EMPTY)
def test_a_rank_without_a_part_issues_what_the_others_do(case: str, tmp_path: Path) -> None:
    """Whatever hooks of autograd begin."""
    made = emission(planned(ONE_HEAD.replace("STRATEGIES", f"strategy s {{\n  {EMPTY[case]}\n}}\n"), RANKS, "s"))
    files = files_of(made)
    found, said = recorded(files, RANKS, tmp_path / "run"), read(files)
    for rank in range(RANKS):
        issued = step(made, said, rank // 2 if len(said.stages) > 1 else 0)
        for purpose in ("values", "messages", "gradients", "parameters"):
            real = [one[1:3] for one in found[rank] if one[0] == purpose]
            assert real == [[one.kind, list(one.axes)] for one in issued if one.purpose == purpose], (rank, purpose)
        assert any(one.purpose == "values" for one in issued)
