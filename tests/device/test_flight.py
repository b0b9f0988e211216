"""Where ranks on devices make no progress, the last collectives of each are written down before they are ended."""

from __future__ import annotations

import datetime
import json
import os
import sys
from pathlib import Path

import pytest

from shardlang.runtime.device import TIMEOUT, Timeout
from shardlang.runtime.launch import flight
from tests import warm
from tests.end_to_end.curves import ROOT


@pytest.mark.parametrize("own", [False, True])
def test_a_stall_names_the_flight_recorders_files(tmp_path: Path, own: bool) -> None:
    """Where the user's variables say where they go, they go there."""
    env, files = {**os.environ}, tmp_path / "logs" / "nccl-rank-"
    if own:
        files = tmp_path / "mine-"
        env |= {"TORCH_FR_DUMP_TEMP_FILE": str(files), "TORCH_NCCL_TRACE_BUFFER_SIZE": "7"}
    done = warm.run([sys.executable, "-m", "tests.device.stuck", str(tmp_path), "2"], cwd=ROOT, env=env)
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"\n  the flight recorder of ranks 0,1: {files}0 and on; torchfrtrace reads it\n" in done.stderr
    for rank in (0, 1):
        asked = json.loads(Path(f"{files}{rank}").read_text())
        assert asked["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
        assert asked.get("TORCH_FR_BUFFER_SIZE") == (None if own else "2000")
    assert "a collective may take 1800 s\n" in done.stdout


def test_nobody_to_ask_takes_no_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of the CPU have no pipes; a pipe that is left of a rank which has ended is none."""
    monkeypatch.setattr(flight.time, "sleep", lambda seconds: pytest.fail("waits"))
    os.mkfifo(tmp_path / "flight-0.pipe")
    assert [*flight.lines(tmp_path, tmp_path, [0, 1])] == []


def test_variables_are_for_devices_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    flight.begin(tmp_path, tmp_path, "cpu")
    assert not os.environ
    flight.begin(tmp_path, tmp_path, "cuda")
    assert os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == str(tmp_path / "flight-")


@pytest.mark.parametrize(("stall", "seconds"), [(None, 1800), (60.0, 1800), (3600.0, 7200), (float("inf"), 864_000)])
def test_a_collective_may_take_longer_than_a_stall(
    stall: float | None, seconds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timeout, "collective", TIMEOUT)
    Timeout.outlast(stall)
    assert Timeout.collective == datetime.timedelta(seconds=seconds)
