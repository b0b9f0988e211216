"""The interpreter's operators against the emitted text of the same operators, on one rank, where no formula in numpy
(test_oracles.py) has the same shapes."""

from __future__ import annotations

import pytest
import torch

from shardlang import runtime as rt
from shardlang.interpret.meaning.call import ELEMENTS, OperatorCall, PassSettings, computed
from shardlang.interpret.meaning.draws import key_of
from shardlang.interpret.meaning.operators import OPERATORS
from shardlang.interpret.trials.splits import Case, gradients, whole
from shardlang.ops.declaration import REGISTRY
from tests.ops.test_factor_rules import SHAPES, Example, case_of, check_type, named


def call_of(case: Case) -> OperatorCall:
    """The call that the graph would make of a case on one device."""
    inference, rule = case.call.inference, case.rule
    assert inference is not None
    factors = rule.factors
    return OperatorCall(
        case.call.operator, inference.attrs, rule, tuple(f.size for f in factors), (0,) * len(factors),
        tuple(ELEMENTS[t.dtype] for t in inference.results), (None,) * len(case.inputs),
        key_of(0, "net.x", 0, 0), PassSettings(step=0),
    )  # fmt: skip


def test_every_operator_of_the_language_is_known() -> None:
    assert set(REGISTRY) - {"auc"} <= set(OPERATORS)


@pytest.mark.parametrize("example", SHAPES, ids=named)
def test_operator_equals_its_emitted_text(example: Example) -> None:
    torch.manual_seed(3)
    rt.random.start(0)
    case = case_of(example)
    expected, wanted, seed = whole(case)
    check_type(case, expected)
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in case.inputs]
    found = computed(OPERATORS, call_of(case), tuple(inputs))
    narrow = example.name == "cast" or expected.dtype == torch.float32
    tolerance = {"atol": 1e-6, "rtol": 1e-6} if narrow else {"atol": 1e-12, "rtol": 1e-10}
    torch.testing.assert_close(found.detach(), expected.to(found.dtype), **tolerance)
    if not found.is_floating_point():
        return
    for mine, theirs in zip(gradients(found, inputs, seed.to(found.dtype)), wanted, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            torch.testing.assert_close(mine, theirs, check_dtype=False, **tolerance)
