"""A loss in chunks of rows: the numbers of the whole and its gradients, and no more memory than a chunk's scores."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from shardlang import runtime as rt
from shardlang.runtime.comm.mesh import Group
from tests.runtime.forked import on_ranks
from tests.runtime.largest import Largest

ROWS, WIDTH, CLASSES = (3, 5), 4, 7


def given(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden, weight, bias = (
        torch.randn(*size, dtype=dtype, requires_grad=True) for size in ((*ROWS, WIDTH), (CLASSES, WIDTH), (CLASSES,))
    )
    return hidden, weight, bias, torch.randint(0, CLASSES, ROWS)


def whole(hidden: Tensor, weight: Tensor, bias: Tensor | None, label: Tensor, **options: float) -> Tensor:
    """By torch, from all scores at once."""
    scores = F.linear(hidden, weight, bias).flatten(0, -2).to(torch.promote_types(hidden.dtype, torch.float32))
    return F.cross_entropy(scores, label.flatten(), reduction="sum", **options)


def same(ours: Tensor, theirs: Tensor, leaves: list[Tensor], limit: float) -> None:
    torch.testing.assert_close(ours, theirs, rtol=limit, atol=limit)
    for one, other in zip(*(torch.autograd.grad(3 * y, leaves) for y in (ours, theirs)), strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=limit, atol=limit)


@pytest.mark.parametrize("chunks", [1, 2, 4, 15, 100])
def test_the_numbers_are_the_wholes(chunks: int) -> None:
    hidden, weight, bias, label = given()
    for some, ignore, smoothing in itertools.product((None, bias), (None, 2), (0.0, 0.1)):
        ours = rt.chunked_cross_entropy(
            hidden, weight, label, chunks, bias=some, classes=CLASSES, ignore_index=ignore, label_smoothing=smoothing
        )
        options = {"label_smoothing": smoothing} | ({} if ignore is None else {"ignore_index": ignore})
        leaves = [hidden, weight, *([] if some is None else [bias])]
        same(ours, whole(hidden, weight, some, label, **options), leaves, 1e-12)


def test_what_is_frozen_has_no_gradient_and_nothing_of_it_is_made() -> None:
    hidden, weight, bias, label = given()
    rt.chunked_cross_entropy(hidden.detach(), weight, label, 2, bias=bias.detach()).backward()
    assert hidden.grad is None and bias.grad is None
    (theirs,) = torch.autograd.grad(whole(hidden, weight, bias, label), [weight])
    torch.testing.assert_close(weight.grad, theirs, rtol=1e-12, atol=1e-12)


def test_in_bf16_a_weights_gradient_is_added_up_in_f32() -> None:
    """256 chunks round it once: two roundings, of what a chunk gives and of the sum, are all there are."""
    torch.manual_seed(0)
    hidden, weight = (torch.randn(*s).bfloat16().requires_grad_() for s in ((4096, 8), (16, 8)))
    label = torch.randint(0, 16, (4096,))
    (ours,) = torch.autograd.grad(rt.chunked_cross_entropy(hidden, weight, label, 256), [weight])
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    (theirs,) = torch.autograd.grad(whole(*exact, None, label), exact[1:])
    unit = 2.0**-8
    # Scores are rounded to bf16, which moves a share by as much as a unit of the score, and gradients of scores again.
    scores = (exact[0] @ exact[1].T).abs().max()
    slopes = torch.softmax(exact[0] @ exact[1].T, -1) - F.one_hot(label, 16)
    room = unit * (1 + scores) * (slopes.abs().T @ exact[0].abs()) + unit * theirs.abs()
    assert bool(((ours.double() - theirs).abs() <= room.detach()).all())
    # Rows are drawn alike, so that what is rounded of them goes both ways: far less than all of it is left.
    assert float((ours.double() - theirs).abs().max()) <= float(unit * theirs.abs().max())


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_all_scores_are_never_there(reduction: str) -> None:
    hidden, weight = torch.randn(64, 4, requires_grad=True), torch.randn(32, 4, requires_grad=True)
    label = torch.randint(0, 32, (64,))
    with Largest() as largest, torch.set_grad_enabled(reduction == "sum"):
        loss = rt.chunked_cross_entropy(hidden, weight, label, 8, reduction=reduction)
        if reduction == "sum":
            loss.backward()
    assert largest.found == 64 * 32 // 8 == 64 * 4


def over_two() -> None:
    """Classes split in parts of 4 and 3, rows whole: the loss on both ranks, gradients of hidden to be summed."""
    mesh = rt.Mesh(tp=2)
    group: Group = mesh.tp
    hidden, weight, bias, label = given()
    cut = slice(0, 4) if group.index == 0 else slice(4, 7)
    for ignore, smoothing, chunks in ((None, 0.0, 4), (2, 0.1, 17)):
        leaves = [x.detach().requires_grad_() for x in (hidden, weight[cut], bias[cut])]
        ours = rt.chunked_cross_entropy(
            leaves[0], leaves[1], label, chunks, bias=leaves[2], group=group, start=cut.start, classes=CLASSES,
            ignore_index=ignore, label_smoothing=smoothing,
        )  # fmt: skip
        options = {"label_smoothing": smoothing} | ({} if ignore is None else {"ignore_index": ignore})
        theirs = whole(hidden, weight, bias, label, **options)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        mine = list(torch.autograd.grad(ours, leaves))
        mine[0] = rt.all_reduce(mine[0], group)
        wanted = torch.autograd.grad(theirs, [hidden, weight, bias])
        for one, other in zip(mine, (wanted[0], wanted[1][cut], wanted[2][cut]), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_over_ranks() -> None:
    on_ranks(__file__, over_two.__name__, 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_scores_in_bf16_are_computed_with_in_f32(smoothing: float) -> None:
    """With their classes on one rank, or split: the loss is that of torch, the gradient that in f32, rounded."""
    torch.manual_seed(0)
    scores, label = (3 * torch.randn(32, 50)).bfloat16().requires_grad_(), torch.randint(0, 50, (32,))
    exact = scores.detach().float().requires_grad_()
    expected = F.cross_entropy(exact, label, label_smoothing=smoothing)
    expected.backward()
    options = {"classes": 50, "label_smoothing": smoothing}
    for loss in (
        rt.cross_entropy_in_f32(scores, label, label_smoothing=smoothing),
        rt.cross_entropy(scores, label, 1, rt.Mesh(tp=1).tp, start=0, **options) / 32,
    ):
        (gradient,) = torch.autograd.grad(loss, [scores])
        assert loss.dtype == torch.float32 and loss.item() == pytest.approx(expected.item(), rel=1e-6)
        assert gradient.dtype == torch.bfloat16
        torch.testing.assert_close(gradient.float(), exact.grad, rtol=2**-8, atol=1e-8)
