"""The process of `shardc lsp`, from outside: it ends with its editor, and nothing of it goes to a network or a disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.editors.cached import program
from tests.editors.conftest import ROOT
from tests.editors.session import LspSession, children

TRANSFORMER = ROOT / "examples" / "transformer.shard"
# Of an opened file: what lets a process write to it.
WRITES = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND")
CHANGES = "connect,bind,sendto,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat,truncate,ftruncate,execve"


def living(mark: str) -> list[int]:
    """Processes with this in their environment, which children inherit."""
    found = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in each.read_bytes():
                found.append(int(each.parent.name))
        except OSError:  # it ended, or is another's
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").is_file(), reason="it finds children in /proc, which only Linux has")
@pytest.mark.parametrize("killed", ["editor", "server"])
def test_none_is_left_after_a_kill(killed: str) -> None:
    """Of what the editor started, and of what its server did."""
    mark = uuid.uuid4().hex
    large = ROOT / "examples" / "tuned" / "llama_405b_16384.shard"
    command = [sys.executable, "-m", "tests.editors.session", str(large)]
    editor = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "SHARD_MARK": mark}, stdout=subprocess.PIPE)
    assert editor.stdout is not None and editor.stdout.readline() == b"planning\n"
    assert len(living(mark)) == 3  # the editor, its server, and what plans
    left = [editor.pid] if killed == "server" else []
    os.kill(children(editor.pid)[0] if killed == "server" else editor.pid, signal.SIGKILL)
    try:
        while set(living(mark)) - set(left):  # the test's time limit ends it
            time.sleep(0.01)
    finally:
        editor.kill()
        editor.wait()


@pytest.mark.skipif(
    not Path("/proc/self/wchan").is_file(),
    reason="it looks in /proc, which only Linux has, at what the server waits for",
)
def test_an_answer_larger_than_a_pipe_comes_whole_after_a_stop() -> None:
    """Where Python does not buffer, a stop ends a write to a full pipe with a part of it."""
    session = LspSession(TRANSFORMER, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    session.wait("workspace/codeLens/refresh")
    number = session.begin("workspace/executeCommand", command="shard.report", arguments=[session.uri])
    server = Path("/proc", str(session.process.pid))
    while "pipe_write" not in (server / "wchan").read_text():
        time.sleep(0.01)
    os.kill(session.process.pid, signal.SIGSTOP)
    while ") T " not in (server / "stat").read_text():
        time.sleep(0.01)
    os.kill(session.process.pid, signal.SIGCONT)
    assert session.answer(number)["html"].rstrip().endswith("</html>")
    assert session.end() == 0


def test_a_session_opens_no_network_writes_nothing_and_needs_no_torch(tmp_path: Path) -> None:
    strace = program("strace")
    (tmp_path / "transformer.shard").write_text(TRANSFORMER.read_text("utf-8"), "utf-8")
    before = [strace, "-ff", "-qq", "-e", f"trace=open,openat,creat,socket,{CHANGES}", "-o", str(tmp_path / "calls")]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    session = LspSession(tmp_path / "transformer.shard", before, env)
    session.wait("workspace/codeLens/refresh")
    place = {"line": 16, "character": 5}
    document = {"uri": session.uri}
    assert session.ask("textDocument/hover", textDocument=document, position=place)
    assert session.ask("textDocument/definition", textDocument=document, position={"line": 16, "character": 14})
    assert session.ask("workspace/executeCommand", command="shard.report", arguments=[session.uri])["html"]
    assert session.end() == 0

    # A file of each process: in one their lines would be torn.
    calls = [call for each in tmp_path.glob("calls.*") for call in each.read_text("utf-8").splitlines()]
    done = [call for call in calls if " = -1 " not in call]
    opened = [call for call in done if call.startswith("open")]
    assert len(opened) > 100 and any("transformer.shard" in call for call in opened)
    assert [call for call in opened if WRITES.search(call) and "/dev/null" not in call] == []
    assert [call for call in opened if re.search(r'/torch/|/numpy/|"/etc/(resolv|hosts)', call)] == []
    others = [call for call in done if not re.match(r"open|\+\+\+|---", call)]
    assert len(others) == 1 and others[0].startswith("execve(")  # the server itself
