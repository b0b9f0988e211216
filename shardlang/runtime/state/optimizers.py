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
from shardlang.facts.optimizers import OPTIMIZERS
from shardlang.runtime.comm import primitives
from shardlang.runtime.comm.mesh import everyone, world
from shardlang.runtime.comm.record import about
from shardlang.runtime.state import mapped
from shardlang.runtime.state.row_optimizers import ALL, Adagrad, Ftrl, LazyAdam

# Elements of a vector of any processor's, and so of which a kernel's last steps, one element each,
# have none.
UNIT = 16


class Vectors:
    """Tensors as whole vectors, for a kernel: each without the elements at its end that fill no
    vector, and these in a row that is zero behind them. Tensors that are written are contiguous."""

    def __init__(self) -> None:
        self.rests, self.rows, self.held = list[int](), list[Tensor](), list[Tensor]()

    def of(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """The parts of all, and the ends, which are copied: any number of them by one kernel."""
        rests = [t.numel() % UNIT for t in tensors]
        if rests != self.rests:
            self._make(tensors, rests)
        if not self.rows:
            return list(tensors), []
        parts, ends, rows = list[Tensor](), list[Tensor](), iter(self.rows)
        for tensor, rest in zip(tensors, rests, strict=True):
            if not rest:
                parts.append(tensor)
                continue
            flat = tensor if tensor.dim() == 1 else tensor.reshape(-1)
            if flat.numel() > rest:
                parts.append(flat[:-rest])
            ends.append(flat[-rest:] if flat.numel() > rest else flat)
            parts.append(next(rows))
        for held, some in by_device(self.held, ends):
            torch._foreach_copy_(held, some)
        return parts, ends

    def put_back(self, ends: list[Tensor]) -> None:
        """Copies what the kernel has made of the ends to their places."""
        for some, held in by_device(ends, self.held):
            torch._foreach_copy_(some, held)

    def _make(self, tensors: Sequence[Tensor], rests: list[int]) -> None:
        self.rests, odd = rests, [t for t, rest in zip(tensors, rests, strict=True) if rest]
        self.rows = [torch.zeros(UNIT, dtype=t.dtype, device=t.device) for t in odd]
        self.held = [row[: t.numel() % UNIT] for t, row in zip(odd, self.rows, strict=True)]


class Slots:
    """The state of an optimizer for each of `tensors`; parts: as `Vectors` has the parameters."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors
        self.wholes, self.parts = list[Tensor](), list[Tensor]()
        self.of = list[int]()  # the tensor that a part is of
        for at, tensor in enumerate(tensors):
            rest = tensor.numel() % UNIT
            whole = mapped.like(tensor.detach(), 0.0, (tensor.numel() - rest + UNIT,) if rest else tensor.shape)
            self.wholes.append(whole)
            parts = [part for part in (whole[:-UNIT], whole[-UNIT:]) if part.numel()] if rest else [whole]
            self.parts += parts
            self.of += [at] * len(parts)

    def views(self) -> list[Tensor]:
        """In the tensors' own shapes."""
        return [s.view(-1)[: t.numel()].view(t.shape) for s, t in zip(self.wholes, self.tensors, strict=True)]


class Sgd:
    """torch.optim.SGD: momentum, dampening, weight_decay, nesterov."""

    def __init__(self, tensors: Sequence[Tensor], *, lr: float, **settings: Any) -> None:
        self.tensors, self.lr, self.settings = [t for t in tensors if t.numel()], lr, settings
        self.momenta = Slots(self.tensors if settings["momentum"] else [])
        self.parameters, self.gradients, self.first = Vectors(), Vectors(), list[bool]()
        self.resumed(0)

    def step(self, lr: float) -> None:
        tensors = self._without_tables(lr)
        if not tensors:
            return
        updated, ends = self.parameters.of(tensors)
        first = self.first or [True] * len(updated)
        keys = [(part.device, begins) for part, begins in zip(updated, first, strict=True)]
        lists = updated, self.gradients.of(_gradients(tensors))[0], self.momenta.parts
        for *parts, begins in alike(keys, *lists, first):
            torch._fused_sgd_(*parts, **self.settings, lr=lr, maximize=False, is_first_step=begins[0])
        self.parameters.put_back(ends)
        self.first = [False] * len(self.first)

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
        return {"momentum": self.momenta.views()} if self.momenta.parts else {}

    def resumed(self, step: int, late: Mapping[int, int] = ALL) -> None:
        """Goes on after `step` steps, whose state `kept` has been given. late: of a tensor, by its
        id, the steps before its state began."""
        self.first = [step == late.get(id(self.tensors[at]), 0) for at in self.momenta.of]


class Adam:
    """torch.optim.Adam: betas, eps, weight_decay added to the gradient."""

    kernel: Any = staticmethod(torch._fused_adam_)

    def __init__(
        self, tensors: Sequence[Tensor], *, lr: float, betas: tuple[float, float], eps: float, weight_decay: float
    ) -> None:
        self.tensors, self.lr = [t for t in tensors if t.numel()], lr
        self.settings = {"beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": weight_decay}
        self.means, self.squares = Slots(self.tensors), Slots(self.tensors)
        self.parameters, self.gradients = Vectors(), Vectors()
        self.resumed(0)

    def step(self, lr: float) -> None:
        if not self.tensors:
            return
        updated, ends = self.parameters.of(self.tensors)
        gradients, _ = self.gradients.of(_gradients(self.tensors))
        for counter in self.counters.values():
            counter.add_(1)
        for *kept, steps in by_device(updated, gradients, self.means.parts, self.squares.parts, self.steps):
            self.kernel(*kept, [], steps, **self.settings, lr=lr, amsgrad=False, maximize=False)
        self.parameters.put_back(ends)

    def kept(self) -> dict[str, list[Tensor]]:
        return {"mean": self.means.views(), "square": self.squares.views()}

    def resumed(self, step: int, late: Mapping[int, int] = ALL) -> None:
        each = [(t.device, step - late.get(id(t), 0)) for t in self.tensors]
        # By device and number, the steps of all tensors whose state began together.
        self.counters = {
            (device, steps): torch.full((), steps, dtype=torch.float32, device=device)
            for device, steps in dict.fromkeys(each)
        }
        self.steps = [self.counters[each[at]] for at in self.means.of]


class AdamW(Adam):
    """torch.optim.AdamW: weight_decay shrinks the parameter itself."""

    kernel = staticmethod(torch._fused_adamw_)


KINDS: dict[str, Any] = {
    "sgd": Sgd, "adam": Adam, "adamw": AdamW, "adagrad": Adagrad, "ftrl": Ftrl, "lazy_adam": LazyAdam,
}  # fmt: skip


def _gradients(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A parameter that the loss does not reach has zeros."""
    for tensor in tensors:
        if tensor.grad is None:
            tensor.grad = torch.zeros_like(tensor)
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


def by_device(tensors: list[Tensor], *others: list[Tensor]) -> Iterator[tuple[list[Tensor], ...]]:
    """The lists, once for each device that `tensors` are on: a kernel takes tensors of one."""
    return alike([t.device for t in tensors], tensors, *others)


def alike(keys: Sequence[Any], *lists: list[Any]) -> Iterator[tuple[list[Any], ...]]:
    """The lists, once for each key, with what stands where the key does. An empty list stays so."""
    if len(set(keys)) == 1:
        yield lists
        return
    for key in sorted(set(keys), key=str):
        at = [i for i, each in enumerate(keys) if each == key]
        yield tuple([each[i] for i in at] if each else each for each in lists)


def elements(gradient: Tensor) -> Tensor:
    """The numbers of a gradient: of rows, those that are there."""
    return gradient.values() if gradient.is_sparse else gradient


def optimizer(kind: str, tensors: Sequence[Tensor], arguments: Mapping[str, Any]) -> Any:
    """An optimizer of `kind` on this rank's tensors (those of no element are left out). arguments:
    where they are not the kind's own defaults."""
    if kind not in KINDS:
        raise RunError("SH507", f"optimizer `{kind}` is not there yet", help=f"there are: {', '.join(KINDS)}")
    return KINDS[kind](tensors, **{**OPTIMIZERS[kind].arguments, **arguments})


def slots(kind: str, arguments: Mapping[str, Any]) -> list[str]:
    """The names of what an optimizer keeps of each parameter."""
    if "call" in arguments:
        return list(arguments["state"])
    return list(OPTIMIZERS[kind].kept(arguments))


def squares(counted: Sequence[Tensor], whole: bool = True, agreed: bool = False) -> primitives.AsyncResult:
    """On its way: the sum of the squares of the gradients of the whole model, f64. It is not finite
    where one of them is not, or is so large that its square is none in its own type.

    counted: those of this rank that count in it. whole: they are the whole model; else all ranks
    call this, and each parameter, or part of one, counts on one rank alone. agreed: all ranks call
    it and get the same, also where whole models differ in what is not finite."""
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    for (gradients,) in by_device([elements(t.grad) for t in counted if t.grad is not None]):
        total += torch.stack(torch._foreach_norm(gradients)).double().square().sum().to(world.device)
    if world.size == 1 or (whole and not agreed):
        return primitives.AsyncResult(total)
    with about(b"the norm of the gradients"):
        return primitives.begin_reduce(total / world.size if whole else total, everyone(), own=True)


def clip(trained: Sequence[Tensor], limit: float, norm: Tensor) -> None:
    """Scales the gradients of `trained` so that the norm, which is now `norm`, is at most `limit`.
    The factor is limit / (norm + 1e-6), at most 1, as in torch.nn.utils.clip_grad_norm_."""
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for (gradients,) in by_device([elements(t.grad) for t in trained if t.grad is not None]):
        torch._foreach_mul_(gradients, factor.to(gradients[0].device))
