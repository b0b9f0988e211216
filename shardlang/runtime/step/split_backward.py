"""Backward in two parts, for schedules that fill idle time with the second: gradients of inputs,
then of parameters.

The cut is that of torch.distributed.pipelining (Qi and others, "Zero Bubble Pipeline Parallelism",
2023), which keeps the gradients of the operators where a parameter meets the way from the inputs.
It would leave out what depends on no input; that is done here, in the second part."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import GradientEdge


class Halves:
    """The backward of a stage's microbatch, from outputs' gradients: `inputs`, then `weights`.

    A parameter that is used several times on the way has its gradient in the first part: the
    second would go once more through all that is between its uses, collectives included."""

    def __init__(self, ends: Sequence[tuple[Tensor, Tensor]], inputs: Sequence[Tensor]) -> None:
        reached = [_reaches(output, inputs) for output, _ in ends]
        self.through = [pair for pair, yes in zip(ends, reached, strict=True) if yes]
        self.beside = [pair for pair, yes in zip(ends, reached, strict=True) if not yes]
        self.given = inputs
        # What the second part begins with: an operator, with the gradients that come to it -> the
        # parameters that it is the only one to lead to.
        self.parts: list[tuple[Any, Any, list[Tensor]]] = []

    def inputs(self, weights: Sequence[Tensor]) -> None:
        """Accumulates the gradients of the inputs, and of parameters that are used several
        times."""
        if not self.through:
            return
        from torch.distributed.pipelining import _backward

        nodes = [_backward._get_grad_fn_or_grad_acc(x) for x in (*self.given, *reversed(weights))]
        behind = _backward.construct_reverse_graph([_backward._get_grad_fn_or_grad_acc(x) for x, _ in self.through])
        groups = _apart(_backward.get_param_groups(nodes[: len(self.given)], nodes[len(self.given) :], behind))
        several, handles = list[Tensor](), list[Any]()
        for group in groups:
            params = [node.variable for node in group["params"]]
            if len(group["intermediates"]) > 1:
                several += params
                continue
            (node,) = group["intermediates"]
            handles.append(node.register_prehook(partial(self._kept, node, params)))
        try:
            whole(self.through, [*self.given, *several], True)
        finally:
            for handle in handles:
                handle.remove()

    def _kept(self, node: Any, params: list[Tensor], gradients: Any) -> None:
        self.parts.append((node, gradients, params))

    def weights(self, weights: Sequence[Tensor]) -> None:
        """Accumulates the gradients of the other parameters, each in memory of its own and in the
        order of the parameter's, as autograd itself does: kernels of optimizers and sums in place
        take that for granted."""
        whole(self.beside, list(weights), bool(self.parts))
        # The last parameter comes first, as the plan brings what is gathered.
        places = {id(weight): at for at, weight in enumerate(weights)}
        self.parts.sort(key=lambda part: -max(places[id(weight)] for weight in part[2]))
        for node, gradients, params in self.parts:
            ends = [(GradientEdge(node, at), part) for at, part in enumerate(gradients) if part is not None]
            if ends:
                torch.autograd.backward(*zip(*ends, strict=True), inputs=params)
        self.parts, self.through, self.beside = [], [], []


def _apart(groups: Sequence[dict[str, set[Any]]]) -> list[dict[str, set[Any]]]:
    """torch's groups of parameters, those with a common operator as one. A parameter that joins two
    groups which torch made before is in both, and would get its gradient twice."""
    apart: list[dict[str, set[Any]]] = []
    for group in groups:
        common = [other for other in apart if not other["intermediates"].isdisjoint(group["intermediates"])]
        apart = [other for other in apart if other not in common]
        apart.append({name: part.union(*(other[name] for other in common)) for name, part in group.items()})
    return apart


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
