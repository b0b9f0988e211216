"""A command that is ended before its time: the exit code, and no process and no temporary folder that stays."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from shardlang.disk.scratch import scratch, sweep
from tests.cli.process import NET, SHARDC
from tests.runtime.test_launch import left
from tests.waits import until
from tests.warm import Warm

pytestmark = pytest.mark.slow
PROGRESS = ("planning", "dp: training on 2 real ranks")
SWEEP = "from shardlang.disk.scratch import scratch\nwith scratch('verify'): pass"


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    (folder / "temporary").mkdir(exist_ok=True)
    (folder / "net.shard").write_text(NET.replace("epochs = 2", "epochs = 100000"))
    return Warm(
        [*SHARDC, *words], cwd=folder, env={**os.environ, "TMPDIR": str(folder / "temporary")}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def wait_for(process: subprocess.Popen[str], folder: Path, pattern: str) -> None:
    until(lambda: list(folder.glob(pattern)), lambda: process.poll() is None)


@pytest.mark.parametrize("signals", [(signal.SIGTERM,), (signal.SIGINT, signal.SIGTERM)])
@pytest.mark.parametrize("until", ["shardc-verify-*", "shardc-verify-*/0/records/2-of-0.pt"])
def test_verify_leaves_nothing(tmp_path: Path, until: str, signals: tuple[signal.Signals, ...]) -> None:
    process = start(tmp_path, "verify", "net.shard", "--ranks", "2", "--steps", "10000")
    wait_for(process, tmp_path / "temporary", until)
    for number in signals:
        process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 3
    said = [line for line in err.splitlines() if line and line not in PROGRESS]
    assert said in ([], [f"shardc: ended by {signals[0].name}"])
    assert left(process.pid) == []
    assert [path.name for path in (tmp_path / "temporary").iterdir()] == []


def test_what_a_killed_verify_left_goes_with_the_next(tmp_path: Path) -> None:
    process = start(tmp_path, "verify", "net.shard", "--ranks", "2", "--steps", "10000")
    wait_for(process, tmp_path / "temporary", "shardc-verify-*/0/records/2-of-0.pt")
    (tmp_path / "temporary" / "shardc-verify-mine").mkdir()
    (tmp_path / "temporary" / "shardc-verify-mine" / "notes.txt").write_text("mine")
    sweep = [sys.executable, "-c", SWEEP]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    subprocess.run(sweep, env=environment, check=True)
    assert len(list((tmp_path / "temporary").iterdir())) > 1, "it is in use"
    process.kill()
    process.communicate()
    until(lambda: not left(process.pid))
    subprocess.run(sweep, env=environment, check=True)
    assert [path.name for path in (tmp_path / "temporary").iterdir()] == ["shardc-verify-mine"]


def test_a_sweep_of_another_command_leaves_a_folder_that_is_being_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it comes: here before the lock, and after it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where no other folder is, to be locked first
    flock = fcntl.flock

    def swept(lock: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        sweep()
        flock(lock, how)
        sweep()

    monkeypatch.setattr(fcntl, "flock", swept)
    with scratch("tried") as made:
        sweep()
        assert made.path.is_dir() and [each.name for each in made.path.iterdir()] == [".shardlang-scratch"]
    assert not made.path.exists()
