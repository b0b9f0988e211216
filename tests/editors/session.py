"""A client of `shardc lsp` of its own: one that can be watched, and killed.

`python -m tests.editors.session PROGRAM` opens a program, and says `planning` once the server has a process that plans;
then it does nothing more.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

SERVER = [sys.executable, "-c", "from shardlang.cli.start import main; main()", "lsp"]


class LspSession:
    """An open file of a server. notices: what came besides answers, in order."""

    def __init__(self, program: Path, before: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen([*before, *SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.uri, self.notices, self._numbers = program.as_uri(), list[dict[str, Any]](), itertools.count(1)
        assert self.process.stdin is not None and self.process.stdout is not None
        self._to: IO[bytes] = self.process.stdin
        self._from: IO[bytes] = self.process.stdout
        can = {"workspace": {"codeLens": {"refreshSupport": True}}}
        self.ask("initialize", processId=None, rootUri=None, capabilities=can)
        self.tell("initialized")
        document = {"uri": self.uri, "languageId": "shard", "version": 1, "text": program.read_text("utf-8")}
        self.tell("textDocument/didOpen", textDocument=document)

    def tell(self, method: str, **given: object) -> None:
        self._send({"method": method, "params": given})

    def ask(self, method: str, **given: object) -> Any:
        """The answer."""
        return self.answer(self.begin(method, **given))

    def begin(self, method: str, **given: object) -> int:
        """Asks; the number of the question."""
        number = next(self._numbers)
        self._send({"id": number, "method": method, "params": given})
        return number

    def answer(self, number: int) -> Any:
        while True:
            found = self._receive()
            if found.get("id") == number and "method" not in found:
                assert "error" not in found, found
                return found["result"]
            self._take(found)

    def wait(self, method: str) -> None:
        """Until the server says or asks this."""
        while not any(each["method"] == method for each in self.notices):
            self._take(self._receive())

    def end(self) -> int:
        """As an editor ends it; the exit status."""
        self.ask("shutdown")
        self.tell("exit")
        return self.process.wait()

    def _take(self, found: dict[str, Any]) -> None:
        self.notices.append(found)
        if "id" in found:
            self._send({"id": found["id"], "result": None})

    def _send(self, message: Mapping[str, object]) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._to.write(b"Content-Length: %d\r\n\r\n%b" % (len(text), text))
        self._to.flush()

    def _receive(self) -> dict[str, Any]:
        length = 0
        while (line := self._from.readline().strip()) or not length:
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        found: dict[str, Any] = json.loads(self._from.read(length))
        return found


def children(pid: int) -> list[int]:
    """The processes that a process has started, and that live."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for each in tasks for child in each.read_text().split()]


def main() -> None:
    session = LspSession(Path(sys.argv[1]))
    while not children(session.process.pid):
        time.sleep(0.001)
    print("planning", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
