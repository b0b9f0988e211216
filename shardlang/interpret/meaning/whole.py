"""A graph on one device: every value, the loss, the metrics, and every gradient, in plain torch.

Independent of planner, emitter and runtime. ranks.py runs a plan on many ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.graph.graph import Graph, Kind, Op
from shardlang.interpret.meaning.call import ELEMENTS, PassSettings, call_of, computed
from shardlang.interpret.meaning.operators import KERNELS, MOVED, OPERATORS
from shardlang.ops.declaration import REGISTRY

# How often a step is computed again, moved.
DRAWS = 8


@dataclass(frozen=True)
class WholeResults:
    """values: by id, without gradient graph. gradients: of the loss, by value id (zeros where it
    does not depend).

    uses: the part of a value's gradient that comes back along one use, by (op, operand position).
    states: after the step, by value id. nearby: the same step, in which all numbers that are given
    and all that have a gradient are moved by a unit in the last place, by torch's kernels where
    these round further."""

    values: Mapping[int, Tensor]
    loss: Tensor | None
    gradients: Mapping[int, Tensor]
    uses: Mapping[tuple[int, int], Tensor]
    states: Mapping[int, Tensor]
    nearby: Callable[[], list[WholeResults]]

    def parts_of(self, value: int) -> list[Tensor]:
        """A value, in the one part that it has here."""
        return [self.values[value]]


@dataclass
class _WholePass:
    """One forward pass; each value and each operand is a node of its own in torch's graph."""

    graph: Graph
    run: PassSettings
    draws: torch.Generator | None = None
    values: dict[int, Tensor] = field(default_factory=dict)
    uses: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    states: dict[int, Tensor] = field(default_factory=dict)

    def compute(self, op: Op) -> None:
        operands = tuple(self._operand(op, at) for at in range(len(op.operands)))
        call = call_of(self.graph, op, self.run)
        with torch.set_grad_enabled(op.section == "loss"):
            result = computed(OPERATORS if self.draws is None else {**OPERATORS, **KERNELS}, call, operands)
            self.values[op.results[0]] = self.moved(result) if result.requires_grad else result
        written = REGISTRY[op.operator].updates
        moved = MOVED[op.operator](call, *operands) if written else ()
        self.states.update(zip((op.operands[at] for at in written), moved, strict=True))

    def moved(self, x: Tensor) -> Tensor:
        """Each number, and its gradient, a unit in the last place away, if there are draws."""
        if self.draws is None or not x.is_floating_point():
            return x
        ways = 2 * torch.randint(2, x.shape, generator=self.draws).to(x.dtype) - 1
        return x * (1 + ways * torch.finfo(x.dtype).eps)

    def _operand(self, op: Op, at: int) -> Tensor:
        value = op.operands[at]
        x = self.states.get(value, self.values[value])
        if not x.requires_grad or op.section != "loss":
            return x.detach()
        self.uses[op.id, at] = x.view_as(x)
        return self.uses[op.id, at]


def run(
    graph: Graph,
    fields: Mapping[int, Tensor],
    params: Mapping[int, Tensor],
    *,
    step: int = 1,
    seed: int = 0,
    moved: torch.Generator | None = None,
) -> WholeResults:
    """One step's forward and backward pass.

    fields: a whole batch, by value id. params: parameters and states, by value id. step: from 1, as
    in random keys. moved: draws which way each number that is given, and each that has a gradient,
    moves by a unit in the last place: as rounding moves them, on the way back too."""

    @cache
    def nearby() -> list[WholeResults]:
        draws = torch.Generator().manual_seed(seed)
        return [run(graph, fields, params, step=step, seed=seed, moved=draws) for _ in range(DRAWS)]

    state = _WholePass(graph, PassSettings(step=step, seed=seed), moved)
    for value in graph.values:
        if value.kind is Kind.RESULT:
            continue
        given = leaf(graph, value.id, fields, params)
        if value.kind is not Kind.CONSTANT:
            given = state.moved(given)
        state.values[value.id] = given.requires_grad_(value.kind is Kind.PARAM and value.gradient)
    for op in graph.ops:
        state.compute(op)
    return _results(state, {v: state.states.get(v, params[v]) for v in graph.states}, nearby)


def leaf(graph: Graph, value: int, fields: Mapping[int, Tensor], params: Mapping[int, Tensor]) -> Tensor:
    """A value that no operator makes, whole, in its own memory; InternalError for a wrong shape."""
    declared = graph.values[value]
    wanted = ELEMENTS[declared.type.dtype]
    if declared.kind is Kind.CONSTANT:
        return torch.tensor(declared.constant, dtype=wanted)
    given = (fields if declared.kind is Kind.DATA else params)[value]
    if tuple(given.shape) != declared.type.shape:
        raise InternalError(f"{declared.path} is {declared.type.shape}, and {tuple(given.shape)} is given")
    return given.detach().to(wanted).clone()


def _results(state: _WholePass, states: Mapping[int, Tensor], nearby: Callable[[], list[WholeResults]]) -> WholeResults:
    graph, values = state.graph, state.values
    loss = None if graph.loss is None else values[graph.loss]
    known = {v: x for v, x in values.items() if x.requires_grad}
    gradients: list[Tensor] = []
    if loss is not None and loss.requires_grad:
        wanted = [*known.values(), *state.uses.values()]
        gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
    return WholeResults(
        values={v: x.detach() for v, x in values.items()},
        loss=None if loss is None else loss.detach(),
        gradients=dict(zip(known, gradients[: len(known)], strict=False)),
        uses=dict(zip(state.uses, gradients[len(known) :], strict=False)),
        states={v: x.detach() for v, x in states.items()},
        nearby=nearby,
    )
