"""Two hosts that share a folder train one program by torchrun; one of them is lost, and the other goes on alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.programs import NET, ROOT
from tests.machines import hosts
from tests.machines.hosts import two_hosts
from tests.waits import until

WHY = hosts.missing()
pytestmark = pytest.mark.skipif(bool(WHY), reason=WHY)
ENV = {
    **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}  # fmt: skip


def launched(folder: Path, first: hosts.Host, second: hosts.Host, nodes: str, batches: int) -> None:
    (folder / "net.shard").write_text(NET.replace("batches = 10", f"batches = {batches}"))
    command = ["shardc", "launch", "net.shard", "--ranks", "4", "--nodes", nodes, "--to", "torchrun", "-o", "job"]
    command += ["--hosts", f"{first.address},{second.address}", "--device", "cpu", "--restarts", "2"]
    done = subprocess.run(command, cwd=folder, env=ENV, capture_output=True, text=True)
    assert done.returncode == 0, done


def start(host: hosts.Host, folder: Path, number: int) -> subprocess.Popen[str]:
    env = {**ENV, "GLOO_SOCKET_IFNAME": host.interface}
    return host.start(["bash", "job/start.sh", str(number)], folder, env)


@pytest.mark.slow
def test_two_hosts_train_one_program(tmp_path: Path) -> None:
    with two_hosts() as (first, second):
        launched(tmp_path, first, second, "2", 10)
        started = [start(second, tmp_path, 1), start(first, tmp_path, 0)]
        said = [one.communicate()[0] for one in started]
    assert [one.returncode for one in started] == [0, 0], said
    assert sum("step 20/20" in text for text in said) == 1, said


@pytest.mark.slow
def test_a_host_is_lost_and_the_other_goes_on(tmp_path: Path) -> None:
    with two_hosts() as (first, second):
        launched(tmp_path, first, second, "1:2", 1500)
        # torchrun's own times are 15 s until a host counts as lost, and 30 s for another to come.
        script, conf = tmp_path / "job" / "start.sh", 'echo 0)"'
        assert conf in script.read_text()
        quick = conf.replace('"', ',keep_alive_interval=2,last_call_timeout=3"')
        script.write_text(script.read_text().replace(conf, quick))
        a, b = start(first, tmp_path, 0), start(second, tmp_path, 1)
        until(lambda: list(tmp_path.glob("checkpoints/step-*")), lambda: a.poll() is None)
        time.sleep(1)
        assert b.poll() is None
        second.lose()
        said = a.communicate()[0]
        assert a.returncode == 0, said
    assert "goes on after step" in said and "step 3000/3000" in said, said
