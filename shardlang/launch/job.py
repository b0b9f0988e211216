"""A job on several hosts: what is to be started, where, and what must hold of it before anything is
written."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Sequence
from pathlib import PurePath

from shardlang.errors import RunError
from shardlang.frozen.records import dataclass

# Names of a job. Kubernetes asks for a label of DNS; it leaves room for what is put after it, as in
# NAME-worker-1023. Elsewhere a name stands in a script and in a list of jobs.
_LABEL = (
    re.compile(r"[a-z]([-a-z0-9]{0,48}[a-z0-9])?"), "name of a job on Kubernetes",
    "a lower-case letter, then at most 49 lower-case letters, digits and hyphens, the last no hyphen",
)  # fmt: skip
_WORD = (
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}"), "name of a job",
    "a letter or digit, then at most 49 letters, digits, dots, underscores and hyphens",
)  # fmt: skip
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,253}[A-Za-z0-9])?")
NODES_LIMIT = 65_536


@dataclass(frozen=True)
class Job:
    """The ranks to start, and how. program: the folder of main.py as the hosts see it. base: what
    paths in the program are relative to, there. hosts: () where the launcher chooses them.

    described: whether the file describes GPUs.

    least, most: how many hosts; they differ where main.py has a program for each size. ranks: of
    the most hosts. resumes: whether the program writes checkpoints. restarts: after failures.
    port: where ranks meet; None for the launcher's own."""

    name: str
    program: PurePath
    base: PurePath
    ranks: int
    least: int
    most: int
    resumes: bool
    hosts: tuple[str, ...] = ()
    device: str | None = None
    restarts: int = 3
    port: int | None = None
    interface: str = ""
    described: bool = False

    @property
    def gpus(self) -> bool:
        """Whether each rank is to have a GPU: as `device` says, else as the file's device is."""
        return self.described if self.device is None else self.device == "cuda"

    @property
    def each(self) -> int:
        """How many ranks a host has."""
        return self.ranks // self.most

    @property
    def nodes(self) -> str:
        """How many hosts, as torchrun takes it."""
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"

    @property
    def command(self) -> list[str]:
        """The file that each rank runs, with its arguments."""
        given = [str(self.program / "main.py"), "--base", str(self.base), "--log-dir", str(self.program / "logs")]
        given += ["--resume"] if self.resumes else []
        return given + (["--device", self.device] if self.device else [])

    @property
    def interfaces(self) -> list[tuple[str, str]]:
        """Environment variables that name the network interface."""
        return [(name, self.interface) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if self.interface]


def quoted(words: Sequence[str]) -> str:
    """Words as a shell reads them."""
    return " ".join(shlex.quote(word) for word in words)


def node_counts(text: str) -> tuple[int, int]:
    """The least and the most hosts that `2` or `2:4` names. RunError where it names none."""
    found = re.fullmatch(r"(\d{1,9})(?::(\d{1,9}))?", text)
    if found is None:
        raise RunError("SH520", f"`{text}` is no number of hosts", help="--nodes 2, or --nodes 2:4 for 2 to 4 hosts")
    least, most = int(found[1]), int(found[2] or found[1])
    if least > most:
        raise RunError("SH520", f"--nodes {text}: {least} hosts are more than {most}", help=f"--nodes {most}:{least}")
    if not 0 < least <= most <= NODES_LIMIT:
        raise RunError("SH520", f"--nodes {text}: a job has 1 to {NODES_LIMIT:,} hosts", help="--nodes 2")
    return least, most


def require_even(ranks: int, most: int, hosts: Sequence[str]) -> None:
    """RunError where ranks do not divide over hosts, or other hosts are named than there are to
    be."""
    if ranks % most:
        counts = [n for n in range(1, ranks + 1) if ranks % n == 0]
        near = [*[n for n in counts if n < most][-1:], *[n for n in counts if n > most][:1]]
        fits = " or ".join(f"--nodes {fit}" for fit in near)
        raise RunError("SH520", f"{ranks} ranks do not divide over {most} hosts", help=fits)
    if hosts and len(hosts) != most:
        raise RunError("SH520", f"{len(hosts)} hosts are named, and the job has {most}", help=f"--nodes {len(hosts)}")
    for at, host in enumerate(hosts):
        if _HOST.fullmatch(host) is None:
            raise RunError("SH520", f"`{host}` is no name and no address of a host", help="--hosts node1,node2")
        if host in hosts[:at]:
            raise RunError("SH520", f"the host `{host}` is named twice", help="name each host once")


def require_found(hosts: Sequence[str]) -> None:
    """RunError where the name of a host has no address."""
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            raise RunError(
                "SH521", f"the host `{host}` is not found from here: {error.strerror or error}",
                help="give its address, or run this where the name is known",
            ) from None  # fmt: skip


def name_of(given: str | None, stem: str, to: str) -> str:
    """The job's name: the one that is given, or one made of the program's. to: what starts the job.
    RunError where it takes no such name."""
    if given is None:
        return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-0123456789")[:50].strip("-") or "job"
    form, what, takes = _LABEL if to == "kubernetes" else _WORD
    if form.fullmatch(given) is None:
        fact = f"`{given}` is no {what}, which is {takes}"
        raise RunError("SH522", fact, help=f"--name {name_of(None, given, to)}")
    return given
