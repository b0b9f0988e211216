"""The values a run begins with: parameters and states, and batches in place of a program's data."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.graph.bounds import index_bounds
from shardlang.graph.graph import Graph, GraphValue, Init
from shardlang.interpret.meaning import draws
from shardlang.interpret.meaning.call import ELEMENTS

# The share of ignored labels in drawn batches.
_LEFT_OUT = 0.125


def initial(graph: Graph, seed: int) -> dict[int, Tensor]:
    """Parameters and states as `init` says, by value id: drawn in float32, as the runtime does."""
    values = (graph.values[v] for v in (*graph.params, *graph.states))
    return {v.id: _begin(v, seed).to(ELEMENTS[v.type.dtype]) for v in values}


def _begin(value: GraphValue, seed: int) -> Tensor:
    init, shape = value.init or Init("zeros"), value.type.shape
    args = init.args
    match init.kind:
        case "zeros" | "ones" | "constant":
            number = {"zeros": 0.0, "ones": 1.0}.get(init.kind, args[0] if args else 0.0)
            return torch.full(shape, number, dtype=torch.float64)
        case "normal":
            mean, deviation = (args[0], args[1]) if len(args) > 1 else (0.0, args[0] if args else 1.0)
            return draws.normal(draws.key_of(seed, value.path), shape) * deviation + mean
        case "uniform" | "kaiming_uniform" | "xavier_uniform":
            low, high = _interval(init)
            return draws.uniform(draws.key_of(seed, value.path), shape) * (high - low) + low
        case _:
            raise InternalError(f"the interpreter does not know the initial value {init.kind}")


def _interval(init: Init) -> tuple[float, float]:
    args = init.args
    if init.kind == "uniform":
        return (args[0], args[1]) if len(args) > 1 else (0.0, args[0] if args else 1.0)
    if init.kind == "xavier_uniform":
        bound = math.sqrt(6.0 / (args[0] + args[1]))
    else:
        slope = args[1] if len(args) > 1 else math.sqrt(5.0)
        bound = math.sqrt(6.0 / ((1.0 + slope**2) * args[0]))
    return -bound, bound


def batch(graph: Graph, seed: int, step: int) -> dict[int, Tensor]:
    """A batch of random numbers for the data fields, by value id: normal where floating, else below
    the field's bound, an eighth of them ignored where the field's uses ignore a number that is not.

    Verification needs numbers without symmetry, not the user's data, which may not be at hand."""
    known = index_bounds(graph.values, graph.ops)
    fields = {}
    for id in graph.data:
        value = graph.values[id]
        key = draws.key_of(seed, f"verify:{value.path}", 0, step)
        if value.type.floating:
            drawn = draws.normal(key, value.type.shape)
        else:
            bound = known[id].bound if id in known else 2
            drawn = torch.floor(draws.uniform(key, value.type.shape).double() * bound)
            for number in value.ignored:
                left_out = draws.uniform(draws.key_of(seed, f"verify:{value.path}:{number}", 0, step), drawn.shape)
                left_out.view(-1)[:1] = 1.0  # of nothing but ignored labels no loss is a number
                drawn[left_out < _LEFT_OUT] = number
        fields[id] = drawn.to(ELEMENTS[value.type.dtype])
    return fields
