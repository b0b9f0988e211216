"""Parameters and states as this rank holds them, initialised by global index.

How a value begins depends on its path and the seed alone, never on how it is cut. Loading weights
is in weights.py, reducing gradients in buckets.py, sharding over further axes in zero.py, finding
them by path in tree.py."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.runtime import random
from shardlang.runtime.comm.host_copies import device_of
from shardlang.runtime.program import Extent, RunProgram, RunTensor, dtype_of


def _bounds(kind: str, args: tuple[float, ...]) -> tuple[float, float]:
    """The interval that a uniform initialisation draws from."""
    if kind == "uniform":
        return (args[0], args[1]) if len(args) > 1 else (0.0, args[0] if args else 1.0)
    if kind == "kaiming_uniform":
        # a = sqrt(5), which torch.nn.Linear and Conv2d pass to torch.nn.init.kaiming_uniform_: 1 /
        # sqrt(fan_in).
        slope = args[1] if len(args) > 1 else math.sqrt(5.0)
        bound = math.sqrt(6.0 / ((1.0 + slope * slope) * args[0]))
    else:
        bound = math.sqrt(6.0 / (args[0] + args[1]))
    return -bound, bound


def make(program: RunProgram, tensor: RunTensor, block: Extent) -> Tensor:
    """A block of it as it begins, without ZeRO, by a kind, or (kind, *arguments). RunError SH504
    for what is given."""
    kind, *args = (tensor.init,) if isinstance(tensor.init, str) else tensor.init
    dtype, device, whole = dtype_of(program, tensor), device_of(tensor.place), tuple(tensor.shape)
    if kind in ("zeros", "ones", "constant"):
        value = {"zeros": 0.0, "ones": 1.0}.get(kind) if kind != "constant" else args[0]
        return torch.full(block.shape, value, dtype=dtype, device=device)
    if kind == "given":
        fact = f"`{tensor.path}` is given, and the program names no file of weights that has it"
        raise RunError("SH504", fact, help="start it from weights, by `init` in `train`")
    key = random.key(tensor.path, step=0)
    if kind == "normal":
        mean, deviation = (0.0, *args)[-2:] if args else (0.0, 1.0)
        return random.normal(key, block.shape, whole, block.offsets, device).mul_(deviation).add_(mean).to(dtype)
    low, high = _bounds(kind, tuple(args))
    return random.uniform(key, block.shape, whole, block.offsets, device).mul_(high - low).add_(low).to(dtype)
