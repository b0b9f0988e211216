"""A Python that has torch imported already, for commands that tests run in processes of their own.

`run([sys.executable, ...])` and `Warm` are `subprocess.run` and `subprocess.Popen` for commands `python -c TEXT`,
`python -m MODULE` and `python FILE`. Importing torch takes three seconds of a processor, more than most runs of a test.
So one process imports it (`python -m tests.warm`, started at the first command), computes nothing, and is forked for
each command. What a command can see of that is only which modules are imported already, and that std is parsed: it has
its own process, folder, environment and streams, and its pid, exit code and signals are those of a process that was
started.

What is about the start of Python itself stays with `subprocess`: which modules a command imports, what the allocator
has seen before, and environments that Python reads as it starts.

`Bare` is `Warm` for commands in a copy of the tree: nothing of shardlang is imported before. A command that in turn
needs a server finds one that was forked with it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_LIMIT = 2**18  # bytes of a request
_WORD = 20  # bytes of a number that the server tells
_FORKED = "TESTS_WARM_SOCKET"  # the pid of a bare command, and the socket of the server that was forked with it
_IMPORTED = ("numpy.random", "pytest", "torch.distributed.pipelining._backward")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Request:
    """One command: the words after `python`, where it runs, and with which environment."""

    words: list[str]
    folder: str
    environment: dict[str, str]
    new_session: bool


class Server:
    """The client's side: the process that is forked, started at the first command and ended with the tests.

    bare: it has nothing of shardlang imported.
    """

    def __init__(self, bare: bool = False) -> None:
        self.said = os.memfd_create("said")
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = ["-m", "tests.warm", str(theirs.fileno()), *(["bare"] if bare else [])]
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *words], cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL,
                stdout=self.said, stderr=self.said, start_new_session=True,
            )  # fmt: skip
        atexit.register(self.close)

    def close(self) -> None:
        self.socket.close()
        self.process.wait(30)

    def failed(self) -> RuntimeError:
        """What is told where it does not answer."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        said = os.pread(self.said, _LIMIT, 0).decode(errors="replace")
        return RuntimeError(f"the Python that is forked ended ({self.process.poll()}) and said: {said}")

    def start(self, request: Request, streams: Sequence[int]) -> tuple[int, int]:
        """The pid of a new process, and the pipe that its end is told by."""
        told, tell = os.pipe()
        try:
            socket.send_fds(self.socket, [json.dumps(asdict(request)).encode()], [*streams, tell])
        except OSError as error:
            os.close(told)
            raise self.failed() from error
        finally:
            os.close(tell)
        answer = os.read(told, _WORD)
        if not answer:
            os.close(told)
            raise self.failed()
        return int(answer), told


class Forked(Server):
    """A server that was forked with this process, a bare command, and ends with it."""

    def __init__(self, number: int) -> None:
        self.socket = socket.socket(fileno=number)

    def close(self) -> None:
        self.socket.close()

    def failed(self) -> RuntimeError:
        return RuntimeError("the Python that was forked beside this one ended")


_servers: list[Server] = []
_bare: list[Server] = []


def server() -> Server:
    if not _servers:
        pid, _, number = os.environ.pop(_FORKED, "").partition(":")
        _servers.append(Forked(int(number)) if pid == str(os.getpid()) else Server())
    return _servers[0]


class Warm(subprocess.Popen[str]):
    """`subprocess.Popen` whose process is forked by the server."""

    _told = -1

    def _server(self) -> Server:
        return server()

    def _execute_child(self, *given: Any) -> None:
        how = inspect.signature(subprocess.Popen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        words, environment = how["args"], dict(os.environ if how["env"] is None else how["env"])
        assert words[0] == sys.executable and not (how["preexec_fn"] or how["pass_fds"] or how["shell"]), words
        apart = {name for name in {*environment, *os.environ} if environment.get(name) != os.environ.get(name)}
        wrong = [name for name in apart if name.startswith(("PYTHON", "LD_")) and name != "PYTHONPATH"]
        assert not wrong, f"Python reads {wrong} as it starts"
        folder = os.fspath(how["cwd"] or os.getcwd())
        request = Request(list(words[1:]), folder, environment, how["start_new_session"])
        ends = [how[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        try:
            self.pid, self._told = self._server().start(
                request, [own if end == -1 else end for own, end in enumerate(ends)]
            )
            self._child_created = True
        finally:
            for end in {*ends} - {-1}:
                os.close(end)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        answer, told, self._told = os.read(self._told, _WORD), self._told, -1
        os.close(told)
        if not answer:
            raise self._server().failed()
        return self.pid, int(answer)

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        if self.returncode is None and self._told != -1:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)
        return self.returncode


class Bare(Warm):
    """`Warm` whose process has nothing of shardlang imported, so that it may be that of a copy of the tree."""

    def _server(self) -> Server:
        if not _bare:
            _bare.append(Server(bare=True))
        return _bare[0]


def run(
    command: Sequence[str],
    *,
    kind: type[Warm] = Warm,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,
    timeout: float | None = 240,
) -> subprocess.CompletedProcess[str]:
    """`subprocess.run` with the output captured as text."""
    stdin = None if input is None else subprocess.PIPE
    with kind(
        list(command), cwd=cwd, env=env, text=True, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def modules(package: str) -> list[str]:
    """The names of all modules of a package but for scripts."""
    found = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    return [module.name for module in found if not module.name.endswith("__main__")]


def _word(number: int) -> bytes:
    """A number for the pipe. A process may end before its pid is read, so both have one length."""
    return str(number).encode().rjust(_WORD)


def _serve(requests: socket.socket) -> Request:
    """Forks a process for each request; returns in that one, and nowhere else."""
    living: dict[int, tuple[int, int]] = {}
    while True:
        for ready in select.select([requests, *living], [], [])[0]:
            if ready is requests:
                text, given, _, _ = socket.recv_fds(requests, _LIMIT, 4)
                if not text:
                    for pid, _ in living.values():
                        os.kill(pid, signal.SIGKILL)
                    os._exit(0)
                parent, pid = os.getpid(), os.fork()
                if pid == 0:
                    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                    if os.getppid() != parent:
                        os._exit(1)
                    requests.close()
                    for watched, (_, tell) in living.items():
                        os.close(watched)
                        os.close(tell)
                    for stream, own in zip(given, (0, 1, 2, None), strict=True):
                        if own is not None:
                            os.dup2(stream, own)
                        os.close(stream)
                    return Request(**json.loads(text))
                for stream in given[:3]:
                    os.close(stream)
                living[os.pidfd_open(pid)] = pid, given[3]
                os.write(given[3], _word(pid))
            else:
                pid, tell = living.pop(ready)
                os.close(ready)
                with contextlib.suppress(BrokenPipeError):
                    os.write(tell, _word(os.waitpid(pid, 0)[1]))
                os.close(tell)


def _with_server(request: Request) -> Request:
    """The request of a bare command with a server forked for it, which imports the command's shardlang when asked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        ours.close()
        if os.getppid() != parent or not theirs.recv(1, socket.MSG_PEEK):
            os._exit(0)
        _end(replace(request, words=["-m", "tests.warm", str(theirs.detach())], new_session=True))
    theirs.close()
    return replace(request, environment={**request.environment, _FORKED: f"{parent}:{ours.detach()}"})


def _become(request: Request) -> None:
    """Runs a command as `python` does, in this process."""
    if request.new_session:
        os.setsid()
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    tempfile.tempdir = None  # is looked up in the environment once
    importlib.import_module("torch").set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))  # as in conftest.py
    # Those of the server know of a file where the command may have a pipe.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.modules.pop("tests", None)  # may be another tree's
    first, *rest = request.words
    here = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if first == "-c":
        sys.argv, sys.path[:0] = ["-c", *rest[1:]], ["", *here]
        exec(compile(rest[0], "<string>", "exec"), vars(main))
    elif first == "-m":
        sys.argv, sys.path[:0] = ["-m", *rest[1:]], [os.getcwd(), *here]
        runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
    else:
        assert not first.startswith("-"), first
        sys.argv, sys.path[:0] = [first, *rest], [str(Path(first).resolve().parent), *here]
        vars(main)["__file__"] = first
        exec(compile(Path(first).read_bytes(), first, "exec"), vars(main))


def _end(request: Request) -> None:
    """Runs a command and ends this process as `python` does, but for the freeing of all that was imported."""
    code: Any = 0
    interrupted = False
    try:
        _become(request)
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        code = 1
        interrupted = isinstance(error, KeyboardInterrupt)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 120
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    number, *words = sys.argv[1:]
    for name in _IMPORTED if words else (*_IMPORTED, *modules("shardlang")):
        importlib.import_module(name)
    if "shardlang.check.files.imports" in sys.modules:
        from shardlang.check.files.imports import LIBRARIES
        from shardlang.diagnostics.diagnostic import Sink
        from shardlang.sources.files import Files
        from shardlang.syntax.parse import parse

        for name in LIBRARIES:
            parse(Files().load("", name, False), Sink())  # type: ignore[arg-type]
    if "TESTS_TEXTS" in os.environ:
        importlib.import_module("tests.texts").replace()
    sys.path.pop(0)  # the folder that this process was started in
    for owned in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        owned.atexit = False  # what is imported here is not freed at the end of each command
    gc.collect()
    gc.freeze()
    request = _serve(socket.socket(fileno=int(number)))
    _end(_with_server(request) if words else request)
