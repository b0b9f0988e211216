"""A run on the pretended device writes the checkpoint that it writes on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shardlang.runtime.state.checkpoints import SavedRun
from tests import warm
from tests.device.run import trained
from tests.end_to_end.curves import RunOf
from tests.reshards import TEXT

IN_F64 = TEXT.replace("clip = 1.0", "clip = 1.0\n  precision = f64")
ON_CPU = """
import sys
from pathlib import Path
from tests import reshards
from tests.device.test_saved import IN_F64
reshards.TEXT = IN_F64
reshards.trained(Path(sys.argv[1]), "dp", 3, False)
"""


def numbers(folder: Path) -> dict[str, torch.Tensor]:
    """Each tensor of a checkpoint, whole."""
    saved = SavedRun(folder)
    nan = torch.tensor(float("nan"), dtype=torch.float64)
    found = {name: nan.repeat(layout.shape) for name, layout in saved.tensors.items()}
    for name, offsets, part in saved.parts():
        found[name][tuple(slice(o, o + n) for o, n in zip(offsets, part.shape, strict=True))] = part
    return found


@pytest.mark.slow
def test_a_checkpoint_of_a_device_is_that_of_the_cpu(tmp_path: Path) -> None:
    for name in ("device", "cpu"):
        (tmp_path / name).mkdir()
        given = {field: np.arange(320).reshape(40, 8) * 7 % 64 for field in ("tokens", "label")}
        np.savez(tmp_path / name / "data.npz", **given)
    # On the CPU first: what that writes is replaced by the device's.
    trained(IN_F64 % (3, 3), [RunOf("data", 4)], tmp_path / "device")
    done = warm.run([sys.executable, "-c", ON_CPU, str(tmp_path / "cpu")])
    assert done.returncode == 0, done.stdout + done.stderr
    ours, theirs = (numbers(tmp_path / name / "kept" / "step-3") for name in ("device", "cpu"))
    assert ours.keys() == theirs.keys() and len(ours) == 204
    apart = [name for name, one in ours.items() if not torch.allclose(one, theirs[name], rtol=1e-7, atol=1e-9)]
    assert apart == []
