"""Runs that go on with other optimizers: state that the checkpoint lacks begins anew, and that of frozen parameters is
kept, also from one run to the next.
"""

from __future__ import annotations

import copy
import io
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from shardlang import runtime as rt
from shardlang.checkpoints.index import Index, text_of
from shardlang.errors import RunError
from shardlang.runtime.logs import Log
from shardlang.runtime.state.optimizers import optimizer
from shardlang.runtime.step.train import TrainingRun, datasets

# Of each kind, the settings that its first steps depend on most.
KEEPING: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "dampening": 0.5}, "adam": {}, "adamw": {"weight_decay": 0.1},
    "adagrad": {"initial_accumulator": 0.2}, "lazy_adam": {}, "ftrl": {"l1": 0.01},
}  # fmt: skip


def program(
    folder: Path, steps: int, frozen: Sequence[str] = (), kind: str = "adamw", every: int = 2, ema: float | None = None,
    **settings: Any,
) -> rt.Program:  # fmt: skip
    """Two parameters, of which some are frozen; a checkpoint after each two steps."""
    np.savez(folder / "a.npz", x=np.linspace(-1.0, 1.0, 24).reshape(8, 3))
    source = rt.Source("numpy", batch=4, path="a.npz", fields=[rt.Field("x", "f32", (4, 3))])
    return rt.Program(
        name="t.shard", strategy="", ranks=1, mesh=rt.Mesh(),
        parameters=[rt.Parameter(name, (3, 7), init="ones", frozen=name in frozen) for name in ("v", "w")],
        data=source, optimizers=[rt.Optimizer(kind, lr=0.01, **settings)], ema=ema,
        forward=lambda p, x: (((x @ p.v).sin() * (x @ p.w)).square().mean() + (x @ p.w - 2).square().mean(), {}),
        steps=steps, base=folder, resume=True, checkpoint=rt.Checkpoint(every, 0, "kept"),
    )  # fmt: skip


def trained(given: rt.Program, anyway: bool = False) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The state that a run ends with, of parameters and optimizers, and what it says."""
    given.resume_anyway = anyway
    out = io.StringIO()
    run = TrainingRun(given, datasets(given), Log(out, None))
    run.train()
    kept = {path: value.detach().clone() for path, value in run.model.trained.items()}
    for each in run.model.optimizers:
        for name, values in each.kept().items():
            kept.update({f"{name} {at}": value.clone() for at, value in enumerate(values)})
    return kept, out.getvalue().splitlines()


def tensors(folder: Path, step: int) -> set[str]:
    return set(Index(folder / "kept" / f"step-{step}").tensors)


FACT = "`v` is trained by `adamw` (which keeps mean, square), and it was frozen when the checkpoint was written"


def test_a_thawed_parameter_is_told_and_begins_anew_where_that_is_meant(tmp_path: Path) -> None:
    trained(program(tmp_path, 4, ["v"]))
    assert tensors(tmp_path, 4) == {"v", "w", "w:mean", "w:square"}
    with pytest.raises(RunError) as raised:
        trained(program(tmp_path, 8))
    assert (raised.value.code, raised.value.message) == ("SH508", FACT)
    assert "begin its state anew by --resume-anyway" in raised.value.help
    _, said = trained(program(tmp_path, 8), anyway=True)
    assert f"goes on with another optimizer: {FACT}; mean and square begin anew" in said
    assert tensors(tmp_path, 8) == {"v", "w", "v:mean", "v:square", "w:mean", "w:square"}


@pytest.mark.parametrize("kind", KEEPING)
def test_new_state_is_that_of_an_optimizer_that_begins(tmp_path: Path, kind: str) -> None:
    """Its bias is corrected by its own steps, and so it is in whatever run goes on from there."""
    trained(program(tmp_path, 4, ["v"], kind, **KEEPING[kind]))
    shutil.copytree(tmp_path / "kept", tmp_path / "before")
    found, _ = trained(program(tmp_path, 8, (), kind, **KEEPING[kind]), anyway=True)

    # The same by hand: an optimizer for each parameter, the second of which begins after step 4.
    held = {name: nn.Parameter(torch.ones(3, 7)) for name in ("v", "w")}
    optimizers = {name: optimizer(kind, [p], {"lr": 0.01, **KEEPING[kind]}) for name, p in held.items()}
    given = program(tmp_path, 8, (), kind, **KEEPING[kind])
    run = TrainingRun(given, datasets(given), Log(None, None))
    for step in range(1, 9):
        for p in held.values():
            p.grad = None
        x = run.loader.batch(step)[0]["x"]
        given.forward(_Tree(held), x)[0].backward()
        with torch.no_grad():
            for name in ("w", *(["v"] if step > 4 else [])):
                optimizers[name].step(0.01)
    for name, p in held.items():
        assert torch.allclose(found[name], p, rtol=1e-6, atol=1e-7), name

    # In two runs, of which the second goes on from the first: bit for bit.
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "before").rename(tmp_path / "kept")
    trained(program(tmp_path, 6, (), kind, **KEEPING[kind]), anyway=True)
    again, said = trained(program(tmp_path, 8, (), kind, **KEEPING[kind]))
    assert any("goes on after step 6" in line for line in said)
    assert all(torch.equal(found[name], again[name]) for name in found)


class _Tree:
    def __init__(self, held: dict[str, nn.Parameter]) -> None:
        self.v, self.w = held["v"], held["w"]


@pytest.mark.parametrize("kind", ["sgd", "adamw", "lazy_adam"])
def test_the_state_of_a_frozen_parameter_is_kept_for_whoever_trains_it_again(tmp_path: Path, kind: str) -> None:
    settings = KEEPING[kind]
    trained(program(tmp_path, 4, (), kind, **settings))
    before = read(tmp_path, 4, "v:")
    _, said = trained(program(tmp_path, 6, ["v"], kind, **settings))
    size = 3 * 7 * 4 * len(before)
    told = f"keeps the optimizer's state of `v`, frozen now: {size} bytes in this rank's host memory"
    assert told in said
    _, said = trained(program(tmp_path, 8, ["v"], kind, **settings))
    assert told in said
    for step in (6, 8):
        found = read(tmp_path, step, "v")
        assert found.keys() == read(tmp_path, 4, "v").keys()
        assert all(torch.equal(found[name], each) for name, each in read(tmp_path, 4, "v").items())
    _, said = trained(program(tmp_path, 10, (), kind, **settings))  # without --resume-anyway
    assert not any("another optimizer" in line or "keeps the" in line for line in said)
    assert all(not torch.equal(each, before[name]) for name, each in read(tmp_path, 10, "v:").items())
    assert Index(tmp_path / "kept" / "step-8").facts["updates"] == {"v": 4}
    assert Index(tmp_path / "kept" / "step-10").facts["updates"] == {"v": 6}


def read(folder: Path, step: int, begins: str) -> dict[str, torch.Tensor]:
    from shardlang.runtime.state.checkpoints import SavedRun

    found = SavedRun(folder / "kept" / f"step-{step}").parts()
    return {name: part.clone() for name, _, part in found if name.startswith(begins)}


def test_momentum_that_is_added_or_removed(tmp_path: Path) -> None:
    trained(program(tmp_path, 4, (), "sgd"))
    added = program(tmp_path, 6, (), "sgd", momentum=0.9)
    with pytest.raises(RunError, match=r"`v` is trained by `sgd` \(which keeps momentum\), and the checkpoint was"):
        trained(copy.copy(added))
    _, said = trained(added, anyway=True)
    assert any("(which keeps nothing), and so are 1 more; momentum begins anew" in line for line in said)
    with pytest.raises(RunError, match=r"by `sgd` \(which keeps nothing\), and .* `sgd` \(which keeps momentum\)"):
        trained(program(tmp_path, 8, (), "sgd"))
    _, said = trained(program(tmp_path, 8, (), "sgd"), anyway=True)
    assert any(line.endswith("(which keeps momentum), and so are 1 more; momentum is dropped") for line in said)
    assert tensors(tmp_path, 8) == {"v", "w"}


def test_another_kind_reads_nothing_of_the_state(tmp_path: Path) -> None:
    """Though adam and adamw have names in common."""
    trained(program(tmp_path, 4, (), "adam"))
    shutil.copytree(tmp_path / "kept", tmp_path / "before")
    found, said = trained(program(tmp_path, 8, (), "adamw"), anyway=True)
    assert any("; mean and square begin anew, mean and square are dropped" in line for line in said)
    shutil.rmtree(tmp_path / "kept")
    (tmp_path / "before").rename(tmp_path / "kept")
    for name in ("v", "w"):
        assert Index(tmp_path / "kept" / "step-4").facts["optimizers"][name] == "adam"
    held, _ = trained(program(tmp_path, 4, (), "adam"))
    state = optimizer("adamw", [torch.ones(2)], {"lr": 1e-3}).kept()
    assert all(not values[0].any() for values in state.values()) and held.keys() == found.keys()


def test_an_average_that_is_new_begins_as_the_weights(tmp_path: Path) -> None:
    trained(program(tmp_path, 4))
    trained(program(tmp_path, 5, every=1, ema=0.75), anyway=True)
    for name in ("v", "w"):
        before, after = read(tmp_path, 4, name)[name], read(tmp_path, 5, name)
        assert torch.allclose(after[f"{name}:ema"], 0.75 * before + 0.25 * after[name], rtol=1e-6)


@pytest.mark.parametrize("updates", [3, {"v": -1}, {"v": 5}, {"v": 1.5}, {"v": True}])
def test_counts_that_are_none_are_damage(tmp_path: Path, updates: Any) -> None:
    trained(program(tmp_path, 4))
    index = tmp_path / "kept" / "step-4"
    found = Index(index)
    files = [[each.size, each.header, each.crc32] for each in found.files if each is not None]
    layouts = list(dict.fromkeys(found.tensors.values()))
    (index / "index.json").write_text(text_of({
        **{name: fact for name, fact in found.facts.items() if name != "crc32"}, "updates": updates, "files": files,
        "layouts": [each.written() for each in layouts],
        "tensors": {name: layouts.index(each) for name, each in found.tensors.items()},
    }))  # fmt: skip
    _, said = trained(program(tmp_path, 4))
    assert any("the index is damaged: updates" in line for line in said)


def test_state_of_a_damaged_checkpoint_is_not_taken_for_new(tmp_path: Path) -> None:
    """Part of it has been read before the damage is seen."""
    trained(program(tmp_path, 4, ["v"]))
    shutil.copytree(tmp_path / "kept", tmp_path / "before")
    expected, _ = trained(program(tmp_path, 6), anyway=True)
    last = tmp_path / "kept" / "step-6" / "rank-00000.safetensors"
    text = bytearray(last.read_bytes())
    text[-1] ^= 1  # the last block in the file
    last.write_bytes(text)
    found, said = trained(program(tmp_path, 6), anyway=True)
    assert any("step-6 is passed over" in line for line in said)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def evaluating(folder: Path, steps: int, change: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> rt.Program:
    given = program(folder, steps)
    np.savez(folder / "test.npz", x=change(np.linspace(-1.0, 1.0, 12).reshape(4, 3)))
    given.eval = rt.Source("numpy", batch=4, path="test.npz", fields=[rt.Field("x", "f32", (4, 3))])
    given.evaluation = rt.Evaluation(every=2, best="loss", lowest=True)
    given.evaluate = given.forward
    return given


def test_other_data_to_evaluate_is_told(tmp_path: Path) -> None:
    trained(evaluating(tmp_path, 4))
    _, said = trained(evaluating(tmp_path, 6))
    assert not any("evaluates other data" in line for line in said)
    _, said = trained(evaluating(tmp_path, 8, lambda x: x[:4] + 1))
    told = [line for line in said if "evaluates other data than before: `data file 1` of `eval` is test.npz of" in line]
    assert told and told[0].endswith("; `best` compares `loss` of both")
