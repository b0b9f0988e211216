"""Loops of the user's own: optimizers, random numbers, weights and checkpoints, other ways to give batches."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import shardlang
from shardlang import runtime as rt
from shardlang.runtime.data.arrays import read_digits
from shardlang.runtime.program import BatchSource
from shardlang.torch import RankError, bind, launch
from tests.bind.test_losses import DIGITS
from tests.end_to_end.curves import RunOf, figures

# With a layer whose size no ranks divide, dropout, and a clip that is reached.
ODD = DIGITS.replace("steps = 8", "steps = 6\n  clip = 0.5").replace("hidden = 128", "hidden = 46")
ODD = ODD.replace("|> relu", "|> relu |> dropout(p = 0.2)")
OPTIMIZERS = {
    "sgd(lr = 0.1, momentum = 0.9, nesterov = true, weight_decay = 0.01)": (
        torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam(lr = 1e-2)": (torch.optim.Adam, {"lr": 1e-2}),
    "adamw(lr = 1e-2, weight_decay = 0.1)": (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "adagrad(lr = 1e-2)": (torch.optim.Adagrad, {"lr": 1e-2}),
}  # fmt: skip
RUNS = [RunOf("data_parallel", 1), RunOf("tensor_parallel", 2), RunOf("sharded", 2), RunOf("all_of_it", 4)]


def compiled(text: str, run: RunOf) -> shardlang.Compiled:
    return shardlang.compile(shardlang.source(text), ranks=run.ranks, strategy=run.strategy)


def losses(net: Any, optimizer: Any, count: int, first: int = 0, clip: float = 0.0) -> list[float]:
    told = []
    for batch in islice(net.batches(1, first), count):
        told.append(net.step(batch))
        if clip:
            net.clip(clip)
        optimizer.step()
        net.stepped()
    return [each["loss"] for each in told]


@pytest.mark.parametrize("written", OPTIMIZERS, ids=lambda written: written.partition("(")[0])
def test_optimizers_of_torch(written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = ODD.replace("sgd(lr = 0.1, momentum = 0.9)", written)
    cls, settings = OPTIMIZERS[written]
    runs = RUNS if cls is torch.optim.SGD else RUNS[2:]  # rows of parameters, and all at once
    theirs = figures(text, runs, tmp_path)

    def train(made: shardlang.Compiled) -> tuple[list[float], dict[str, torch.Tensor]]:
        net = bind(made)
        told = losses(net, net.optimizer(cls, **settings), 6, clip=0.5)
        return told, {row.path: net.value(row.path) for row in made.plan.parameters}

    for run in runs:
        weights = load_file(theirs[run].weights)
        for told, values in launch(train, compiled(text, run), ranks=run.ranks):
            # torch's adagrad adds up in another order than ours.
            off = 1e-6 if cls is torch.optim.Adagrad else 0.0
            assert told == pytest.approx(theirs[run].curve(), rel=off, abs=0.0), run
            assert all(torch.allclose(values[path], weights[path], rtol=off, atol=off) for path in weights), run


def test_settings_of_the_users_own_stay_theirs() -> None:
    """The type of new tensors, and a step where gradients are off."""

    def train(others: bool) -> list[float]:
        if others:
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
        net = bind(made)
        told = losses(net, net.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9), 3)
        assert torch.get_default_dtype() == (torch.float64 if others else torch.float32)
        assert torch.is_grad_enabled() != others
        return told

    made = compiled(ODD, RunOf("sharded", 2))
    assert launch(train, True, ranks=2) == launch(train, False, ranks=2)


def test_gradients_that_the_user_changes() -> None:
    """`clip` is of what the optimizer will see, counted once over all ranks."""

    def clipped() -> tuple[float, list[float], float]:
        net = bind(made)
        net.step(next(net.batches(1)))
        for each in net.parameters():
            each.grad = torch.ones_like(each)
        norm = float(net.clip(1.0))
        largest = [float(each.grad.max()) for each in net.parameters()]
        net.stepped()
        return norm, largest, sum(row.shape[0] * (row.shape[1:] or (1,))[0] for row in made.plan.parameters)

    for run in (RunOf("both", 4), RunOf("rows_of_gradients", 2), RunOf("sharded", 2)):
        made = compiled(DIGITS, run)
        for norm, largest, count in launch(clipped, ranks=run.ranks):
            assert norm == pytest.approx(count**0.5, rel=1e-6)
            assert largest == pytest.approx([count**-0.5] * 4, rel=1e-5)


def test_an_optimizer_by_hand() -> None:
    """SGD on the parameters themselves has the same bits here; two optimizers, by selectors, are one."""

    def train(how: str) -> list[float]:
        net = bind(made)
        if how == "by hand":
            return losses(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), 4)
        parts = [["**"]] if how == "one" else [["**.bias"], ["up.weight", "down.weight"]]
        several = [net.optimizer(torch.optim.SGD, at=at, lr=0.1, momentum=0.9) for at in parts]

        class Both:
            def step(self) -> None:
                for each in several:
                    each.step()

        return losses(net, Both(), 4)

    made = compiled(DIGITS, RunOf("sharded", 2))
    one = launch(train, "one", ranks=2)
    assert one == launch(train, "two", ranks=2) == launch(train, "by hand", ranks=2)


def test_it_goes_on_from_a_checkpoint_and_begins_with_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another layout: the last four losses of a run of eight steps."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = ODD.replace("clip = 0.5", 'checkpoint = every(2, keep = 4, to = "kept")')
    text = text.replace("sgd(lr = 0.1, momentum = 0.9)", "adamw(lr = 1e-2)")
    theirs = figures(text, [RunOf("sharded", 2)], tmp_path)[RunOf("sharded", 2)]

    def train(made: shardlang.Compiled, **begin: Any) -> tuple[int, list[float], dict[str, Any]]:
        net = bind(made, **begin)
        first = net.done
        optimizer = net.optimizer(torch.optim.AdamW, lr=1e-2)
        return first, losses(net, optimizer, 6 - first, first) if first < 6 else [], net.evaluate()

    same, other = compiled(text, RunOf("sharded", 2)), compiled(text, RunOf("tensor_parallel", 2))
    step, told, _ = launch(lambda: train(same, resume=tmp_path / "kept" / "step-2"), ranks=2)[1]
    assert (step, told) == (2, theirs.curve()[2:])
    step, told, _ = launch(lambda: train(other, resume=tmp_path / "kept" / "step-4"), ranks=2)[0]
    assert step == 4 and told == pytest.approx(theirs.curve()[4:], rel=1e-5)
    step, _, evaluated = launch(lambda: train(same, resume=tmp_path / "kept"), ranks=2)[1]
    assert step == 6 and evaluated["loss"] == theirs.evaluations[-1]["eval.loss"]
    begun = launch(lambda: bind(same, weights=theirs.weights).evaluate(), ranks=2)[0]
    assert begun == evaluated
    with pytest.raises(RankError, match=r"SH508.*is to be trained by SGD \(which keeps momentum_buffer\), and the"):
        sgd = torch.optim.SGD
        launch(lambda: bind(same, resume=tmp_path / "kept").optimizer(sgd, lr=0.1, momentum=0.9) and 0, ranks=2)


def whole_batches() -> list[dict[str, torch.Tensor]]:
    """The test set in order, whose last batch is short."""
    fields = [rt.Field("image", "f32", (64, 64)), rt.Field("label", "i64", (64,), bound=10)]
    found = read_digits(BatchSource("digits", batch=64, fields=fields, split="test"), Path())
    arrays = {name: torch.from_numpy(found.arrays[name]) for name in ("image", "label")}
    return [{name: x[at : at + 64] for name, x in arrays.items()} for at in range(0, found.length, 64)]


@pytest.mark.parametrize("run", [RunOf("both", 4), RunOf("rows_of_gradients", 2), RunOf("staged", 2)], ids=str)
def test_batches_of_the_users_own(run: RunOf) -> None:
    """Whole or cut already, they are the program's; an evaluation takes a short one."""

    def same() -> bool:
        net = bind(made)
        batch = whole_batches()[0]
        whole = net.place(batch)
        cut = {
            field.name: torch.cat([torch.as_tensor(batch[field.name])[part] for part in field.parts])
            for field in net.fields if field.parts
        }  # fmt: skip
        assert all(tuple(cut[field.name].shape) == field.local_shape for field in net.fields if field.parts)
        parts = net.place(cut, whole=False).microbatches
        pairs = [(one[name], other[name]) for one, other in zip(whole.microbatches, parts, strict=True) for name in one]
        assert len(parts) == len(whole.microbatches) and all(torch.equal(one, other) for one, other in pairs)
        assert net.evaluate(whole_batches()) == net.evaluate()
        return bool(pairs)

    made = compiled(DIGITS, run)
    assert launch(same, ranks=run.ranks) == [True] * run.ranks


@pytest.mark.parametrize("run", [RunOf("data_parallel", 1), RunOf("both", 4), RunOf("sharded", 2)], ids=str)
def test_the_loss_as_a_tensor(run: RunOf) -> None:
    """`net(**batch).backward()` is a step; twice the loss has twice the gradients."""

    def train(by: str) -> tuple[list[float], list[torch.Tensor]]:
        net = bind(made)
        optimizer, told = net.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9), []
        for batch in islice(net.batches(1), 3):
            if by == "step":
                told.append(net.step(batch)["loss"])
            else:
                with torch.no_grad():
                    assert not net(**batch).requires_grad
                loss = net(**batch)
                (loss * float(by)).backward()
                for each in net.parameters():
                    each.grad /= float(by)
                total = loss.detach().double()
                if run.ranks > 1 and run.strategy != "both":
                    dist.all_reduce(total)
                told.append(float(total))
            optimizer.step()
            net.stepped()
        return told if run.strategy != "both" else [], [net.value(path) for path, _ in net.named_parameters()]

    made = compiled(DIGITS, run)
    (steps, values), *_ = launch(train, "step", ranks=run.ranks)
    for by in ("1", "2"):
        for told, others in launch(train, by, ranks=run.ranks):
            assert told == steps
            assert all(torch.equal(one, other) for one, other in zip(values, others, strict=True))


@pytest.mark.parametrize("run", [RunOf("both", 4), RunOf("sharded", 2), RunOf("rows_of_gradients", 2)], ids=str)
def test_states_go_to_another_module(run: RunOf) -> None:
    def same() -> bool:
        first, second = bind(made), bind(made)
        optimizer = first.optimizer(torch.optim.SGD, lr=0.1)
        # Two modules of a process step in turn.
        losses(first, optimizer, 2)
        begun = losses(second, second.optimizer(torch.optim.SGD, lr=0.1), 1)
        kept = {path: held.clone() for path, held in first.state_dict().items()}
        second.load_state_dict(kept)
        paths = [row.path for row in made.plan.parameters]
        assert all(torch.equal(first.value(path), second.value(path)) for path in paths)
        assert {path: held.shape for path, held in first.named_parameters()} == {p: x.shape for p, x in kept.items()}
        assert begun == losses(bind(made), torch.optim.SGD([torch.zeros(1)]), 1)
        second.done = 2
        return losses(first, optimizer, 2) == losses(second, second.optimizer(torch.optim.SGD, lr=0.1), 2)

    made = compiled(ODD, run)
    assert launch(same, ranks=run.ranks) == [True] * run.ranks


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("run", [RunOf("data_parallel", 2), RunOf("rows_of_gradients", 2), RunOf("both", 4)], ids=str)
def test_weights_written_between_steps_count(run: RunOf, precision: str) -> None:
    """After `stepped` as before it: neither copies nor the rows of other ranks stay behind."""

    def told(early: bool) -> tuple[list[float], dict[str, float], list[torch.Tensor]]:
        net = bind(made)
        optimizer, found = net.optimizer(torch.optim.SGD, lr=0.1), []

        def written(now: bool) -> None:
            for held in net.parameters() if now else ():
                held.data.clamp_(-0.0625, 0.0625)

        for batch in islice(net.batches(1), 3):
            found.append(net.step(batch))
            optimizer.step()
            written(early)
            net.stepped()
            written(not early)
            assert net.value("up.weight").abs().max() == 0.0625
        return [each["loss"] for each in found], net.evaluate(), [net.value("up.weight")]

    text = DIGITS.replace("train {", f"train {{\n  precision = {precision}", 1)
    made = compiled(text, run)
    for (one, figures_, values), (other, theirs, same) in zip(
        launch(told, True, ranks=run.ranks), launch(told, False, ranks=run.ranks), strict=True
    ):
        assert one == other and figures_ == theirs and torch.equal(values[0], same[0])


def test_groups_of_the_users_own() -> None:
    """Two modules of two ranks each, among four ranks."""

    def train(members: int) -> list[float]:
        groups = [dist.new_group([0, 2]), dist.new_group([1, 3])] if members == 2 else [None]
        net = bind(made, group=groups[dist.get_rank() % len(groups)])
        assert (net.rank, net.ranks) == (dist.get_rank() // len(groups), 2)
        told = losses(net, net.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9), 4)
        # The default group stays the user's.
        dist.all_reduce(total := torch.ones(3))
        assert total.tolist() == [2.0 * len(groups)] * 3
        return told

    made = compiled(DIGITS, RunOf("staged", 2))
    assert launch(train, 2, ranks=4) == launch(train, 1, ranks=2) * 2


@pytest.mark.parametrize("precision", ["f64", "bf16", "f16"])
def test_element_types(precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In f16 gradients of the first steps are too large, and update nothing."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    factor = "20.0 * " if precision == "f16" else ""
    text = ODD.replace("clip = 0.5", f"precision = {precision}")
    text = text.replace("loss = cross_entropy", f"loss = {factor}cross_entropy")
    runs = [RunOf("rows_of_moments", 2), RunOf("sharded", 2), RunOf("staged", 2)]
    theirs = figures(text, runs, tmp_path)

    def train(made: shardlang.Compiled) -> tuple[list[float], list[bool], dict[str, torch.Tensor]]:
        net = bind(made)
        optimizer, told = net.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9), []
        for batch in islice(net.batches(1), 6):
            told.append(net.step(batch))
            optimizer.step()
            net.stepped()
        values = {row.path: net.value(row.path) for row in made.plan.parameters}
        return [each["loss"] for each in told], [each.updates for each in told], values

    for run in runs:
        weights = load_file(theirs[run].weights)
        for told, updates, values in launch(train, compiled(text, run), ranks=run.ranks):
            assert told == theirs[run].curve(), run
            assert any(updates) and all(updates) == (precision != "f16"), updates
            assert all(torch.equal(values[path], weights[path]) for path in weights), run
