"""Backward in two parts, for schedules that fill idle time with the second: gradients of inputs,
then of parameters.

The cut is that of torch.distributed.pipelining (Qi and others, "Zero Bubble Pipeline Parallelism",
2023), which keeps the gradients of the operators where a parameter meets the way from the inputs.
It would leave out what depends on no input; that is done here, in the second part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.autograd import Function


class _Own(Function):
    """The same values in a tensor of its own, which can be detached in place, unlike a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class _Apart:
    """torch's groups of parameters, those with a common operator as one. A parameter that joins two
    groups which torch made before is in both, and would get its gradient twice."""

    def __init__(self, grouped: Callable[..., list[dict[str, set[Any]]]]) -> None:
        self.grouped = grouped

    def __call__(self, *given: Any) -> list[dict[str, set[Any]]]:
        apart: list[dict[str, set[Any]]] = []
        for group in self.grouped(*given):
            common = [other for other in apart if not other["intermediates"].isdisjoint(group["intermediates"])]
            apart = [other for other in apart if other not in common]
            apart.append({name: part.union(*(other[name] for other in common)) for name, part in group.items()})
        return apart


class Halves:
    """The backward of a stage's microbatch, from outputs' gradients: `inputs`, then `weights`."""

    def __init__(self, ends: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor]) -> None:
        reached = [_reaches(output, inputs) for output, _ in ends]
        self.through = [pair for pair, yes in zip(ends, reached, strict=True) if yes]
        self.beside = [pair for pair, yes in zip(ends, reached, strict=True) if not yes]
        self.given = inputs
        self.groups: Any = None

    def inputs(self, weights: Sequence[Tensor]) -> None:
        """Accumulates the gradients of the inputs."""
        if not self.through:
            return
        from torch.distributed.pipelining import _backward

        if not isinstance(_backward.get_param_groups, _Apart):
            _backward.get_param_groups = _Apart(_backward.get_param_groups)
        outputs = [_Own.apply(output) for output, _ in self.through]
        gradients = [gradient for _, gradient in self.through]
        _, self.groups = _backward.stage_backward_input(outputs, gradients, list(self.given), reversed(weights))

    def weights(self, weights: Sequence[Tensor]) -> None:
        """Accumulates the gradients of the parameters."""
        whole(self.beside, list(weights), self.groups is not None)
        if self.groups is not None:
            from torch.distributed.pipelining._backward import stage_backward_weight

            # A parameter that is used twice on the way has its gradient by way of all between,
            # others' parts included.
            several = any(len(group["intermediates"]) > 1 for group in self.groups)
            stage_backward_weight(iter(weights), self.groups, retain_graph=several)
        self.groups, self.through, self.beside = None, [], []


class _Seed(Function):
    """A number from which backward goes into given tensors with given gradients.

    torch.autograd.backward takes gradients too, but imports torch.fx with sympy to compare their
    shapes: seconds."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Any, ...]:
        return None, *ctx.gradients


def whole(ends: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor] | None = None, again: bool = False) -> None:
    """Accumulates all gradients, or those of some leaves; `again`: another backward will follow."""
    if ends:
        outputs, gradients = zip(*ends, strict=True)
        _Seed.apply(gradients, *outputs).backward(retain_graph=again, inputs=inputs)


def _reaches(output: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Whether an output depends on one of the inputs, which are leaves."""
    leaves = {id(leaf) for leaf in inputs}
    if output.grad_fn is None:
        return id(output) in leaves
    seen, waiting = {output.grad_fn}, [output.grad_fn]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is None or node in seen:
                continue
            if id(getattr(node, "variable", None)) in leaves:
                return True
            seen.add(node)
            waiting.append(node)
    return False
