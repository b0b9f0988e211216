"""Processes that are forked with torch imported are to a test what started ones are, and fail it as those do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from tests.runtime.test_launch import left
from tests.waits import until

pytestmark = pytest.mark.slow
TOLD = """
import atexit, os, sys
atexit.register(print, "at the end")
sys.stderr.write("aside")
print(sys.argv[1:], os.getcwd(), os.environ["OF_A_TEST"], __name__, sys.stdin.read(), "torch" in sys.modules)
"""


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> warm.Server:
    """A server that a test may break."""
    own = warm.Server()
    monkeypatch.setattr(warm, "_servers", [own])
    return own


def test_a_command_has_its_words_folder_environment_and_streams(tmp_path: Path) -> None:
    environment = {**os.environ, "OF_A_TEST": "set"}
    (tmp_path / "told.py").write_text(TOLD)
    for command in (["-c", TOLD], ["told.py"], ["-m", "told"]):
        words = [sys.executable, *command, "a", "-b"]
        done = warm.run(words, cwd=tmp_path, env=environment, input="given")
        assert done.stdout == f"['a', '-b'] {tmp_path} set __main__ given True\nat the end\n", done.stderr
        assert (done.returncode, done.stderr) == (0, "aside")
        cold = subprocess.run(words, cwd=tmp_path, env=environment, input="given", capture_output=True, text=True)
        assert cold.stdout == done.stdout.replace("True", "False")
    assert "OF_A_TEST" not in os.environ


@pytest.mark.parametrize(
    "text", ["1 / 0", "import sys; sys.exit(7)", "raise SystemExit('no')", "import os; os.kill(os.getpid(), 15)",
             "import signal; signal.raise_signal(2)"]
)  # fmt: skip
def test_a_command_ends_as_python_does(text: str) -> None:
    done, cold = warm.run(command := [sys.executable, "-c", text]), subprocess.run(command, capture_output=True)
    assert done.returncode == cold.returncode != 0
    assert done.stderr.splitlines()[-1:] == cold.stderr.decode().splitlines()[-1:]


def test_what_python_reads_as_it_starts_is_refused() -> None:
    with pytest.raises(AssertionError, match="PYTHONHASHSEED"):
        warm.run([sys.executable, "-c", "pass"], env={**os.environ, "PYTHONHASHSEED": "5"})


def test_a_command_that_takes_too_long_is_killed_with_its_ranks(tmp_path: Path) -> None:
    pids = []

    class Seen(warm.Warm):
        def communicate(self, *given: Any) -> Any:
            pids.append(self.pid)
            return super().communicate(*given)

    with pytest.raises(subprocess.TimeoutExpired):
        warm.run([sys.executable, "-c", "import time; time.sleep(600)"], cwd=tmp_path, timeout=0.5, kind=Seen)
    assert pids and not Path(f"/proc/{pids[0]}").exists()


def test_where_the_server_has_ended_the_command_fails_with_what_it_said(apart: warm.Server) -> None:
    os.kill(apart.process.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"the Python that is forked ended \(-9\)"):
        warm.run([sys.executable, "-c", "pass"])


def test_nothing_outlives_the_server(apart: warm.Server) -> None:
    """Which ends with those that it works for. A command that is then under way fails."""
    process = warm.Warm([sys.executable, "-c", "import time; time.sleep(60)"])
    assert process.pid in left(apart.process.pid)
    apart.close()
    until(lambda: not left(apart.process.pid))
    with pytest.raises(RuntimeError, match="ended"):
        process.wait()


def test_a_bare_command_imports_the_shardlang_of_its_folder_and_so_does_what_it_forks(tmp_path: Path) -> None:
    (tmp_path / "shardlang").mkdir()
    (tmp_path / "shardlang" / "__init__.py").write_text("import sys\nprint('a copy', file=sys.stderr)\n")
    forks = "import sys; from tests import warm; print(warm.run([sys.executable, '-c', sys.argv[1]]).stdout)"
    imports = "import sys; print('torch' in sys.modules, 'shardlang' in sys.modules); import shardlang"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{warm.ROOT}"}
    done = warm.run([sys.executable, "-c", imports], cwd=tmp_path, env=environment, kind=warm.Bare)
    assert (done.stdout, done.stderr) == ("True False\n", "a copy\n")
    done = warm.run([sys.executable, "-c", forks, imports], cwd=tmp_path, env=environment, kind=warm.Bare)
    assert (done.stdout, done.stderr) == ("True True\n\n", "a copy\n"), "by its server"


def test_a_process_may_end_before_its_number_is_read(apart: warm.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server tells of a process, its number and its end, stays two things."""
    read = os.read

    def late(fd: int, count: int) -> bytes:
        time.sleep(2)
        return read(fd, count)

    request = warm.Request(["-c", "raise SystemExit(3)"], os.getcwd(), dict(os.environ), False)
    with monkeypatch.context() as patch:
        patch.setattr(warm.os, "read", late)
        pid, told = apart.start(request, [0, 1, 2])
    assert 1 < pid < 2**22
    assert os.waitstatus_to_exitcode(int(read(told, 64))) == 3
    os.close(told)
