"""A loss that is not finite is told with the number that made it so: of the data, of the weights, or none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from shardlang import runtime as rt
from shardlang.checkpoints.index import SavedLayout
from shardlang.errors import RunError
from shardlang.runtime.data.loader import Loader, load
from shardlang.runtime.state.checkpoints import Checkpoints, Piece, SavedRun
from shardlang.runtime.step import not_finite


def program(base: Path, source: rt.Source, **more) -> rt.Program:
    parameters = [rt.Parameter("up.weight", (3, 2)), rt.Parameter("scale", ())]
    states = [rt.State("mask", (2,))]
    return rt.Program("", "", 1, rt.Mesh(), parameters, source, [], base=base, seed=3, states=states, **more)


def told(given: rt.Program, step: int = 1, saved: SavedRun | None = None) -> RunError:
    loader = Loader(given, given.data, load(given.data, given.base))
    return not_finite.error(given, loader, saved, step, f"the loss is nan at step {step} (epoch 1)")


def csv(**more) -> rt.Source:
    fields = [rt.Field("x", "f32", (2, 2)), rt.Field("n", "i64", (2,))]
    return rt.Source("csv", batch=2, path="t.csv", fields=fields, **more)


def test_a_cell_of_a_csv_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x0,x1,n\n\n1,2,1\n3,4,1\n\n5,nan,1\n7,8,1\n9,9,1\n9,-inf,1\n")
    given = program(tmp_path, csv(shuffle=False))
    error = told(given, 2)
    assert (error.code, error.line, error.file) == ("SH506", 6, tmp_path / "t.csv")
    assert error.message == "the loss is nan at step 2 (epoch 1): `x` is nan at [1]"
    assert "mend the number" in error.help
    assert told(given, 3).line == 9
    assert told(given, 1).file is None
    # The step after one epoch is the first of the next; what is infinite may show a step later.
    assert told(given, 4).line == 9
    assert told(given, 5).line == 6


def test_the_cell_is_found_in_the_order_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("".join(f"{n},0,{n}\n" for n in range(40)).replace("17,0,", "inf,0,"))
    given = program(tmp_path, csv())
    loader = Loader(given, given.data, load(given.data, given.base))
    for epoch in (1, 2):
        batches = [batch["n"].tolist() for [batch] in loader.epoch(epoch)]
        step = 20 * (epoch - 1) + next(at for at, batch in enumerate(batches, 1) if 17 in batch)
        assert (told(given, step).line, told(given, step + 1).line) == (18, 18)
        assert told(given, step - 1).line is None


def test_an_array_is_named_by_its_example(tmp_path: Path) -> None:
    x = np.zeros((4, 2, 3))
    x[3, 1, 2] = np.nan
    np.savez(tmp_path / "a.npz", x=x)
    source = rt.Source("numpy", batch=2, path="a.npz", shuffle=False, fields=[rt.Field("x", "f32", (2, 2, 3))])
    error = told(program(tmp_path, source), 2)
    assert error.message.endswith(": `x` is nan at [1, 2] in example 3") and error.file == tmp_path / "a.npz"
    given = program(tmp_path, source)
    assert not_finite.notes(Loader(given, source, load(source, tmp_path))) == [
        f"`x` is nan at [1, 2] in example 3: {tmp_path / 'a.npz'}"
    ]


@pytest.mark.parametrize("at_once", [1, 1 << 24])
def test_a_number_of_given_weights_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(not_finite, "_AT_ONCE", at_once)
    (tmp_path / "t.csv").write_text("1,2,1\n3,4,1\n")
    given = program(tmp_path, csv(), init=rt.Safetensors("w.safetensors"))

    def written(weight: torch.Tensor, scale: float = 1.0, mask: float = float("-inf")) -> RunError:
        tensors = {"up.weight": weight, "scale": torch.tensor(scale), "mask": torch.tensor([0.0, mask])}
        save_file(tensors, tmp_path / "w.safetensors")
        return told(given)

    weight = torch.zeros(3, 2)
    error = written(weight)
    assert (error.file, error.message) == (
        None, "the loss is nan at step 1 (epoch 1); the batch and the given weights are finite, so it arose in the "
        "computation",
    )  # fmt: skip
    assert "learning rate" not in error.help and "division by zero" in error.help
    assert "learning rate" in told(given, 2).help
    assert "`mask` is nan at [1] in the weights" in written(weight, mask=float("nan")).message
    assert "`scale` is inf in the weights" in written(weight, float("inf")).message
    weight[2, 1] = float("inf")
    error = written(weight)
    assert error.message.endswith(": `up.weight` is inf at [2, 1] in the weights that the run began with")
    assert error.file == tmp_path / "w.safetensors"


def test_a_number_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,2,1\n3,4,1\n")
    weight = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, float("nan")]])
    layout = {"up.weight": SavedLayout("F32", (3, 2), [[3], [2]], [0])}
    kept = Checkpoints(tmp_path, 1, 0)
    kept.write(1, [Piece("up.weight", (3, 2), (0, 0), weight)], layout, {})
    kept.wait()
    error = told(program(tmp_path, csv()), 2, SavedRun(tmp_path / "step-1"))
    assert error.message.endswith(": `up.weight` is nan at [2, 1] in the checkpoint that the run goes on from")
    assert error.file == tmp_path / "step-1"
    assert error.help == "go on from an earlier checkpoint, or start anew by --overwrite"
