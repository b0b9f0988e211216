"""GPT-2 as it is imported and `std.gpt2` have one plan under a strategy: the same collectives, bytes and memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the library transformers is not installed")

import shardlang
from shardlang.importing.imported import Wanted, import_module
from tests.importing.fourteen import library

SPLIT = "split batch over dp\n  split heads, ffn, vocab over mp"
STRATEGIES = {
    "data": "mesh dp = 4\n  split batch over dp",
    "tensor": "mesh mp = 4\n  split heads, ffn, vocab over mp",
    "three": f"mesh dp = 2, mp = 2\n  {SPLIT}\n  zero 3 over dp",
    "pipeline": "mesh pp = 2, dp = 2\n  split batch over dp\n  stages over pp balanced\n  microbatches 2",
}
TRAIN = """
dim batch = 8, seq = 8

strategy s {{
  {strategy}
}}

train {{
  model = {model}
  data = random(ids: i64[batch, seq] < 48, label: i64[batch, seq] < 48, batches = 4)
  loss = cross_entropy(model(ids), label)
  optimizer = adamw(lr = 0.001)
  steps = 5
}}
"""
SIZES = "vocab = 48, d = 32, heads = 8, layers = 2, max_len = 32, ffn = 128"


def sends(text: str, model: str, strategy: str) -> tuple[Any, ...]:
    """Each collective of a plan with its bytes, by what it is; the sums; what a rank keeps."""
    program = shardlang.source(text + TRAIN.format(model=model, strategy=STRATEGIES[strategy]))
    plan = shardlang.plan(program, ranks=4).to_dict()
    shown = ("phase", "kind", "forward", "backward", "axes", "groups", "local_shape", "forward_bytes", "backward_bytes")
    each = Counter(repr([collective[key] for key in shown])
                   for operator in plan["operators"] for collective in operator["collectives"])  # fmt: skip
    sums = [(found["kind"], found["axes"], found["bytes"]) for found in plan["gradient_reductions"]]
    kept = {key: value for key, value in plan["per_rank"].items() if key.endswith("_bytes")}
    parameters = Counter((*found["shape"], found["local_bytes"], found["zero"]) for found in plan["parameters"])
    return each, plan["sent"], sums, kept, parameters


@pytest.fixture(scope="module")
def imported() -> str:
    """GPT-2 whose weights of attention have no dropout, as the library's."""
    return import_module(lambda: library.gpt2(attn_pdrop=0.0), Wanted("fourteen:gpt2", {})).text


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_plan_of_an_imported_gpt2_is_that_of_the_library(strategy: str, imported: str) -> None:
    mine = sends(imported, "GPT2LMHeadModel(vocab = 48)", strategy)
    assert mine[1]
    assert mine == sends("use std.gpt2: GPT2\n", f"GPT2({SIZES})", strategy)
