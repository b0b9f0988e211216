"""Updates parameters from their gradients: sgd, adam, adamw, clipping by global norm, schedules.

It works on this rank's shards and never communicates but for the norm. torch.optim's classes are not used, as they
import torch's compiler at their first call, which takes longer than a small run; formulas and defaults are theirs.
Torch's fused kernels are not either: on the CPU they round an element differently by its place in the tensor, and so a
parameter by how it is sharded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime import wire
from shardlang.runtime.errors import RunError
from shardlang.runtime.mesh import Group, world


class Sgd:
    """torch.optim.SGD: momentum, dampening, weight_decay, nesterov."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        lr: float,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        self.tensors, self.lr = [t for t in tensors if t.numel()], lr
        self.momentum, self.dampening = momentum, dampening
        self.weight_decay, self.nesterov = weight_decay, nesterov
        self.momenta: list[Tensor] = []

    def step(self, lr: float) -> None:
        if not self.tensors:
            return
        changes = _gradients(self.tensors)
        if self.weight_decay:
            changes = torch._foreach_add(changes, self.tensors, alpha=self.weight_decay)
        if self.momentum:
            self._carry(changes)
            changes = torch._foreach_add(changes, self.momenta, alpha=self.momentum) if self.nesterov else self.momenta
        torch._foreach_add_(self.tensors, changes, alpha=-lr)

    def kept(self) -> dict[str, list[Tensor]]:
        """What the next step depends on, by name, a tensor for each of `tensors`."""
        if self.momentum and not self.momenta:
            self.momenta = [torch.zeros_like(t) for t in self.tensors]
        return {"momentum": self.momenta} if self.momentum else {}

    def resumed(self, step: int) -> None:
        """Goes on after `step` steps, whose state `kept` has been given."""

    def _carry(self, changes: Sequence[Tensor]) -> None:
        """The momenta of this step; in the first they are the gradients, undampened."""
        if not self.momenta:
            self.momenta = [change.clone() for change in changes]
            return
        torch._foreach_mul_(self.momenta, self.momentum)
        torch._foreach_add_(self.momenta, changes, alpha=1.0 - self.dampening)


class Adam:
    """torch.optim.Adam: betas, eps, weight_decay added to the gradient."""

    decoupled = False

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        self.tensors, self.lr = [t for t in tensors if t.numel()], lr
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.means = [torch.zeros_like(t) for t in self.tensors]
        self.squares = [torch.zeros_like(t) for t in self.tensors]
        self.steps = 0

    def step(self, lr: float) -> None:
        if not self.tensors:
            return
        self.steps += 1
        mean_part, square_part = self.betas
        gradients = self._decayed(lr)
        torch._foreach_lerp_(self.means, gradients, 1.0 - mean_part)
        torch._foreach_mul_(self.squares, square_part)
        torch._foreach_addcmul_(self.squares, gradients, gradients, value=1.0 - square_part)
        # Both averages begin at zero; dividing by these takes that out.
        mean_share, square_share = 1.0 - mean_part**self.steps, 1.0 - square_part**self.steps
        spread = torch._foreach_sqrt(self.squares)
        torch._foreach_div_(spread, math.sqrt(square_share))
        torch._foreach_add_(spread, self.eps)
        torch._foreach_addcdiv_(self.tensors, self.means, spread, value=-lr / mean_share)

    def kept(self) -> dict[str, list[Tensor]]:
        """What the next step depends on, by name, a tensor for each of `tensors`."""
        return {"mean": self.means, "square": self.squares}

    def resumed(self, step: int) -> None:
        """Goes on after `step` steps, whose state `kept` has been given."""
        self.steps = step

    def _decayed(self, lr: float) -> Sequence[Tensor]:
        """The gradients with weight decay, or, where that is decoupled from them, after shrinking the parameters."""
        gradients = _gradients(self.tensors)
        if not self.weight_decay:
            return gradients
        if self.decoupled:
            torch._foreach_mul_(self.tensors, 1.0 - lr * self.weight_decay)
            return gradients
        return torch._foreach_add(gradients, self.tensors, alpha=self.weight_decay)


class AdamW(Adam):
    """torch.optim.AdamW: weight_decay shrinks the parameter itself; 0.01 by default."""

    decoupled = True

    def __init__(self, tensors: Sequence[Tensor], *, weight_decay: float = 0.01, **settings: Any) -> None:
        super().__init__(tensors, weight_decay=weight_decay, **settings)


KINDS: dict[str, Any] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}


def _gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The gradients; a parameter that the loss does not reach has zeros."""
    for tensor in tensors:
        if tensor.grad is None:
            tensor.grad = torch.zeros_like(tensor)
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


def optimizer(kind: str, tensors: Sequence[Tensor], arguments: Mapping[str, Any]) -> Any:
    """An optimizer of `kind` on this rank's tensors (those of no element are left out)."""
    if kind not in KINDS:
        raise RunError("SH507", f"optimizer `{kind}` is not there yet", help=f"there are: {', '.join(KINDS)}")
    return KINDS[kind](tensors, **arguments)


def clip(
    parts: Sequence[tuple[Tensor, Group]],
    limit: float,
    trained: Sequence[Tensor] | None = None,
    stages: Group | None = None,
) -> Tensor:
    """Scales all gradients so that their norm over the whole model is at most `limit`; returns the norm before.

    parts: the tensors that count here, each with the group over which it is split (and over which alone its squares are
    summed). trained: those whose gradients are scaled, by default the same; with pipeline stages, which `stages` sums
    over, a rank may have one that another counts. The factor is limit / (norm + 1e-6), at most 1, as in
    torch.nn.utils.clip_grad_norm_.
    """
    sums: dict[frozenset[str], tuple[Group, list[Tensor]]] = {}
    for tensor, group in parts:
        if tensor.grad is not None:
            sums.setdefault(frozenset(group.axes), (group, []))[1].append(tensor.grad)
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for group, gradients in sums.values():
        squares = torch.stack(torch._foreach_norm(gradients)).double().square().sum()
        if group.size > 1:
            squares = wire.begin_reduce(squares, group).wait()
        total += squares
    if stages is not None and stages.size > 1:
        total = wire.begin_reduce(total, stages).wait()
    norm = total.sqrt()
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    scaled = [tensor for tensor, _ in parts] if trained is None else trained
    torch._foreach_mul_([tensor.grad for tensor in scaled if tensor.grad is not None], factor)
    return norm


def scheduled(base: float, schedule: tuple[str, Mapping[str, Any]] | None, step: int, total: int) -> float:
    """The learning rate of step `step` (from 1) of `total`: base after `warmup` steps of rise, then down to
    `min`.
    """
    if schedule is None or schedule[0] == "constant":
        return base
    kind, arguments = schedule
    if kind not in ("linear", "warmup_cosine"):
        raise RunError("SH507", f"schedule `{kind}` is unknown", help="there are: constant, linear, warmup_cosine")
    warmup, least = int(arguments.get("warmup", 0)), float(arguments.get("min", 0.0))
    if step <= warmup:
        return base * step / warmup
    progress = min(1.0, (step - 1 - warmup) / max(1, total - warmup))
    left = 1.0 - progress if kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return least + (base - least) * left
