"""Random graphs under random strategies plan to what the verifier accepts; broken plans are what it rejects."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.planned import plan
from shardlang.graph.graph import Graph
from shardlang.plan.plan import Plan
from tests.plan.calculus import verify
from tests.plan.graphs import MATMUL, GraphMaker, mlp, program, quickstart

ADD = ((0, 1),)


def random_graph(rng: random.Random) -> Graph:
    """Square values [batch, d_i]: products, sums, maps, softmax, reuse of parameters and of values, ending in a
    loss.
    """
    g = GraphMaker()
    batch = g.dim("batch", 16)
    dims = [g.dim(f"d{i}", 16) for i in range(3)]
    live = [g.data("x", batch, dims[0])]
    params: dict[tuple[int, int], int] = {}
    for i in range(rng.randint(2, 9)):
        x = rng.choice(live[-3:])
        inner = g.values[x].type.dims[1][0]
        at = dims.index(inner)
        same = [v for v in live if g.values[v].type.dims[1][0] is inner and v != x]
        kind = rng.choice(["matmul", "matmul", "relu", "bias", "add", "mul", "softmax", "norm"])
        name = f"v{i}"
        if kind == "matmul":
            to = rng.choice([j for j in range(3) if j != at])
            if (at, to) not in params or rng.random() < 0.5:
                params[at, to] = g.param(f"w{i}", inner, dims[to])
            live.append(g.op("matmul", "bi,io->bo", x, params[at, to], name=name, through=MATMUL))
        elif kind == "bias":
            live.append(g.op("add", "bi,i->bi", x, g.param(f"b{i}", inner), name=name, through=ADD))
        elif kind in ("add", "mul") and same:
            how = ADD if kind == "add" else MATMUL
            live.append(g.op(kind, "bi,bi->bi", x, rng.choice(same), name=name, through=how))
        elif kind == "softmax":
            live.append(g.op("softmax", "bi->bi", x, name=name, inside="i"))
        elif kind == "norm":
            live.append(g.op("norm", "bi->bi", x, name=name, whole="i"))
        else:
            live.append(g.op("relu", "bi->bi", x, name=name))
    label = g.data("label", batch, g.values[live[-1]].type.dims[1][0])
    loss = g.op("mse_loss", "bi,bi->", live[-1], label, name="train.loss")
    metric = g.op("mean", "bi->", live[-1], name="train.m", through=((0,),), gradient=False, section="metric")
    # Values that do not come from a parameter have no gradient; those nothing reads have none either.
    graph = g.graph(loss)
    flows = _flows(graph, loss)
    values = tuple(replace(v, gradient=v.id in flows) for v in graph.values)
    return replace(graph, values=values, metrics={"m": metric})


def _flows(graph: Graph, loss: int) -> set[int]:
    trained = set(graph.params)
    for op in graph.ops:
        if trained.intersection(op.operands) and op.section == "loss":
            trained.update(op.results)
    needed = {loss}
    for op in reversed(graph.ops):
        if needed.intersection(op.results) and op.section == "loss":
            needed.update(op.operands)
    return trained & needed


def random_strategy(rng: random.Random, graph: Graph) -> tuple[str, int]:
    results = [v for v in graph.values if v.path.startswith("v")]
    lines = []
    if rng.random() < 0.5:
        meshes = rng.choice(
            [("a = 2, b = 2", 4, "ab"), ("a = 2, b = 4", 8, "ab"), ("a = 4", 4, "a"), ("a = 2, b = 2, c = 2", 8, "abc")]
        )
        lines.append(f"mesh {meshes[0]}")
        for axis, dim in zip(meshes[2], rng.sample(["batch", "d0", "d1", "d2"], len(meshes[2])), strict=True):
            if rng.random() < 0.8:
                lines.append(f"split {dim} over {axis}")
        for value in rng.sample(results, min(len(results), 2)):
            names = [t[0].name for t in value.type.dims]
            places = [rng.choice(["", *("@" + a for a in meshes[2])]) for _ in names]
            if len(set(filter(None, places))) == len(list(filter(None, places))):
                lines.append(f"at {value.path}: [{', '.join(n + p for n, p in zip(names, places, strict=True))}]")
        ranks = meshes[1]
    else:
        ranks = 8
        for value in rng.sample(results, min(len(results), rng.randint(1, 3))):
            op = graph.ops[graph.producers[value.id]]
            cuts = {}
            for f in op.rule.factors:
                room = ranks // max(1, _product(cuts.values()))
                cuts[f.name] = rng.choice([c for c in (1, 1, 2, 4) if c <= room]) if f.split.value != "whole" else 1
            tuples = [
                "(" + ", ".join(str(cuts[op.rule.factors[d[0]].name]) for d in dims) + ",)" for dims in op.rule.operands
            ]
            lines.append(f"at {value.path}: shard ({', '.join(tuples)},)")
    return "strategy s {\n  " + "\n  ".join(lines) + "\n}\n", ranks


def _product(numbers: object) -> int:
    total = 1
    for n in numbers:  # type: ignore[attr-defined]
        total *= n
    return total


def test_random_plans_are_legal() -> None:
    planned = 0
    for seed in range(250):
        rng = random.Random(seed)
        graph = random_graph(rng)
        text, ranks = random_strategy(rng, graph)
        sink = Sink()
        found = plan(program(graph, text), None, ranks, sink)
        if found is None:
            assert sink.failed, (seed, text)
            continue
        planned += 1
        assert verify(found) == [], (seed, text)
    assert planned > 150


def _quickstart() -> Plan:
    found = plan(program(quickstart(), "strategy s {\n  at h: shard ((2, 4), (4, 1))\n}\n"), None, 8, Sink())
    assert found is not None
    return found


def _operand(found: Plan, op: int, at: int, **changes: object) -> Plan:
    ops = list(found.ops)
    operands = list(ops[op].operands)
    operands[at] = replace(operands[at], **changes)  # type: ignore[arg-type]
    ops[op] = replace(ops[op], operands=tuple(operands))
    return replace(found, ops=tuple(ops))


MUTANTS = {
    "relu reads the pending sum": lambda p: _operand(
        p, 1, 0, conversion=-1, layout=p.produced[p.ops[0].operands[0].value]
    ),
    "an operand's layout is not what the conversion makes": lambda p: _operand(p, 1, 0, layout=p.ops[0].results[0]),
    "a conversion is missing from the steps": lambda p: replace(p, steps=tuple(s for s in p.steps if s.kind == "op")),
    "steps in the wrong order": lambda p: replace(p, steps=tuple(reversed(p.steps))),
    "a gradient reduced over too few axes": lambda p: replace(
        p, params={v: replace(x, reduce_axes=()) for v, x in p.params.items()}
    ),
    "the sum takes another axis": lambda p: replace(
        p, conversions=(replace(p.conversions[0], move=replace(p.conversions[0].move, axes=("a",))), *p.conversions[1:])
    ),
    "a result that is not what the factors say": lambda p: replace(
        p, ops=(p.ops[0], replace(p.ops[1], results=(p.ops[0].results[0],)), *p.ops[2:])
    ),
    "a factor split that the layouts do not show": lambda p: replace(
        p, ops=(p.ops[0], replace(p.ops[1], factor_axes=((), ())), *p.ops[2:])
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_broken_plans_are_found(mutant: str) -> None:
    assert verify(_quickstart()) == []
    assert verify(MUTANTS[mutant](_quickstart()))


def test_a_deep_model_plans_alike_on_many_ranks() -> None:
    text = "strategy s {\n  mesh dp = auto, mp = 2\n  split hidden over mp\n  split batch over dp\n}\n"
    few, many = (plan(program(mlp(), text), None, n, Sink()) for n in (4, 128))
    assert few is not None and many is not None
    assert verify(many) == []
    assert [o.operands for o in few.ops] == [o.operands for o in many.ops]
