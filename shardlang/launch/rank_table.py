"""Rank tables: JSON that names the servers of a cluster, their devices and the rank of each device.

A table is read into hosts in the order of their ranks, and one is written for named hosts. The
format is that of Ascend's clusters, version 1.0: numbers are strings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shardlang.disk.overwrite_guard import JOB_MARK
from shardlang.errors import RunError
from shardlang.frozen.records import dataclass

TABLE = "rank_table.json"
_LIMIT = 64 << 20


@dataclass(frozen=True)
class Server:
    """A host and its devices in the order of their ranks: (device, its address or "")."""

    host: str
    devices: tuple[tuple[int, str], ...]


def read(path: Path) -> tuple[Server, ...]:
    """The servers of a table, by their ranks. RunError where it is none, where a device or a rank
    comes twice or is missing, or where hosts differ in their number of devices."""
    found = _TableReader(path)
    servers = found.servers()
    found.require_whole(servers)
    return tuple(Server(host, tuple((device, address) for _, device, address in kept)) for host, kept in servers)


def text(name: str, servers: Sequence[Server]) -> str:
    """The table of servers, ranks in their order."""
    rank, listed = 0, []
    for server in servers:
        devices = []
        for device, address in server.devices:
            kept = {"device_id": str(device), **({"device_ip": address} if address else {}), "rank_id": str(rank)}
            devices.append(kept)
            rank += 1
        listed.append({"server_id": server.host, "device": devices})
    table = {
        "written_by": f"{JOB_MARK} `{name}`", "version": "1.0", "server_count": str(len(listed)),
        "server_list": listed, "status": "completed",
    }  # fmt: skip
    return json.dumps(table, indent=2) + "\n"


class _TableReader:
    """The parts of one file, with what is wrong with them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wrong(self, what: str, help: str = "") -> RunError:
        return RunError("SH523", what, file=self.path, help=help or "shardc launch --to ranktable writes a table")

    def servers(self) -> list[tuple[str, list[tuple[int, int, str]]]]:
        """Hosts by their least rank, each with (rank, device, address) by rank."""
        table = self.object(self.parsed(), "the table")
        listed = table.get("server_list")
        if not isinstance(listed, list) or not listed:
            raise self.wrong("the table has no `server_list`")
        servers: dict[str, list[tuple[int, int, str]]] = {}
        for number, given in enumerate(listed):
            server = self.object(given, f"server {number}")
            host = server.get("server_id")
            if not isinstance(host, str) or not host:
                raise self.wrong(f"server {number} has no `server_id`")
            if host in servers:
                raise self.wrong(f"the server `{host}` is there twice")
            servers[host] = sorted(self.devices(host, server.get("device")))
        count = table.get("server_count", str(len(servers)))
        if str(count) != str(len(servers)):
            raise self.wrong(f"`server_count` is {count}, and there are {len(servers)} servers")
        return sorted(servers.items(), key=lambda server: server[1][0])

    def parsed(self) -> Any:
        try:
            if self.path.stat().st_size > _LIMIT:
                raise self.wrong(f"the file is larger than {_LIMIT >> 20} MB: it is no rank table")
            return json.loads(self.path.read_text("utf-8"), object_pairs_hook=self.once)
        except OSError as error:
            raise self.wrong(f"the rank table cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise self.wrong(f"the file is no JSON: {error}") from None

    def once(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise self.wrong(f"`{name}` is given twice in one object")
            found[name] = value
        return found

    def object(self, given: Any, what: str) -> Mapping[str, Any]:
        if not isinstance(given, dict):
            raise self.wrong(f"{what} is no JSON object")
        return given

    def devices(self, host: str, given: Any) -> list[tuple[int, int, str]]:
        if not isinstance(given, list) or not given:
            raise self.wrong(f"the server `{host}` has no `device`")
        found = []
        for each in given:
            device = self.object(each, f"a device of `{host}`")
            address = device.get("device_ip", "")
            if not isinstance(address, str):
                raise self.wrong(f"`device_ip` of a device of `{host}` is no text")
            found.append((self.number(host, device, "rank_id"), self.number(host, device, "device_id"), address))
        return found

    def number(self, host: str, device: Mapping[str, Any], name: str) -> int:
        value = device.get(name)
        said = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if not (said.isascii() and said.isdecimal() and len(said) < 10):
            raise self.wrong(f"`{name}` of a device of `{host}` is no number: {value!r}")
        return int(said)

    def require_whole(self, servers: Sequence[tuple[str, Sequence[tuple[int, int, str]]]]) -> None:
        """RunError where ranks are not 0, 1, 2, .. host by host, or a device comes twice."""
        expected = 0
        for host, kept in servers:
            used: dict[int, int] = {}
            for rank, device, _ in kept:
                if device in used:
                    raise self.wrong(f"ranks {used[device]} and {rank} have one device: {device} of `{host}`")
                used[device] = rank
                if rank != expected:
                    what = f"rank {rank} is there twice" if rank < expected else f"rank {expected} is missing"
                    raise self.wrong(
                        f"{what}: the next device, {device} of `{host}`, has rank {rank}",
                        "number the ranks host by host, from 0",
                    )
                expected += 1
            first, count = servers[0][0], len(servers[0][1])
            if len(kept) != count:
                raise self.wrong(
                    f"`{first}` has {count} ranks, and `{host}` has {len(kept)}", "give each host as many ranks"
                )
