"""One bf16 copy of a parameter, made once a step, gives bit for bit what a cast at each use does: every way to hold a
parameter and to go through microbatches, on two real ranks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from shardlang import runtime as rt
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.launch.launcher import read_program
from shardlang.runtime.launch.observe import FigureLog
from shardlang.runtime.state.copies import ParameterCopy, at_once, reads
from shardlang.runtime.step import stepper, train
from shardlang.runtime.step.model import RankModel
from tests.runtime.forked import on_ranks

pytestmark = pytest.mark.slow
# The table of GPT-2 is the head too, and so used twice; of 58 tokens no rank has as many rows as another.
TEXT = """
use std.gpt2: GPT2
use std.llama: Llama

dim batch = 8, seq = 8

strategy zero_1 {
  mesh dp = 2
  split batch over dp
  zero 1 over dp
}

strategy zero_2 {
  mesh dp = 2
  split batch over dp
  zero 2 over dp
  microbatches 2
  at blocks[*]: recompute
}

strategy zero_3 {
  mesh dp = 2
  split batch over dp
  zero 3 over dp
}

strategy tensor {
  mesh tp = 2
  split heads, ffn, vocab over tp
  microbatches 2
  at blocks[*]: recompute
}

strategy stages {
  mesh pp = 2
  stages over pp balanced
  microbatches 4
  schedule "SCHEDULE"
}

train {
  model = MODEL
  data = random(tokens: i64[batch, seq] < 58, label: i64[batch, seq] < 58, batches = 4)
  eval = random(tokens: i64[batch, seq] < 58, label: i64[batch, seq] < 58, batches = 1)
  logits = model(tokens)
  loss = cross_entropy(logits, label)
  optimizer = adamw(lr = 1e-2)
  precision = bf16
  clip = 1.0
  steps = 3
}
"""
GPT2 = TEXT.replace("MODEL", "GPT2(vocab = 58, d = 32, heads = 2, layers = 2, max_len = 8, dropout = 0.1)")
LLAMA = TEXT.replace("MODEL", "Llama(vocab = 58, d = 32, heads = 2, kv_heads = 2, ffn = 64, layers = 2)")


def emitted(text: str, strategy: str) -> rt.Program:
    from tests.emit.sources import written

    folder = Path(tempfile.mkdtemp())
    program = read_program(written(folder, text, 2, strategy))
    program.base = folder
    return program


def cast_at_each_use(program: rt.Program) -> tuple[rt.Program, type[RankModel]]:
    """The same without copies: parameters are whole in f32, or gathered so, and cast wherever they are read."""
    low = {p.path for p in program.parameters if p.use}
    assert low and len(low) < len(program.parameters)

    class Casts(RankModel):
        def _read(self) -> dict[str, Any]:
            return {path: _cast(x) if path in low else x for path, x in super()._read().items()}

    return replace(program, parameters=[replace(p, use="") for p in program.parameters]), Casts


def _cast(held: torch.Tensor | Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    return lambda: (held if isinstance(held, torch.Tensor) else held()).to(torch.bfloat16)


def run(program: rt.Program, kind: type[RankModel]) -> tuple[train.TrainingRun, Any, dict[str, torch.Tensor]]:
    """A whole run: what it was, its figures, its parameters in the end."""

    class Kept(FigureLog):
        def evaluation(self, epoch: int, step: int, figures: Any, by_step: bool = False) -> None:
            self.steps[-step] = dict(figures)

    stepper.RankModel, log = kind, Kept()  # type: ignore[misc]
    found = train.TrainingRun(program, train.datasets(program), log)
    found.train()
    blocks = {tensor.path: block for tensor, block in found.model.blocks() if block is not None}
    return found, log.steps, {path: block().detach().clone() for path, block in blocks.items()}


def same(text: str, strategy: str) -> train.TrainingRun:
    program = emitted(text, strategy)
    ours, figures, parameters = run(program, RankModel)
    _, expected, theirs = run(*cast_at_each_use(program))
    assert len(figures) == 4 and figures == expected, (strategy, figures, expected)
    assert all(x.dtype == torch.float32 for x in parameters.values())
    different = [path for path, x in parameters.items() if not torch.equal(x, theirs[path])]
    assert different == [] and len(theirs) == len(parameters), (strategy, different)
    return ours


def data_parallel() -> None:
    for text in (GPT2, LLAMA):
        for strategy in ("zero_1", "zero_2", "zero_3"):
            ours = same(text, strategy)
            assert bool(ours.model.copies) == (strategy != "zero_3")
            is_up_to_date(ours)


def is_up_to_date(run: train.TrainingRun) -> None:
    """Each copy on this rank is the parameter's own numbers in bf16."""
    model = run.model
    for bucket in model.sharded:
        bucket.settle()
    for path, copy in model.copies.items():
        assert torch.equal(copy, model.block(path)().to(torch.bfloat16)), path


def files() -> None:
    """A checkpoint has the numbers in f32: a run goes on from it as if it had not ended, under another level of ZeRO
    too. Saved weights have them, and start another run.
    """
    folder = Path(tempfile.gettempdir()) / f"copies-{os.getppid()}"
    kept = {"checkpoint": rt.Checkpoint(2, 0, "kept"), "base": folder, "steps": 4}
    _, figures, parameters = run(replace(emitted(GPT2, "zero_3"), **kept), RankModel)
    if world.rank == 0:
        shutil.rmtree(folder / "kept" / "step-4")
    primitives.meet()
    for steps in ((3, 4, -4), (-4,)):  # the second finds the last checkpoint of the first, and evaluates alone
        found, further, again = run(replace(emitted(GPT2, "zero_1"), **kept, resume=True), RankModel)
        assert further == {step: figures[step] for step in steps}, figures
        assert all(torch.equal(again[path], parameters[path]) for path in parameters)
        is_up_to_date(found)
    found.save(folder / "w")
    primitives.meet()
    saved = load_file(folder / "w")
    assert all(torch.equal(saved[path], x) for path, x in parameters.items()) and len(saved) == len(parameters)
    begun = replace(emitted(GPT2, "zero_2"), init=rt.Safetensors("w"), base=folder)
    started = train.TrainingRun(begun, train.datasets(begun), FigureLog())
    assert started.model.copies
    is_up_to_date(started)
    assert all(torch.equal(block(), saved[tensor.path]) for tensor, block in started.model.blocks() if block)


def tensor_parallel_and_stages() -> None:
    for text in (GPT2, LLAMA):
        for strategy, schedule in (("tensor", ""), ("stages", "1f1b"), ("stages", "zero_bubble")):
            same(text.replace("SCHEDULE", schedule), strategy)


def pair(frozen: bool = False) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What reads a matrix and a vector of one layer; their leaves."""
    leaves = {"a.w": torch.ones(2, 2, requires_grad=True), "a.b": torch.ones(2, requires_grad=not frozen)}
    return reads(leaves, {path: leaf.detach().to(torch.bfloat16) for path, leaf in leaves.items()}), leaves


def test_a_vector_that_is_read_next_comes_with_its_matrix() -> None:
    """Not one that is read later, or under another mode, or whose matrix is trained alone."""
    read, leaves = pair()
    w, b = read["a.w"](), read["a.b"]()
    assert w.grad_fn is b.grad_fn is not None
    again = read["a.b"]()
    assert again.grad_fn is not b.grad_fn and w.grad_fn is not read["a.w"]().grad_fn
    (w.sum() + 2 * b.sum() + 3 * again.sum()).backward()
    assert leaves["a.w"].grad.tolist() == [[1, 1], [1, 1]] and leaves["a.b"].grad.tolist() == [5, 5]
    assert {leaf.grad.dtype for leaf in leaves.values()} == {torch.float32}
    with torch.no_grad():
        assert read["a.w"]().grad_fn is None
    assert read["a.b"]().requires_grad
    read, _ = pair(frozen=True)
    assert read["a.w"]().requires_grad and not read["a.b"]().requires_grad


def test_all_copies_of_a_compiled_layer_are_one_read() -> None:
    """Not what is not trained, nor what is no copy."""
    leaves = {path: torch.ones(2, requires_grad=path != "c") for path in ("a.w", "b.w", "c")}
    read = reads(leaves, {path: leaf.detach().to(torch.bfloat16) for path, leaf in leaves.items()})
    own = torch.zeros(1)
    w, frozen, other, made, x = at_once([read["a.w"], read["c"], read["b.w"], lambda: own, own])
    assert w.grad_fn is other.grad_fn is not None and not frozen.requires_grad and made is x is own
    (w.sum() + 3 * other.sum()).backward()
    assert (leaves["a.w"].grad.tolist(), leaves["b.w"].grad.tolist()) == ([1, 1], [3, 3])
    assert {leaf.grad.dtype for leaf in leaves.values() if leaf.grad is not None} == {torch.float32}
    ParameterCopy.ready = ParameterCopy(leaves["c"], own), own
    alone, nothing = at_once([read["a.w"], own]), at_once([own])
    assert ParameterCopy.ready is None
    assert alone[0].requires_grad and alone[1] is own and nothing == [own]


def test_a_vector_that_its_matrix_brings_in_vain_has_no_gradient() -> None:
    read, leaves = pair()
    read["a.w"]().sum().backward()
    assert leaves["a.b"].grad is None and leaves["a.w"].grad.sum() == 4


@pytest.mark.parametrize("what", ["data_parallel", "tensor_parallel_and_stages", "files"])
def test_on_two_ranks(what: str) -> None:
    on_ranks(__file__, what, 2)
