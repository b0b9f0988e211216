"""Each operator on parts, for each legal split and pending input, against the whole: result and every gradient."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from shardlang.interpret.meaning.call import computed
from shardlang.interpret.meaning.operators import OPERATORS
from shardlang.interpret.ranks.split_operators import SplitOperator, on_ranks
from shardlang.interpret.trials.fake_ranks import Ranks
from shardlang.interpret.trials.splits import Case, LocalCase, _pending_parts, joined, labelled, splits
from shardlang.ops.rule import Split as Mark
from shardlang.types.mesh import Axis, Mesh
from tests.interpret.test_operators import call_of
from tests.ops.test_factor_rules import EXAMPLES, Example, case_of, named


def gradients(results: list[Tensor], inputs: list[Tensor], seeds: list[Tensor]) -> list[Tensor | None]:
    wanted = [x for x in inputs if x.requires_grad]
    if not wanted or not results[0].requires_grad:
        return [None] * len(inputs)
    found = iter(torch.autograd.grad(results, wanted, seeds, allow_unused=True, materialize_grads=True))
    return [next(found) if x.requires_grad else None for x in inputs]


def leaf(x: Tensor, case: Case, at: int) -> Tensor:
    return x.detach().clone().requires_grad_(case.inputs[at].requires_grad)


def compare(case: Case, result: Tensor, wanted: list[Tensor | None], seed: Tensor) -> None:
    ranks, rule = Ranks(case.sizes), case.rule
    places = [LocalCase(case, at) for at in ranks.coordinates]
    pieces = _pending_parts(case, ranks)
    inputs = [
        [leaf(local.part(piece[i], dims), case, i) for local, piece in zip(places, pieces, strict=True)]
        for i, dims in enumerate(rule.operands)
    ]
    mesh = Mesh(tuple(Axis(name, size) for name, size in case.sizes.items()))
    axes = tuple(case.axes.get(f, ()) for f in range(len(rule.factors)))
    made = on_ranks(SplitOperator(call_of(case), axes, mesh), inputs)
    found = gradients(made, [x for xs in inputs for x in xs], [local.part(seed, rule.results[0]) for local in places])
    narrow = any(x.dtype == torch.float32 for x in case.inputs)
    close = {"atol": 1e-6, "rtol": 1e-6} if narrow else {"atol": 1e-12, "rtol": 1e-9}
    pending = [
        a
        for f, cut in case.axes.items()
        if rule.factors[f].split is Mark.FREE and not any(f in t for t in rule.results[0])
        for a in cut
    ] + list(case.pending)
    whole = joined(case, rule.results[0], [x.detach() for x in made], pending)
    torch.testing.assert_close(whole, result, **close)
    for i, dims in enumerate(rule.operands):
        mine = found[i * len(places) : (i + 1) * len(places)]
        summed = [a for f, cut in case.axes.items() if not any(f in t for t in dims) for a in cut]
        summed += [a for a, operands in case.pending.items() if i not in operands]
        if wanted[i] is not None:
            torch.testing.assert_close(joined(case, dims, mine, summed), wanted[i], **close)


@pytest.mark.parametrize("example", EXAMPLES, ids=named)
def test_every_split_equals_the_whole(example: Example) -> None:
    torch.manual_seed(4)
    case = case_of(example)
    inputs = [leaf(x, case, i) for i, x in enumerate(case.inputs)]
    result = computed(OPERATORS, call_of(case), tuple(inputs))
    seed = torch.randn(result.shape, dtype=torch.float64)
    wanted = gradients([result], inputs, [seed])
    for split in splits(case):
        with labelled(split):
            compare(split, result.detach(), wanted, seed)
