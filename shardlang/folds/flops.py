"""A plan -> the work of one step of training: floating-point operations, tokens, and what the
hardware could do at best."""

from __future__ import annotations

from shardlang.check.train.data_sources import SOURCES
from shardlang.folds.fits import device
from shardlang.graph.graph import Graph
from shardlang.ops.declaration import REGISTRY
from shardlang.paths.patterns import places
from shardlang.plan.plan import Plan
from shardlang.types.dim import low


def step_flops(graph: Graph) -> int:
    """Floating-point operations of a step on all ranks together: those of products (einsum,
    convolution, attention), two for a multiply and its add.

    Backward counts once for each operand of two or more dims that has a gradient, twice at most.
    Operations that are computed again do not count, nor do those that only metrics need, nor pairs
    that a causal mask hides (model FLOPs: Chowdhery et al., PaLM, 2022, appendix B)."""
    total = 0
    for op in graph.ops:
        forward = REGISTRY[op.operator].flops(op.rule, op.attrs)
        if forward and op.section == "loss":
            operands = [graph.values[v] for v in op.operands]
            back = min(2, sum(x.gradient and len(x.type.dims) > 1 for x in operands))
            total += graph.times(op) * forward * (1 + back)
    return total


def step_tokens(plan: Plan) -> int:
    """Tokens of a step on all ranks together; 0 if the data is not counted in tokens."""
    training = plan.program.training
    known = training is not None and training.data.own is None
    counted = SOURCES[training.data.kind].counted if training is not None and known else ""
    fields = [plan.graph.values[value] for value in plan.graph.data]
    return sum(field.type.elements for field in fields if field.name == counted)


def amounts(plan: Plan) -> dict[str, int | None]:
    """The sizes of a training: parameters of the whole model, tokens of a step (0: not counted),
    steps (None: the program counts epochs)."""
    graph, training = plan.graph, plan.program.training
    known = (graph.values[value] for value in graph.params)
    parameters = sum(value.type.elements * len(places(value.path)) for value in known)
    return {
        "parameters": parameters, "tokens": step_tokens(plan), "steps": training.steps if training is not None else None
    }  # fmt: skip


def peak_flops(plan: Plan) -> int:
    """Floating-point operations a second of a rank's device at best, as the file's hardware has it;
    0 if the file does not say, or if products are not computed in the 16 bits that it is said
    for."""
    has, training = device(plan.program), plan.program.training
    return has.compute if has is not None and training is not None and low(training.precision) else 0
