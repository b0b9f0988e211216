"""Backward in two parts against torch's in one: inputs first, then parameters, each as often as the graph uses them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from shardlang.runtime.step.split_backward import Halves

Net = Callable[[Tensor, Mapping[str, Tensor]], list[Tensor]]


def layer(x: Tensor, w: Tensor) -> Tensor:
    return w * torch.tanh(x) + w


NETS: dict[str, Net] = {
    "linear": lambda x, p: [torch.tanh(x @ p["a"]) @ p["b"]],
    "called again after another": lambda x, p: [layer(torch.tanh(layer(x, p["w"]) @ p["a"]), p["w"])],
    "called again around two": lambda x, p: [layer(torch.tanh(layer(x, p["w"]) @ p["a"]) @ p["b"], p["w"]) @ p["b"]],
    "beside the input": lambda x, p: [x @ p["a"], torch.tanh(p["w"] @ p["b"]) @ p["b"]],
    "between two others": lambda x, p: [torch.addmm(p["w"], torch.tanh(torch.addmm(p["a"][:3], x, p["b"])), p["b"])],
    "by experts": lambda x, p: [torch.einsum("bd,efd->bef", torch.tanh(x @ p["a"]), p["experts"])],
    "added up": lambda x, p: [torch.tanh(x @ (p["a"] + p["b"])) * p["w"]],
    "both": lambda x, p: [layer(layer(x, p["w"]) @ p["a"], p["w"]), p["w"] * p["w"]],
}


def leaves() -> tuple[Tensor, dict[str, Tensor]]:
    torch.manual_seed(3)
    made = {name: torch.randn(*shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    return made.pop("x").requires_grad_(), {name: t.requires_grad_() for name, t in made.items()}


# The parameters whose gradient is left for the second part.
ONCE = dict(zip(NETS.values(), ("ab", "ab", "a", "aw", "", "a", "abw", "a"), strict=True))
SHAPES = {"x": (3, 4), "a": (4, 4), "b": (4, 4), "w": (3, 4), "experts": (2, 3, 4)}


@pytest.mark.parametrize("order", list(itertools.permutations("abw")), ids="".join)
@pytest.mark.parametrize("net", NETS.values(), ids=NETS)
def test_halves_add_up(net: Net, order: Sequence[str]) -> None:
    """In whatever order the parameters come."""
    x, parameters = leaves()
    outputs = net(x, parameters)
    gradients = [torch.randn_like(output) for output in outputs]
    torch.autograd.backward(outputs, gradients)

    mine, own = leaves()
    weights = [own[name] for name in (*order, "experts")]
    halves = Halves(list(zip(net(mine, own), gradients, strict=True)), [mine])
    halves.inputs(weights)
    assert mine.grad is not None and x.grad is not None
    torch.testing.assert_close(mine.grad, x.grad)
    assert all(own[name].grad is None for name in ONCE[net])
    halves.weights(weights)
    made = [weight.grad for weight in weights if weight.grad is not None]
    # Kernels of optimizers walk memory, and another microbatch is added in place.
    assert all(each.is_contiguous() for each in made)
    assert len({each.data_ptr() for each in made}) == len(made)
    for name, weight in own.items():
        torch.testing.assert_close(weight.grad, parameters[name].grad)


class Counted(torch.autograd.Function):
    """The same, and counts its backwards: a collective's would send again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.counts.append(1)
        return gradient, None


def test_nothing_between_two_uses_of_a_parameter_is_done_twice() -> None:
    counts = list[int]()
    x, own = leaves()
    made = layer(Counted.apply(layer(x, own["w"]) @ own["a"], counts), own["w"])
    halves = Halves([(made, torch.ones_like(made))], [x])
    halves.inputs([*own.values()])
    assert len(counts) == 1
    halves.weights([*own.values()])
    assert len(counts) == 1
