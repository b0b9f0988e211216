"""Updates parameters from their gradients: sgd, adam, adamw, clipping by global norm.

It works on this rank's shards and never communicates but for the norm. torch.optim's classes are
not used, as they import torch's compiler at their first call, which takes longer than a small run;
formulas and defaults are theirs. Their fused kernels are: one pass over memory. On the CPU these
round the last elements of a tensor, which fill no vector, differently, and so would a parameter by
how it is sharded: therefore they are given whole vectors only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from shardlang.errors import RunError
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import everyone, world
from shardlang.runtime.comm.record import about
from shardlang.runtime.state import mapped
from shardlang.runtime.state.row_optimizers import Adagrad, Ftrl, LazyAdam

# Elements of a vector of any processor's, and so of which a kernel's last steps, one element each,
# have none.
UNIT = 16


def _padded(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The tensors themselves; flat copies, padded with zeros, if no multiple of the unit. So many
    ranks may leave a few elements of each: any number of tensors is copied by one kernel."""
    found, odd = list(tensors), dict[torch.device, list[int]]()
    for i, tensor in enumerate(found):
        if tensor.numel() % UNIT:
            odd.setdefault(tensor.device, []).append(i)
    for numbers in odd.values():
        some = [found[i] for i in numbers]
        widths = [t.numel() + -t.numel() % UNIT for t in some]
        parts = some[0].new_zeros(sum(widths)).split(widths)
        torch._foreach_copy_([part[: t.numel()].view(t.shape) for part, t in zip(parts, some, strict=True)], some)
        for i, part in zip(numbers, parts, strict=True):
            found[i] = part
    return found


class Slots:
    """The state of an optimizer for each of `tensors`, in its kernel's sizes: `flat`."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        padded = _padded([t.detach() for t in tensors])
        self.flat = [mapped.like(flat, 0.0, t) for flat, t in zip(padded, tensors, strict=True)]

    def views(self) -> list[Tensor]:
        """In the tensors' own shapes."""
        return [s.view(-1)[: t.numel()].view(t.shape) for s, t in zip(self.flat, self.tensors, strict=True)]


class Sgd:
    """torch.optim.SGD: momentum, dampening, weight_decay, nesterov."""

    def __init__(
        self, tensors: Sequence[Tensor], *, lr: float, momentum: float = 0.0, dampening: float = 0.0,
        weight_decay: float = 0.0, nesterov: bool = False,
    ) -> None:  # fmt: skip
        self.tensors, self.lr = [t for t in tensors if t.numel()], lr
        self.settings = dict(momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        self.momenta = Slots(self.tensors if momentum else [])
        self.first = True

    def step(self, lr: float) -> None:
        tensors = self._without_tables(lr)
        if not tensors:
            return
        updated = _padded(tensors)
        for parts in by_device(updated, _gradients(tensors), self.momenta.flat):
            torch._fused_sgd_(*parts, **self.settings, lr=lr, maximize=False, is_first_step=self.first)
        _put_back(tensors, updated)
        self.first = False

    def _without_tables(self, lr: float) -> list[Tensor]:
        """The tensors with gradients for all of their elements, after the step of the tables that
        have some rows (they are without momentum and decay)."""
        rest = []
        for tensor in self.tensors:
            if tensor.grad is None or not tensor.grad.is_sparse:
                rest.append(tensor)
            else:
                tensor.add_(tensor.grad, alpha=-lr)
        return rest

    def kept(self) -> dict[str, list[Tensor]]:
        """The state that the next step depends on, by name, a tensor for each of `tensors`."""
        return {"momentum": self.momenta.views()} if self.momenta.flat else {}

    def resumed(self, step: int) -> None:
        """Goes on after `step` steps, whose state `kept` has been given."""
        self.first = step == 0


class Adam:
    """torch.optim.Adam: betas, eps, weight_decay added to the gradient."""

    kernel: Any = staticmethod(torch._fused_adam_)

    def __init__(
        self, tensors: Sequence[Tensor], *, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8, weight_decay: float = 0.0,
    ) -> None:  # fmt: skip
        self.tensors, self.lr = [t for t in tensors if t.numel()], lr
        self.settings = {"beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay}
        self.means, self.squares = Slots(self.tensors), Slots(self.tensors)
        self.steps = {t.device: torch.zeros((), dtype=torch.float32, device=t.device) for t in self.tensors}

    def step(self, lr: float) -> None:
        if not self.tensors:
            return
        updated = _padded(self.tensors)
        for some, *kept in by_device(updated, _gradients(self.tensors), self.means.flat, self.squares.flat):
            steps = self.steps[some[0].device].add_(1)
            self.kernel(
                some, *kept, [], [steps] * len(some), **self.settings, lr=lr, amsgrad=False, maximize=False
            )  # fmt: skip
        _put_back(self.tensors, updated)

    def kept(self) -> dict[str, list[Tensor]]:
        return {"mean": self.means.views(), "square": self.squares.views()}

    def resumed(self, step: int) -> None:
        for steps in self.steps.values():
            steps.fill_(step)


class AdamW(Adam):
    """torch.optim.AdamW: weight_decay shrinks the parameter itself; 0.01 by default."""

    kernel = staticmethod(torch._fused_adamw_)

    def __init__(self, tensors: Sequence[Tensor], *, weight_decay: float = 0.01, **settings: Any) -> None:
        super().__init__(tensors, weight_decay=weight_decay, **settings)


KINDS: dict[str, Any] = {
    "sgd": Sgd, "adam": Adam, "adamw": AdamW, "adagrad": Adagrad, "ftrl": Ftrl, "lazy_adam": LazyAdam,
}  # fmt: skip


def _gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The gradients, padded; a parameter that the loss does not reach has zeros."""
    for tensor in tensors:
        if tensor.grad is None:
            tensor.grad = torch.zeros_like(tensor)
    return _padded([tensor.grad for tensor in tensors if tensor.grad is not None])


def _put_back(tensors: Sequence[Tensor], updated: Sequence[Tensor]) -> None:
    """Copies what padded copies hold back to the tensors."""
    copied = [(t, other) for t, other in zip(tensors, updated, strict=True) if t is not other]
    for mine, theirs in by_device([t for t, _ in copied], [other for _, other in copied]) if copied else ():
        parts = [other[: t.numel()].view(t.shape) for t, other in zip(mine, theirs, strict=True)]
        torch._foreach_copy_(mine, parts)


def by_device(tensors: list[Tensor], *others: list[Tensor]) -> Iterator[tuple[list[Tensor], ...]]:
    """The lists, once for each device that `tensors` are on: a kernel takes tensors of one. An
    empty list stays so."""
    devices = {t.device for t in tensors}
    if len(devices) == 1:
        yield tensors, *others
        return
    for device in sorted(devices, key=str):
        at = [i for i, t in enumerate(tensors) if t.device == device]
        yield tuple([each[i] for i in at] if each else each for each in (tensors, *others))


def elements(gradient: Tensor) -> Tensor:
    """The numbers of a gradient: of rows, those that are there."""
    return gradient.values() if gradient.is_sparse else gradient


def optimizer(kind: str, tensors: Sequence[Tensor], arguments: Mapping[str, Any]) -> Any:
    """An optimizer of `kind` on this rank's tensors (those of no element are left out)."""
    if kind not in KINDS:
        raise RunError("SH507", f"optimizer `{kind}` is not there yet", help=f"there are: {', '.join(KINDS)}")
    return KINDS[kind](tensors, **arguments)


def slots(kind: str, arguments: Mapping[str, Any]) -> list[str]:
    """The names of what an optimizer keeps of each parameter."""
    if "call" in arguments:
        return list(arguments["state"])
    return list(optimizer(kind, [torch.zeros(1)], arguments).kept())


def clip(counted: Sequence[Tensor], limit: float, trained: Sequence[Tensor], whole: bool = True) -> Tensor:
    """Scales the gradients of `trained` so that the norm over the whole model is at most `limit`;
    returns the norm before.

    counted: those of this rank that count in the norm. whole: they are the whole model; else all
    ranks call this, and each parameter, or part of one, counts on one rank alone. The factor is
    limit / (norm + 1e-6), at most 1, as in torch.nn.utils.clip_grad_norm_."""
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for (gradients,) in by_device([elements(t.grad) for t in counted if t.grad is not None]):
        total += torch.stack(torch._foreach_norm(gradients)).double().square().sum().to(world.device)
    if not whole:
        with about(b"the norm of the gradients"):
            total = primitives.begin_reduce(total, everyone()).wait()
    norm = total.sqrt()
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for (gradients,) in by_device([elements(t.grad) for t in trained if t.grad is not None]):
        torch._foreach_mul_(gradients, factor.to(gradients[0].device))
    return norm
