"""What every operator's declaration says that its backward reads, against what is still there after a forward, to the
byte: the emitted text on one rank, on every example that has a meaning in oracles.py; and the text for dims that ranks
share, over an axis of one rank.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from shardlang import runtime as rt
from shardlang.interpret.trials.splits import Case, LocalCase, evaluate, site, text
from shardlang.ops import saved_activations
from shardlang.ops.code import Code
from shardlang.ops.declaration import REGISTRY, Precision
from shardlang.ops.rule import Split
from shardlang.types.dim import DTYPES
from tests.end_to_end.alive import following
from tests.ops.oracle import Oracle
from tests.ops.oracles import ORACLES
from tests.ops.test_factor_rules import case_of

TRAINED = [o for o in ORACLES if REGISTRY[o.operator].differentiable]


def named(oracle: Oracle) -> str:
    return f"{oracle.operator}({', '.join(str(o) for o in oracle.operands)} {oracle.static or ''})"


@pytest.fixture(scope="module", autouse=True)
def garbage() -> Iterator[None]:
    """It is looked for among what the tests make: what was there before is not walked each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)
    rt.random.start(0)


def local_of(case: Case) -> saved_activations.LocalOp:
    """One rank that has the whole, whether it shares some factors or not."""
    inference, rule = case.call.inference, case.rule
    assert inference is not None
    shapes = LocalCase(case, dict.fromkeys(case.sizes, 0))
    types = tuple(t for t in case.call.types if t is not None)
    return saved_activations.LocalOp(
        tuple(shapes.shape(dims) for dims in rule.operands), tuple(shapes.shape(dims) for dims in rule.results),
        types, inference.results, tuple(x.requires_grad for x in case.inputs),
        tuple(range(len(types[0].dims))) if types else (), inference.attrs, rule,
        tuple(bool(case.axes.get(f)) for f in range(len(rule.factors))),
    )  # fmt: skip


def measured(case: Case) -> int:
    """Bytes that are there while only the result is held; operands are made within, so that they count if kept."""
    leaves = [x.detach().clone().requires_grad_(x.requires_grad) for x in case.inputs]
    expression = text(case)
    mesh = rt.Mesh(a=1)
    evaluate(expression, leaves, mesh)  # tables that are made once are there then
    with following() as mode:
        inputs: list[Any] = [x * 1.0 if x.is_floating_point() else x.clone() for x in leaves]
        result = evaluate(expression, inputs, mesh)
        del inputs
    found = sum(size for _, size in mode.left(looks=1))  # one rank has no threads of gloo
    assert result is not None
    return found


def said(case: Case) -> int:
    operator, local = REGISTRY[case.call.operator], local_of(case)
    saved = operator.saved(local) if any(local.gradient) else saved_activations.Residuals()
    aliasing = operator.aliasing(local)
    types = [t.dtype for t in local.operand_types]
    memories = {("operand", i): saved_activations.size(local.operands[i], types[i]) for i in saved.operands}
    result = ("operand", 0) if aliasing.shared else ("result", 0)
    memories[result] = (
        saved_activations.size(local.operands[0], types[0])
        if aliasing.shared
        else saved_activations.size(local.results[0], local.result_types[0].dtype)
    )
    return sum(memories.values()) + saved.more


def shared(oracle: Oracle) -> Iterator[Case]:
    """The operator with each of its factors shared."""
    case = case_of(oracle.example)
    for f, factor in enumerate(case.rule.factors):
        if factor.split is not Split.WHOLE:
            yield replace(case, sizes={"a": 1}, axes={f: ("a",)})


@pytest.mark.parametrize("oracle", TRAINED, ids=named)
def test_what_backward_reads_of_shared_dims(oracle: Oracle) -> None:
    for case in shared(oracle):
        if ("rt." in text(case)) == ("rt." in text(case_of(oracle.example))):
            continue  # torch's own, as above
        assert said(case) == measured(case), text(case)


@pytest.mark.parametrize("oracle", TRAINED, ids=named)
def test_what_backward_reads(oracle: Oracle) -> None:
    case = case_of(oracle.example)
    assert said(case) == measured(case)


def shared_text(case: Case) -> tuple[str, list[dict[str, int]]]:
    """The one text of ranks of which the last has an empty part, with names for local sizes that differ; what these are
    on the first rank and on the last.
    """
    ends = [LocalCase(case, {"a": rank}) for rank in (0, case.sizes["a"] - 1)]
    names: list[dict[str, int]] = [{}, {}]

    def shape(dims: Sequence[Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        for first, last in zip(*(end.shape(dims) for end in ends), strict=True):
            name = Code(f"n{len(names[0])}")
            found.append(first if first == last else name)
            names[0][name], names[1][name] = first, last
        return tuple(found)

    operands, results = ([shape(dims) for dims in some] for some in (case.rule.operands, case.rule.results))
    made = replace(site(case, ends[0]), operand_shapes=tuple(operands), result_shapes=tuple(results))
    return REGISTRY[case.call.operator].text(made), names


def kept(case: Case, rank: int, expression: str, sizes: dict[str, int]) -> tuple[bool, set[int]]:
    """Of one rank: whether its part has anything in it, and a gradient; and the operands that autograd keeps."""
    local = LocalCase(case, {"a": rank})
    given = [local.part(x.detach(), dims).clone() for x, dims in zip(case.inputs, case.rule.operands, strict=True)]
    given = [x.requires_grad_(whole.requires_grad) for x, whole in zip(given, case.inputs, strict=True)]
    saved: set[int] = set()

    def pack(x: torch.Tensor) -> torch.Tensor:
        saved.add(x.untyped_storage()._cdata)
        return x

    names = {"torch": torch, "F": F, "rt": rt, "mesh": rt.Mesh(a=1), **{f"x{i}": x for i, x in enumerate(given)}}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = eval(expression, {**names, **sizes})
    return result.requires_grad and all(x.numel() for x in given), {
        i for i, x in enumerate(given) if x.untyped_storage()._cdata in saved
    }


@pytest.mark.parametrize("oracle", TRAINED, ids=named)
def test_of_an_empty_part_backward_reads_as_much(oracle: Oracle) -> None:
    """Else the ranks that have nothing of a dim would compute nothing again for it, collectives included."""
    whole = case_of(oracle.example)
    for f, factor in enumerate(whole.rule.factors):
        if factor.split is Split.WHOLE or factor.size < 2:
            continue
        ranks = 2 * factor.size
        case = replace(whole, sizes={"a": ranks}, axes={f: ("a",)})
        expression, sizes = shared_text(case)
        (some, read), (nothing, same) = (
            kept(case, rank, expression, sizes[at]) for at, rank in enumerate((0, ranks - 1))
        )
        if some and not nothing:
            assert read <= same, expression


def low(oracle: Oracle) -> Case | None:
    """The same of a stream in bf16, for operators that give it: products do so without a stream."""
    precision = REGISTRY[oracle.operator].precision
    if precision in (Precision.F32, Precision.LOW, Precision.WRITTEN):
        return None
    example = oracle.example
    first = 1 if precision is Precision.FIRST else len(example.operands)
    types = ["bf16" if at < first else "f32" for at in range(len(example.operands))]
    narrow = [None if o is None else in_type(o, dtype) for o, dtype in zip(example.operands, types, strict=True)]
    case = case_of(replace(example, operands=tuple(narrow)))
    results = case.call.inference.results if case.call.inference is not None else ()
    return case if precision is not Precision.SUM or results[0].dims else None


def in_type(operand: str, dtype: str) -> str:
    """An operand without a type of its own is floating."""
    return operand if operand.split(" ")[0] in DTYPES else f"{dtype} {operand}".strip()


torch.manual_seed(11)
LOW = {named(oracle): case for oracle in TRAINED if (case := low(oracle)) is not None}


@pytest.mark.parametrize("name", LOW)
def test_what_backward_reads_of_a_stream_in_bf16(name: str) -> None:
    case = LOW[name]
    assert said(case) == measured(case), text(case)
    for f, factor in enumerate(case.rule.factors):
        if factor.split is not Split.WHOLE:
            split = replace(case, sizes={"a": 1}, axes={f: ("a",)})
            assert said(split) == measured(split), text(split)


@pytest.mark.parametrize("name", LOW)
def test_bf16_is_computed_in_f32_inside(name: str) -> None:
    """The value is that of f32, rounded: at most twice, where torch multiplies a power out."""
    case = LOW[name]
    mesh = rt.Mesh(a=1)
    for axes in ({}, *({f: ("a",)} for f, factor in enumerate(case.rule.factors) if factor.split is Split.INSIDE)):
        split = replace(case, sizes={"a": 1}, axes=axes)
        mine = evaluate(text(split), list(case.inputs), mesh)
        wide = [x.detach().float() if x.is_floating_point() else x for x in case.inputs]
        exact = evaluate(text(split), wide, mesh)
        if mine.dtype == torch.bool or not mine.is_floating_point():
            continue
        wide_result = REGISTRY[case.call.operator].precision is Precision.WIDENS
        assert mine.dtype == (torch.float32 if wide_result else torch.bfloat16)
        bound = torch.finfo(torch.bfloat16).eps * exact.abs() + 1e-6 * exact.abs().max()
        assert ((mine - exact).abs() <= bound).all(), text(split)
