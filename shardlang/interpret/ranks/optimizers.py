"""Optimizers from their formulas: a step of the parameters, whole or as ranks store them, clipped by the global norm.

Kinds without a formula here take a plain step of their learning rate: what is compared is what ranks do, and an
optimizer works on each element alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shardlang.interpret.meaning.row_optimizers import ROW_RULES, Rule, looked_up, on_rows
from shardlang.interpret.ranks.stored import Storage, storage
from shardlang.plan.plan import Plan

Memory = dict[str, Tensor]
_NONE: Mapping[int, Tensor] = {}


def sgd(x: Tensor, gradient: Tensor, memory: Memory, step: int, arguments: Mapping[str, Any]) -> Tensor:
    """Momentum m <- momentum m + (1 - dampening) g, which begins as g; with Nesterov the step is g + momentum m."""
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


@dataclass
class Descent:
    """One run's optimizers: what each remembers, per parameter and rank. total: the steps of the whole run."""

    plan: Plan
    total: int = 1
    step: int = 0
    memory: dict[tuple[int, int], Memory] = field(default_factory=dict)

    def settings(self) -> dict[int, tuple[str, Mapping[str, Any]]]:
        """Parameter -> kind and arguments of its optimizer; a program without `train` descends plainly."""
        training = self.plan.program.training
        found: dict[int, tuple[str, Mapping[str, Any]]] = dict.fromkeys(self.plan.graph.params, ("sgd", {"lr": 0.1}))
        for optimizer in training.optimizers if training else ():
            known = optimizer.kind in RULES
            arguments = optimizer.arguments if known else {"lr": optimizer.arguments.get("lr", 0.1)}
            found.update(dict.fromkeys(optimizer.params, (optimizer.kind if known else "sgd", arguments)))
        return found

    def looked_up(self, ids_of: Callable[[int], Iterable[Tensor]]) -> dict[int, Tensor]:
        """Of the parameters whose optimizer changes the rows of the batch only: which those are."""
        kinds = self.settings()
        return looked_up(
            self.plan.graph, [v for v, p in self.plan.params.items() if p.sparse and kinds[v][0] in ROW_RULES], ids_of
        )

    def whole(
        self, params: Mapping[int, Tensor], gradients: Mapping[int, Tensor], rows: Mapping[int, Tensor] = _NONE
    ) -> dict[int, Tensor]:
        """The parameters after a step on one device. rows: as `looked_up` gives them."""
        squares = sum(float(g.double().square().sum()) for v, g in gradients.items() if v in params)
        factor = self._factor(math.sqrt(squares))
        mine = {v: [params[v]] for v in self.plan.graph.params if v in gradients}
        stepped = self._stepped(mine, gradients, factor, {v: [mask] for v, mask in rows.items()})
        return {v: xs[0] for v, xs in stepped.items()}

    def from_ranks(
        self, params: Mapping[int, Tensor], gradients: Mapping[int, Sequence[Tensor]], rows: Mapping[int, Tensor]
    ) -> dict[int, Tensor]:
        """As `whole`, from the gradients that ranks store: what an optimizer should make of equal gradients."""
        together = {v: storage(self.plan, v).assembled(parts) for v, parts in gradients.items()}
        return self.whole(params, together, rows)

    def stored(
        self, kept: Mapping[int, Sequence[Tensor]], gradients: Mapping[int, Sequence[Tensor]],
        rows: Mapping[int, Tensor] = _NONE,
    ) -> dict[int, list[Tensor]]:
        """What each rank stores after a step. The norm sums squares over what cuts a parameter, and nothing else."""
        squares = sum(_norm_square(storage(self.plan, v), parts) for v, parts in gradients.items())
        masks = {v: self._parts(v, mask) for v, mask in rows.items()}
        return self._stepped({v: kept[v] for v in gradients}, gradients, self._factor(math.sqrt(squares)), masks)

    def _parts(self, value: int, mask: Tensor) -> list[Tensor]:
        """The mask for the rows of a table that each rank stores."""
        at = storage(self.plan, value)
        return [mask.narrow(0, *at.block(rank)[0]) for rank in at.ranks]

    def _factor(self, norm: float) -> float:
        training = self.plan.program.training
        limit = training.clip if training else None
        return 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))

    def _stepped(self, params: Mapping[int, Sequence[Tensor]], gradients: Mapping[int, Any], factor: float,
                 masks: Mapping[int, Sequence[Tensor]]) -> dict[int, list[Tensor]]:  # fmt: skip
        self.step += 1
        settings, found = self.settings(), {}
        for value, xs in params.items():
            kind, arguments = settings[value]
            arguments = self._scheduled(arguments)
            given = gradients[value] if not isinstance(gradients[value], Tensor) else [gradients[value]]
            rules = [on_rows(RULES[kind], mask) for mask in masks[value]] if value in masks else [RULES[kind]] * len(xs)
            found[value] = [
                rule(x, g * factor, self.memory.setdefault((value, rank), {}), self.step, arguments)
                for rank, (rule, x, g) in enumerate(zip(rules, xs, given, strict=True))
            ]
        return found

    def _scheduled(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments with the learning rate of this step."""
        training = self.plan.program.training
        if training is None or training.lr_schedule is None or "lr" not in arguments:
            return arguments
        kind, given = training.lr_schedule
        return {**arguments, "lr": rate(arguments["lr"], kind, given, self.step, self.total)}


def rate(base: float, kind: str, given: Mapping[str, Any], step: int, total: int) -> float:
    """The learning rate of step `step`, from 1, of `total`: up in `warmup` equal steps, then in equal steps of an angle
    or of a line to `min` at the last; without `warmup` the first step is at the top.
    """
    if kind == "constant":
        return base
    rising, least = given["warmup"] or 1, given["min"]
    if step <= rising:
        return base / rising * step
    left = (total - step) / (total - rising)
    return least + (base - least) * (left if kind == "linear" else math.sin(math.pi / 2 * left) ** 2)


def _norm_square(kept: Storage, parts: Sequence[Tensor]) -> float:
    """The squared norm of a parameter's gradient, each element once: of the ranks that are first where it is whole."""
    cut = {*kept.plan.stored.split_axes(), *(kept.plan.zero_axes if kept.plan.zero else ())}
    rest = [axis for axis in kept.places.rest(()) if axis not in cut]
    first = (rank for rank, at in enumerate(kept.places.at) if all(at[axis] == 0 for axis in rest))
    return sum(float(parts[rank].double().square().sum()) for rank in first)
