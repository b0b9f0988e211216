"""How many kernels a device is given: as many for a large value as for a small one, for 64 ranks as
for 2."""

from __future__ import annotations

import json
import sys

import pytest

from tests import warm
from tests.end_to_end.curves import ROOT


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, int]]]:
    done = warm.run([sys.executable, "-m", "tests.device.launches"], cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    counted: dict[str, list[dict[str, int]]] = json.loads(done.stdout)
    return counted


def test_dropout(found: dict[str, list[dict[str, int]]]) -> None:
    """At most 25 kernels, also where a rank has a part of the last dim, and the CPU's numbers."""
    assert len(found["dropout"]) == 4
    assert all(10 < each["kernels"] <= 25 and each["same"] for each in found["dropout"]), found


def test_a_bucket_of_zero(found: dict[str, list[dict[str, int]]]) -> None:
    """One kernel packs the gradients of any number of parameters for any number of ranks."""
    assert found["bucket"] == [{"kernels": 1, "same": True}] * 2
