"""How many kernels a device is given: as many for a large value as for a small one, for 64 ranks as
for 2."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests import warm
from tests.end_to_end.curves import ROOT


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = warm.run([sys.executable, "-m", "tests.device.launches"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    counted: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return counted


def test_dropout(found: dict[str, Any]) -> None:
    """7 kernels, or 9 where a rank has a part of the last dim; and the CPU's numbers."""
    assert len(found["dropout"]) == 4
    assert all(each["same"] for each in found["dropout"]), found
    assert [each["kernels"] for each in found["dropout"]] == [7, 9, 7, 9]


def test_a_step_with_dropout(found: dict[str, Any]) -> None:
    """Each of the 25 dropouts of 12 layers takes 7 kernels in forward and one in backward: at most 700 in all."""
    # The loss goes to the line that is shown when the line is due: in this step, or in another.
    told = {"full", "cat", "_to_copy"}
    steps = (found["step"][name].items() for name in ("f32", "f32, dropout"))
    without, kernels = (sum(count for kernel, count in step if kernel not in told) for step in steps)
    assert kernels == without + 25 * 8
    assert sum(found["step"]["f32, dropout"].values()) <= 700


def test_a_bucket_of_zero(found: dict[str, Any]) -> None:
    """One kernel packs the gradients of any number of parameters for any number of ranks."""
    assert found["bucket"] == [{"kernels": 1, "same": True}] * 2


def test_a_step_of_zero_on_many_ranks() -> None:
    """As many kernels on 512 ranks as on 8, but for the three that join the ends of norms, of which a rank has few
    elements, for the optimizer's kernel, and take them back.
    """
    done = warm.run([sys.executable, "-m", "tests.device.host_cost", "1"], cwd=ROOT)
    counted = [json.loads(line)["kernels"] for line in done.stdout.splitlines()]
    assert len(counted) == 3, done.stdout + done.stderr
    assert all(each["8"] + 3 == each["64"] == each["512"] for each in counted), counted


@pytest.mark.parametrize("precision", ["f32", "bf16", "bf16(stream = bf16)"])
def test_a_step_of_gpt2(precision: str, found: dict[str, Any]) -> None:
    """Of 12 layers, with the fused attention of a GPU. A gradient in bf16 is cast by one kernel with that of its
    product's bias; those of the table's two uses and of norms are cast alone. One kernel makes all copies. What else is
    cast are the inputs and the results of norms, and their gradients.
    """
    kernels = found["step"][precision]
    assert sum(kernels.values()) <= 700
    assert kernels["mm"] == 2 * kernels["addmm"] + 3 == 147
    if precision != "f32":
        norms = 2 * kernels["native_layer_norm"] if "stream" in precision else 0
        assert kernels["_foreach_copy_"] == kernels["addmm"] + 2 + norms + 1
        assert kernels["_to_copy"] < 5 * (kernels["native_layer_norm"] + kernels["native_layer_norm_backward"])
