"""Every operator against numpy, in float64: its emitted text and the interpreter's, forward and backward.

Gradients are compared with differences of the oracle along random directions, so no derivative is trusted twice.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

import shardlang.ops.all_families  # noqa: F401
from shardlang import runtime as rt
from shardlang.interpret.meaning.call import computed
from shardlang.interpret.meaning.operators import OPERATORS
from shardlang.interpret.meaning.statistics import moved_statistics
from shardlang.interpret.trials.splits import Case, gradients, whole
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.declared import DECLARED
from tests.interpret.test_operators import call_of
from tests.ops.oracle import Oracle
from tests.ops.oracles import ORACLES
from tests.ops.test_factor_rules import case_of, check_type

STEP = 1e-6


def named(oracle: Oracle) -> str:
    return f"{oracle.operator}({', '.join(str(o) for o in oracle.operands)} {oracle.static or ''})"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)
    rt.random.start(0)


def meant(oracle: Oracle, inputs: list[torch.Tensor]) -> np.ndarray:
    return np.asarray(oracle.meaning(*(x.detach().numpy() for x in inputs)))


def slope(oracle: Oracle, inputs: list[torch.Tensor], at: int, direction: np.ndarray, seed: np.ndarray) -> float:
    """The derivative of sum(seed * result) as operand `at` moves in a direction."""
    function = oracle.smooth or oracle.meaning
    ends = []
    for sign in (1.0, -1.0):
        moved = [x.detach().numpy() for x in inputs]
        moved[at] = moved[at] + sign * STEP * direction
        ends.append(float((seed * np.asarray(function(*moved))).sum()))
    return (ends[0] - ends[1]) / (2.0 * STEP)


def compare(oracle: Oracle, case: Case, result: torch.Tensor, found: list[torch.Tensor | None], seed: torch.Tensor,
            what: str) -> None:  # fmt: skip
    inputs = [x.detach() for x in case.inputs]
    wanted = meant(oracle, inputs)
    assert result.shape == wanted.shape, what
    single = torch.float32 in (result.dtype, torch.from_numpy(wanted).dtype)
    narrow = {"rtol": 1e-6} if single else {"rtol": 1e-10, "atol": 1e-11}
    np.testing.assert_allclose(result.detach().numpy(), wanted, err_msg=what, **narrow)
    rng = np.random.default_rng(5)
    for at, gradient in enumerate(found):
        if not case.inputs[at].requires_grad or not REGISTRY[oracle.operator].differentiable:
            assert gradient is None, f"{what}: operand {at} has a gradient"
            continue
        if not result.is_floating_point():
            continue
        assert gradient is not None, f"{what}: operand {at} has no gradient"
        for _ in range(4):
            direction = rng.standard_normal(inputs[at].shape)
            mine = float((gradient.detach().numpy() * direction).sum())
            theirs = slope(oracle, inputs, at, direction, seed.numpy().astype(float))
            assert mine == pytest.approx(theirs, rel=2e-7, abs=2e-7), f"{what}: gradient of operand {at}"


@pytest.mark.parametrize("oracle", ORACLES, ids=named)
def test_operator_is_what_it_means(oracle: Oracle) -> None:
    case = case_of(oracle.example)
    result, found, seed = whole(case)
    if oracle.operator != "auc":  # which is computed in f64 on the host
        check_type(case, result)
    compare(oracle, case, result, found, seed, "emitted")
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in case.inputs]
    mine = computed(OPERATORS, call_of(case), tuple(inputs))
    slopes = gradients(mine, inputs, seed.to(mine.dtype)) if mine.is_floating_point() else [None] * len(inputs)
    compare(oracle, case, mine, slopes, seed, "interpreted")


def test_every_operator_has_an_oracle_of_several_shapes() -> None:
    shapes = {(o.operator, o.operands, str(o.static)) for o in ORACLES}
    counted = Counter(name for name, _, _ in shapes)
    # Those of users have no formula here: tests/extensions/.
    assert {name: counted[name] for name in REGISTRY if counted[name] < 3 and name != DECLARED} == {}
    assert set(counted) <= set(REGISTRY)


@pytest.mark.parametrize("momentum", [0.1, 0.75])
def test_running_statistics_move_towards_the_batchs(momentum: float) -> None:
    from tests.ops.calls import call

    made = call("batch_norm", "b=8 c=6 s=2", "c", "c", momentum=momentum)
    case = Case(made, tuple(torch.rand(s, dtype=torch.float64) + 0.1 for s in ((8, 6, 2), (6,), (6,))))
    x, mean, variance = (t.numpy().copy() for t in case.inputs)
    batch = x.transpose(1, 0, 2).reshape(6, 16)
    unbiased = ((batch - batch.mean(1, keepdims=True)) ** 2).sum(1) / 15
    wanted = (1 - momentum) * mean + momentum * batch.mean(1), (1 - momentum) * variance + momentum * unbiased
    for mine, theirs in zip(moved_statistics(call_of(case), *case.inputs), wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-12)
    from shardlang.interpret.trials.splits import evaluate, text

    values = [t.clone() for t in case.inputs]
    evaluate(text(case), values)
    for mine, theirs in zip(values[1:], wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, rtol=1e-12)
