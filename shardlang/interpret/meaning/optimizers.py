"""Optimizers and learning-rate schedules from their formulas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from shardlang.interpret.meaning.row_optimizers import ROW_RULES, Memory, Rule


def sgd(x: Tensor, gradient: Tensor, memory: Memory, step: int, arguments: Mapping[str, Any]) -> Tensor:
    """Momentum m <- momentum m + (1 - dampening) g; with Nesterov the step is g + momentum m."""
    momentum = arguments.get("momentum", 0.0)
    gradient = gradient + arguments.get("weight_decay", 0.0) * x
    direction = gradient
    if momentum:
        share = 1.0 - arguments.get("dampening", 0.0)
        memory["m"] = momentum * memory["m"] + share * gradient if "m" in memory else gradient
        direction = gradient + momentum * memory["m"] if arguments.get("nesterov") else memory["m"]
    return x - arguments.get("lr", 0.01) * direction


def adam(x: Tensor, gradient: Tensor, memory: Memory, step: int, arguments: Mapping[str, Any]) -> Tensor:
    """Kingma and Ba, 2015, with weight decay as part of the gradient."""
    gradient = gradient + arguments.get("weight_decay", 0.0) * x
    return x - arguments.get("lr", 1e-3) * _adam_direction(gradient, memory, step, arguments)


def adamw(x: Tensor, gradient: Tensor, memory: Memory, step: int, arguments: Mapping[str, Any]) -> Tensor:
    """Loshchilov and Hutter, 2019: weight decay apart from the gradient."""
    rate = arguments.get("lr", 1e-3)
    shrunk = x * (1.0 - rate * arguments.get("weight_decay", 0.01))
    return shrunk - rate * _adam_direction(gradient, memory, step, arguments)


def _adam_direction(gradient: Tensor, memory: Memory, step: int, arguments: Mapping[str, Any]) -> Tensor:
    first, second = arguments.get("betas", (0.9, 0.999))
    memory["m"] = first * memory.get("m", torch.zeros_like(gradient)) + (1 - first) * gradient
    memory["v"] = second * memory.get("v", torch.zeros_like(gradient)) + (1 - second) * gradient**2
    mean, square = memory["m"] / (1 - first**step), memory["v"] / (1 - second**step)
    return mean / (torch.sqrt(square) + arguments.get("eps", 1e-8))


RULES: Mapping[str, Rule] = {"sgd": sgd, "adam": adam, "adamw": adamw, **ROW_RULES}


def rate(base: float, kind: str, given: Mapping[str, Any], step: int, total: int) -> float:
    """The learning rate of step `step`, from 1, of `total`: up in `warmup` equal steps, then in
    equal steps of an angle or of a line to `min` at the last; without `warmup` the first step is at
    the top."""
    if kind == "constant":
        return base
    rising, least = given["warmup"] or 1, given["min"]
    if step <= rising:
        return base / rising * step
    left = (total - step) / (total - rising)
    return least + (base - least) * (left if kind == "linear" else math.sin(math.pi / 2 * left) ** 2)
