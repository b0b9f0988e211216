"""torchrun's variables of the environment -> the store through which the ranks of a run find each
other, or why they cannot."""

from __future__ import annotations

import os
import socket
import time

import torch.distributed as dist

from shardlang.errors import RunError
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.device import TIMEOUT

# Seconds in which the name of a host that has just begun may get its address.
PATIENCE = 60.0


def rendezvous() -> dist.Store:
    """The store of all ranks of the run. RunError where there can be none, and where another task
    has this one's number."""
    host, port, rank = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK"))
    _require_address(host)
    try:
        store, _, _ = next(dist.rendezvous("env://", timeout=TIMEOUT))
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            why = str(error).partition("\n")[0]
            raise RunError("SH503", f"rank {rank} finds no store of the run at {host}:{port}: {why}") from None
        fact = f"port {port} of this host is taken: by another program, or by another task that has RANK {rank} too"
        raise RunError(
            "SH503", fact, help=f"a RANK of its own for each task, or another MASTER_PORT than {port}"
        ) from None
    # torchrun keeps one store for all starts, where addresses of ranks that have ended would be
    # found.
    world.store = dist.PrefixStore(f"start {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/", store)
    # What torchrun starts has numbers of its own, and may find those of a start before it.
    if "TORCHELASTIC_USE_AGENT_STORE" not in os.environ and world.store.add(f"rank {rank}", 1) > 1:
        fact = f"another task of the run that has its store at {host}:{port} is rank {rank} already"
        raise RunError("SH503", fact, help="a RANK of its own for each task, and a MASTER_PORT of its own for each run")
    return world.store


def _require_address(host: str) -> None:
    """RunError where a name of a host has no address within PATIENCE."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            socket.getaddrinfo(host, None)
            return
        except OSError as error:
            if time.monotonic() >= until:
                fact = f"MASTER_ADDR is `{host}`, which has no address here: {error.strerror}"
                raise RunError("SH503", fact, help="the name or the address of the host of rank 0") from None
        time.sleep(1)
