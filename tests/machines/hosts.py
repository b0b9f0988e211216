"""Two hosts on this machine: each a network, a list of processes and a name of its own, joined by one cable.

`two_hosts()` yields them; what runs on them ends with the block."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

NEEDED = ("ip", "unshare", "pgrep")


def missing() -> str:
    """Why there can be no such hosts here; "" where there can."""
    lacking = [name for name in NEEDED if shutil.which(name) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    if os.geteuid() != 0:
        return "needs root"
    name = f"shard-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True)
    return "" if made.returncode == 0 else f"no network namespaces: {made.stderr.strip()}"


@dataclass
class Host:
    """One of the two. interface: its end of the cable, at `address`."""

    name: str
    address: str
    interface: str
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, command: list[str], folder: Path, env: Mapping[str, str]) -> subprocess.Popen[str]:
        """A command on this host; what it prints goes to pipes."""
        # With the first process of its list of processes, all others end.
        apart = ["unshare", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child=KILL"]
        named = ["sh", "-c", 'hostname "$0"; exec "$@"', self.name, *command]
        started = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *apart, *named], cwd=folder, env=dict(env), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.running.append(started)
        return started

    def lose(self) -> None:
        """Ends everything on this host at once, as a cut of its power does."""
        for started in self.running:
            if started.poll() is None:
                started.kill()
                started.wait()


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """The hosts `..-a` and `..-b`."""
    number = os.getpid()
    net = f"10.{number % 200 + 20}.{number // 200 % 250}"
    hosts = tuple(
        Host(f"shard{number}-{letter}", f"{net}.{at}", f"s{number}{letter}") for at, letter in ((1, "a"), (2, "b"))
    )
    first, second = hosts
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
        _ip("link", "add", first.interface, "netns", first.name, "type", "veth",
            "peer", "name", second.interface, "netns", second.name)  # fmt: skip
        for host in hosts:
            _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.interface)
            for link in ("lo", host.interface):
                _ip("-n", host.name, "link", "set", link, "up")
        yield first, second
    finally:
        for host in hosts:
            host.lose()
            subprocess.run(["ip", "netns", "delete", host.name], capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
