"""dropout draws the same under every split; batch_norm's running statistics move alike on all ranks; eval's tallies."""

from __future__ import annotations

from typing import Any

import torch

from shardlang import runtime as rt
from shardlang.interpret.trials.splits import Case, LocalCase, check, evaluate, sharded, splits, text, whole
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.rule import Split
from tests.ops.calls import call


def test_dropout_keeps_a_share_and_scales() -> None:
    x = torch.ones(200, 300, dtype=torch.float64)
    y = rt.dropout(x, 0.25, 7)
    assert abs((y == 0).double().mean().item() - 0.25) < 0.01
    assert set(y.unique().tolist()) == {0.0, 1 / 0.75}
    assert torch.equal(rt.dropout(x[50:100], 0.25, 7, whole=(200, 300), offsets=(50, 0)), y[50:100])
    assert not torch.equal(rt.dropout(x, 0.25, 8), y)


def test_dropout2d_drops_whole_channels() -> None:
    y = rt.dropout2d(torch.ones(20, 30, 3, 2), 0.5, 7)
    assert torch.equal(y, y[:, :, :1, :1].expand_as(y))
    assert 0.4 < (y == 0).float().mean() < 0.6
    part = rt.dropout2d(torch.ones(5, 30, 3, 2), 0.5, 7, whole=(20, 30, 3, 2), offsets=(10, 0, 0, 0))
    assert torch.equal(part, y[10:15])


def _batch_norm() -> Case:
    made = call("batch_norm", "b=8 c=6 s=2", "c", "c", "c", "c")
    shapes = [(8, 6, 2), (6,), (6,), (6,), (6,)]
    inputs = [torch.rand(s, dtype=torch.float64) + 0.1 for s in shapes]
    return Case(made, tuple(x.requires_grad_(i not in (1, 2)) for i, x in enumerate(inputs)))


def test_running_statistics_are_those_of_the_whole_batch() -> None:
    case = _batch_norm()
    x, mean, var = (t.detach() for t in case.inputs[:3])
    for split in splits(case):
        seed = torch.zeros(8, 6, 2, dtype=torch.float64)
        for rank, local in zip(sharded(split, seed), _locals(split), strict=True):
            wanted = 0.9 * mean + 0.1 * x.mean((0, 2)), 0.9 * var + 0.1 * x.var((0, 2))
            for i in (1, 2):
                part = local.part(wanted[i - 1], split.rule.operands[i])
                torch.testing.assert_close(rank.inputs[i], part)


def _locals(case: Case) -> list[LocalCase]:
    from shardlang.interpret.trials.fake_ranks import Ranks

    return [LocalCase(case, at) for at in Ranks(case.sizes).coordinates]


def test_eval_uses_the_running_statistics() -> None:
    case = _batch_norm()
    x, mean, var, weight, bias = (t.detach() for t in case.inputs)
    shaped = [t[:, None] for t in (mean, var, weight, bias)]
    result, _, _ = whole(case, training=False)
    torch.testing.assert_close(result, (x - shaped[0]) / (shaped[1] + 1e-5).sqrt() * shaped[2] + shaped[3])
    for split in splits(case):
        check(split, training=False)


ACCUMULATED: list[tuple[str, tuple[str, ...], dict[str, Any], Any]] = [
    ("mean", ("b=8 s=3",), {}, lambda x: x),
    ("sum", ("b=8 s=3",), {}, lambda x: x),
    ("mean", ("b=8*s=3",), {}, lambda x: x),
    ("mse_loss", ("b=8 s=3", "b s"), {}, lambda x, y: (x - y).square()),
    (
        "bce_with_logits",
        ("b=8 s=3", "b s"),
        {},
        lambda x, y: torch.nn.functional.binary_cross_entropy_with_logits(x, y, reduction="none"),
    ),
    ("cross_entropy", ("b=8 t=3 c=6", "i64 b t"), {"ignore_index": 0, "label_smoothing": 0.1}, None),
    ("cross_entropy", ("b=8 c=6", "i64 b"), {}, None),
    ("nll_loss", ("b=8 t=3 c=6", "i64 b t"), {"ignore_index": 0}, None),
]


def test_tallies_leave_out_padding_and_ignored_items() -> None:
    torch.manual_seed(3)
    for name, operands, static, items in ACCUMULATED:
        made = call(name, *operands, **static)
        assert made.inference is not None
        inputs = tuple(
            torch.randint(0, 6, t.shape) if t.dtype == "i64" else torch.randn(t.shape, dtype=torch.float64)
            for t in made.types
            if t is not None
        )
        batch = next(i for i, f in enumerate(made.inference.rule.factors) if f.name == "b")
        wanted = _expected(name, inputs, static, items, rows=5)
        base = Case(made, inputs, rows=5, batch=batch)
        for case in [base, *splits(base)]:
            if not case.pending:
                torch.testing.assert_close(_tally(case), wanted, msg=f"{name} {dict(case.axes)} {text(case)}")


def _expected(name: str, inputs: tuple, static: dict, items: object, rows: int) -> torch.Tensor:
    if items is not None:
        found = items(*inputs).reshape(8, -1)[:rows]  # type: ignore[operator]
        return torch.tensor([found.sum().item(), found.numel()], dtype=torch.float64)
    scores, label = inputs
    function = getattr(torch.nn.functional, name)
    scores = scores[:rows].movedim(-1, 1)
    total = function(scores, label[:rows], reduction="sum", **static)
    count = (label[:rows] != static.get("ignore_index", -1)).sum()
    return torch.tensor([total.item(), count.item()], dtype=torch.float64)


def _tally(case: Case) -> torch.Tensor:
    """The sum over the axes that split a free factor; over the other axes the tallies must agree."""
    from shardlang.interpret.trials.fake_ranks import MeshView, Ranks
    from shardlang.interpret.trials.splits import site

    ranks = Ranks(case.sizes)
    accumulate = REGISTRY[case.call.operator].accumulate
    assert accumulate is not None

    def work(rank: int) -> torch.Tensor:
        local = LocalCase(case, ranks.coordinates[rank])
        values = [local.part(x, dims) for x, dims in zip(case.inputs, case.rule.operands, strict=True)]
        return evaluate(accumulate(site(case, local, training=False)), values, MeshView(ranks, rank))

    inside = {a for f, axes in case.axes.items() if case.rule.factors[f].split is Split.INSIDE for a in axes}
    parts = ranks.run(work)
    return sum(p for p, at in zip(parts, ranks.coordinates, strict=True) if all(at[a] == 0 for a in inside))


def test_all_ignored_is_not_a_number() -> None:
    made = call("cross_entropy", "b=4 c=6", "i64 b", ignore_index=0)
    case = Case(made, (torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)))
    assert whole(case)[0].isnan()
