"""Optimizers and learning-rate schedules from their formulas; which rows of a table a batch looked
up.

Rules that leave rows without gradient alone are worked out for all rows; what they give is taken
where a row was looked up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from shardlang.graph.graph import Graph
from shardlang.plan.rewrite.tables import gradient_lookups

Memory = dict[str, Tensor]
Rule = Callable[[Tensor, Tensor, Memory, int, Mapping[str, Any]], Tensor]


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


def adagrad(x: Tensor, gradient: Tensor, memory: Memory, step: int, arguments: Mapping[str, Any]) -> Tensor:
    """Duchi, Hazan and Singer, 2011."""
    start = torch.full_like(x, arguments.get("initial_accumulator", 0.0))
    memory["s"] = memory.get("s", start) + gradient**2
    return x - arguments["lr"] * gradient / (torch.sqrt(memory["s"]) + arguments.get("eps", 1e-10))


def ftrl(x: Tensor, gradient: Tensor, memory: Memory, step: int, arguments: Mapping[str, Any]) -> Tensor:
    """McMahan et al., 2013, with TensorFlow's 2 l2 and its accumulator's power."""
    rate, power = arguments["lr"], -arguments.get("lr_power", -0.5)
    before = memory.get("n", torch.full_like(x, arguments.get("initial_accumulator", 0.1)))
    after = before + gradient**2
    z = memory.get("z", torch.zeros_like(x)) + gradient - (after**power - before**power) / rate * x
    memory["n"], memory["z"] = after, z
    beyond = torch.clamp(z.abs() - arguments.get("l1", 0.0), min=0.0)
    return -torch.sign(z) * beyond / (after**power / rate + 2.0 * arguments.get("l2", 0.0))


def lazy_adam(x: Tensor, gradient: Tensor, memory: Memory, step: int, arguments: Mapping[str, Any]) -> Tensor:
    """Kingma and Ba, 2015, with eps beside the uncorrected root, as torch.optim.SparseAdam has
    it."""
    first, second = arguments.get("betas", (0.9, 0.999))
    memory["m"] = first * memory.get("m", torch.zeros_like(x)) + (1 - first) * gradient
    memory["v"] = second * memory.get("v", torch.zeros_like(x)) + (1 - second) * gradient**2
    rate = arguments["lr"] * math.sqrt(1 - second**step) / (1 - first**step)
    return x - rate * memory["m"] / (torch.sqrt(memory["v"]) + arguments.get("eps", 1e-8))


RULES: Mapping[str, Rule] = {
    "sgd": sgd, "adam": adam, "adamw": adamw, "adagrad": adagrad, "ftrl": ftrl, "lazy_adam": lazy_adam,
}  # fmt: skip
_BEGINNINGS = {"s": "initial_accumulator", "n": "initial_accumulator"}


def on_rows(rule: Rule, rows: Tensor) -> Rule:
    """The rule for the rows that the mask `rows` [rows of x] has; x and what is remembered of
    others stay."""

    def stepped(x: Tensor, gradient: Tensor, memory: Memory, step: int, arguments: Mapping[str, Any]) -> Tensor:
        mask, former = rows.view(-1, *[1] * (x.dim() - 1)), dict(memory)
        changed = rule(x, gradient, memory, step, arguments)
        for name, value in memory.items():
            begin = arguments.get(_BEGINNINGS.get(name, ""), 0.1 if name == "n" else 0.0)
            memory[name] = torch.where(mask, value, former.get(name, torch.full_like(value, begin)))
        return torch.where(mask, changed, x)

    return stepped


def looked_up(graph: Graph, tables: Iterable[int], ids_of: Callable[[int], Iterable[Tensor]]) -> dict[int, Tensor]:
    """table -> mask [rows]: whether a batch has looked a row up for its loss, so that the row has a
    gradient. ids_of: value -> the tensors that together have it."""
    found = {table: torch.zeros(graph.values[table].type.shape[0], dtype=torch.bool) for table in tables}
    for table, rows in found.items():
        for op in gradient_lookups(graph, table):
            for ids in ids_of(graph.ops[op].operands[0]):
                rows[ids.reshape(-1).long()] = True
    return found


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
    return float(least + (base - least) * (left if kind == "linear" else math.sin(math.pi / 2 * left) ** 2))
