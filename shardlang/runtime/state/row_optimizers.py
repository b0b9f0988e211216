"""Optimizers that touch the rows of the batch only: ftrl, lazy_adam, adagrad.

On a sparse gradient (rows of a table, each once) they read and write the rows that it has, and
nothing of the others; on a dense one, all elements. They work on this rank's part and never
communicate."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from shardlang.facts.optimizers import OPTIMIZERS
from shardlang.runtime.state import mapped

# Of an optimizer that has trained all its tensors from the first step on.
ALL: Mapping[int, int] = {}


class RowOptimizer(ABC):
    """The base of the three: slots beside each parameter, of which the first may begin as
    `initial_accumulator` says, and the step over rows or over all."""

    slots: tuple[str, ...]

    def __init__(self, tensors: Sequence[Tensor], *, lr: float, initial_accumulator: float = 0.0, **own: Any) -> None:
        self.tensors, self.lr, self.own = [t for t in tensors if t.numel()], lr, own
        starts = (initial_accumulator, 0.0)[: len(self.slots)]
        self.values = [[mapped.like(t, start) for start in starts] for t in self.tensors]
        self.steps = list[int]()
        self.resumed(0)

    @abstractmethod
    def change(self, tensor: Tensor, gradient: Tensor, slots: list[Tensor], lr: float, step: int) -> None:
        """The formula of a step, on rows or on all, in place."""

    def step(self, lr: float) -> None:
        self.steps = [step + 1 for step in self.steps]
        for tensor, slots, step in zip(self.tensors, self.values, self.steps, strict=True):
            if tensor.grad is None:
                continue
            if not tensor.grad.is_sparse:
                self.change(tensor, tensor.grad, slots, lr, step)
                continue
            rows, gradient = tensor.grad.indices()[0], tensor.grad.values()
            parts = [whole.index_select(0, rows) for whole in (tensor, *slots)]  # which is faster than whole[rows]
            self.change(parts[0], gradient, parts[1:], lr, step)
            for whole, part in zip((tensor, *slots), parts, strict=True):
                whole.index_copy_(0, rows, part)

    def kept(self) -> dict[str, list[Tensor]]:
        return {name: [slots[at] for slots in self.values] for at, name in enumerate(self.slots)}

    def resumed(self, step: int, late: Mapping[int, int] = ALL) -> None:
        self.steps = [step - late.get(id(t), 0) for t in self.tensors]


class Ftrl(RowOptimizer):
    """FTRL-Proximal (McMahan et al., "Ad click prediction: a view from the trenches", 2013,
    algorithm 1) as TensorFlow and MindSpore state it: n += g^2, z += g - (n'^-p - n^-p) / lr * w,
    and w = 0 where |z| <= l1, else (sign(z) l1 - z) / (n'^-p / lr + 2 l2), with p = lr_power."""

    slots = OPTIMIZERS["ftrl"].state

    def change(self, tensor: Tensor, gradient: Tensor, slots: list[Tensor], lr: float, step: int) -> None:
        (accumulator, linear), l1, power = slots, self.own["l1"], -self.own["lr_power"]
        before = accumulator.pow(power)
        accumulator.addcmul_(gradient, gradient)
        after = accumulator.pow(power)
        linear.add_(gradient).sub_((after - before).div_(lr).mul_(tensor))
        curvature = after.div_(lr).add_(2.0 * self.own["l2"])
        moved = linear.sign().mul_(l1).sub_(linear).div_(curvature)
        tensor.copy_(moved.masked_fill_(linear.abs() <= l1, 0.0))


class LazyAdam(RowOptimizer):
    """Adam on the rows of the batch, as torch.optim.SparseAdam: their moments alone decay; step
    sizes are corrected by the number of all steps; eps is added to the uncorrected root, "epsilon
    hat" in Kingma and Ba, 2015, section 2."""

    slots = OPTIMIZERS["lazy_adam"].state

    def change(self, tensor: Tensor, gradient: Tensor, slots: list[Tensor], lr: float, step: int) -> None:
        mean, square = slots
        first, second = self.own["betas"]
        mean.lerp_(gradient, 1.0 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
        rate = lr * math.sqrt(1.0 - second**step) / (1.0 - first**step)
        tensor.addcdiv_(mean, square.sqrt().add_(self.own["eps"]), value=-rate)


class Adagrad(RowOptimizer):
    """Duchi, Hazan and Singer, 2011, as torch.optim.Adagrad: s += g^2, w -= lr g / sqrt(s)."""

    slots = OPTIMIZERS["adagrad"].state

    def change(self, tensor: Tensor, gradient: Tensor, slots: list[Tensor], lr: float, step: int) -> None:
        (total,) = slots
        total.addcmul_(gradient, gradient)
        tensor.addcdiv_(gradient, total.sqrt().add_(self.own["eps"]), value=-lr)
