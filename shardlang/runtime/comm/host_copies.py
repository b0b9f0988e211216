"""Copies between the memories of host and device, each the other's dual. Where both are the CPU
there is but one memory, and they are nothing.

To a device they go from page-locked memory on a stream of their own, so that they run beside what
the device has been given before; to the host they are waited for, since what runs there reads at
once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shardlang.runtime.comm.mesh import world
from shardlang.runtime.device import HOST, kind_of


def device_of(place: str) -> torch.device:
    """Where a parameter, state or field with `place` is: "host", else this rank's device."""
    return HOST if place == "host" else world.device


def to_device(x: Tensor) -> Tensor:
    """x of the host, on this rank's device; its gradient comes back to the host."""
    return x if x.device == world.device else _Copy.apply(x, world.device)


def to_host(x: Tensor) -> Tensor:
    """x of the device, in the host's memory; its gradient goes back to the device."""
    return x if x.is_cpu else _Copy.apply(x, HOST)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, target: torch.device) -> Tensor:
        ctx.source = x.device
        return kind_of(target).copied(x, target)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return kind_of(ctx.source).copied(gradient, ctx.source), None
