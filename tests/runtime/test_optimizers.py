"""Optimizers: torch's results, the same bits however a tensor is sharded; clipping and schedules."""

from __future__ import annotations

import pytest
import torch

from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.interpret.meaning.optimizers import rate
from shardlang.runtime.state.optimizers import clip, optimizer, squares
from shardlang.runtime.step.learning_rate import scheduled

SETTINGS = [
    ("sgd", {"lr": 0.1}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("sgd", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ("adam", {"lr": 1e-3}),
    ("adam", {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    ("adamw", {"lr": 1e-3}),
    ("adamw", {"lr": 0.01, "weight_decay": 0.3}),
]
TORCH = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def _gradient(step: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(step), dtype=torch.float64)


def _trained(kind: str, settings: dict, sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    size = sum(sizes)
    parts = [part.clone() for part in _gradient(99, size).to(dtype).split(sizes)]
    made = optimizer(kind, parts, settings)
    for step in range(10):
        for part, gradient in zip(parts, _gradient(step, size).to(dtype).split(sizes), strict=True):
            part.grad = gradient.clone()
        made.step(made.lr)
    return torch.cat(parts)


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
def test_torch_agrees(kind: str, settings: dict) -> None:
    leaf = torch.nn.Parameter(_gradient(99, 33))
    theirs = TORCH[kind]([leaf], **settings)
    for step in range(10):
        leaf.grad = _gradient(step, 33)
        theirs.step()
    torch.testing.assert_close(_trained(kind, settings, [33], torch.float64), leaf.detach(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
@pytest.mark.parametrize("sizes", [[11, 11, 11], [5, 0, 28], [16, 17]])
def test_sharding_does_not_change_a_bit(kind: str, settings: dict, sizes: list[int]) -> None:
    assert torch.equal(_trained(kind, settings, sizes, torch.float32), _trained(kind, settings, [33], torch.float32))


@pytest.mark.parametrize(("kind", "kernel"), [("sgd", "_fused_sgd_"), ("adamw", "_fused_adamw_")])
def test_the_kernel_has_the_parameter_itself_and_a_copy_of_its_end(
    kind: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table in files may be larger than the memory, and a step of a small net is short."""
    sizes, found = [(33, 3), (4, 4), (3, 1)], list[list[torch.Tensor]]()
    tensors = [torch.zeros(size) for size in sizes]
    made = optimizer(kind, tensors, {"lr": 0.1})
    monkeypatch.setattr(torch, kernel, lambda *lists, **_: found.extend(lists[:2]))
    monkeypatch.setattr(type(made), "kernel", staticmethod(getattr(torch, kernel)), raising=False)
    for tensor in tensors:
        tensor.grad = torch.ones_like(tensor)
    made.step(0.1)
    for parts, given in zip(found, (tensors, [tensor.grad for tensor in tensors]), strict=True):
        assert [part.numel() for part in parts] == [96, 16, 16, 16]
        assert [parts[0].data_ptr(), parts[2].data_ptr()] == [t.data_ptr() for t in given[:2] if t is not None]
    assert [int(part.sum()) for part in found[1]] == [96, 3, 16, 3]


@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_nor_does_the_work_of_several_threads(kind: str) -> None:
    settings = {"lr": 0.1, "weight_decay": 0.1}
    whole = _trained(kind, settings, [200_003], torch.float32)
    assert torch.equal(_trained(kind, settings, [100_001, 3, 99_999], torch.float32), whole)


@pytest.mark.parametrize(("kind", "settings"), [SETTINGS[3], SETTINGS[5]])
def test_what_is_kept_is_enough_to_go_on(kind: str, settings: dict) -> None:
    steps = [_gradient(step, 21) for step in range(4)]
    one = torch.zeros(3, 7, dtype=torch.float64)
    first = optimizer(kind, [one], settings)
    for gradient in steps[:2]:
        one.grad = gradient.view(3, 7)
        first.step(first.lr)
    other = one.clone()
    second = optimizer(kind, [other], settings)
    for name, (there,) in first.kept().items():
        assert there.shape == (3, 7)
        second.kept()[name][0].copy_(there)
    second.resumed(2)
    for gradient in steps[2:]:
        for tensor, made in ((one, first), (other, second)):
            tensor.grad = gradient.view(3, 7)
            made.step(made.lr)
    assert torch.equal(one, other)


@pytest.mark.parametrize(("kind", "settings"), SETTINGS)
@pytest.mark.parametrize("size", [33, 48])
def test_one_that_goes_on_makes_the_steps_it_would_have_made(kind: str, settings: dict, size: int) -> None:
    """What it keeps is handed to a new one, as a checkpoint does it."""

    def steps(made, tensor: torch.Tensor, numbers: range) -> None:
        for step in numbers:
            tensor.grad = _gradient(step, size).float()
            made.step(made.lr)

    whole = _gradient(99, size).float()
    once = optimizer(kind, [whole], settings)
    steps(once, whole, range(10))
    first = _gradient(99, size).float()
    begun = optimizer(kind, [first], settings)
    steps(begun, first, range(5))
    second = first.clone()
    other = optimizer(kind, [second], settings)
    for name, tensors in begun.kept().items():
        for mine, theirs in zip(other.kept()[name], tensors, strict=True):
            mine.copy_(theirs)
    other.resumed(5)
    steps(other, second, range(5, 10))
    assert torch.equal(second, whole)


def test_an_unknown_optimizer_is_named() -> None:
    with pytest.raises(RunError, match="optimizer `lamb` is not there yet"):
        optimizer("lamb", [], {})


def clipped(parts: list[torch.Tensor], limit: float) -> torch.Tensor:
    """Clips the gradients of a whole model; their norm before."""
    norm = squares(parts).wait().sqrt()
    clip(parts, limit, norm)
    return norm


def test_clip_scales_by_the_norm_of_all() -> None:
    parts = [torch.zeros(3), torch.zeros(2), torch.zeros(1)]
    parts[0].grad, parts[1].grad = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 4.0])
    assert clipped(parts, 1.0).item() == pytest.approx(5.0)
    assert parts[0].grad[0].item() == pytest.approx(0.6, rel=1e-5)
    assert clipped(parts, 10.0).item() == pytest.approx(1.0, rel=1e-5)
    assert parts[1].grad[1].item() == pytest.approx(0.8, rel=1e-5)


@pytest.mark.parametrize("norm", [1e-6, 1e-5, 0.5, 1.0, 1.5, 300.0])
def test_clip_is_torchs(norm: float) -> None:
    """Also where the norm is so small that the 1e-6 beside it counts."""
    gradients = [_gradient(1, 7), _gradient(2, 5)]
    whole = torch.cat(gradients).norm()
    mine, theirs = [], []
    for kept in (mine, theirs):
        kept += [torch.zeros_like(g, requires_grad=True) for g in gradients]
        for leaf, gradient in zip(kept, gradients, strict=True):
            leaf.grad = gradient * (norm / whole)
    limit = min(1.0, norm)
    torch.testing.assert_close(
        clipped(mine, limit), torch.nn.utils.clip_grad_norm_(theirs, limit),
        rtol=1e-12, atol=0.0,
    )  # fmt: skip
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-12, atol=0.0)


def _torchs_rates(kind: str, warmup: int, least: float, total: int) -> list[float]:
    """The rates of steps 1 to `total` by torch's own schedulers: LinearLR up, then LinearLR or CosineAnnealingLR."""
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    peak = max(1, warmup)
    schedule = torch.optim.lr_scheduler
    up = schedule.LinearLR(sgd, start_factor=1 / peak, total_iters=peak - 1) if peak > 1 else None
    falling = max(1, total - peak)
    down = (
        schedule.CosineAnnealingLR(sgd, T_max=falling, eta_min=least)
        if kind == "warmup_cosine"
        else schedule.LinearLR(sgd, start_factor=1.0, end_factor=least / 0.1, total_iters=falling)
    )
    both = down if up is None else schedule.SequentialLR(sgd, [up, down], milestones=[peak - 1])
    found = []
    for _ in range(total):
        found.append(sgd.param_groups[0]["lr"])
        sgd.step()
        both.step()
    return found


@pytest.mark.parametrize("kind", ["warmup_cosine", "linear"])
@pytest.mark.parametrize(("warmup", "least", "total"), [
    (0, 0.0, 10), (1, 0.01, 10), (3, 0.01, 10), (9, 0.0, 10), (10, 0.0, 10), (4, 0.0, 3), (0, 0.02, 1), (0, 0.02, 2),
])  # fmt: skip
def test_schedules(kind: str, warmup: int, least: float, total: int) -> None:
    """torch's schedulers agree, and so does the interpreter: one step has the peak, the last has `min`."""
    arguments = {"warmup": warmup, "min": least}
    schedule = {"warmup_cosine": rt.WarmupCosine, "linear": rt.Linear}[kind](**arguments)
    found = [scheduled(0.1, schedule, step, total) for step in range(1, total + 1)]
    assert found == pytest.approx(_torchs_rates(kind, warmup, least, total), rel=1e-12, abs=1e-15)
    assert found == pytest.approx([rate(0.1, kind, arguments, step, total) for step in range(1, total + 1)], abs=1e-15)
    peak = max(1, warmup)
    assert [step for step, lr in enumerate(found, 1) if lr == 0.1] == ([peak] if peak <= total else [])
    if total > peak:
        assert found[-1] == pytest.approx(least, abs=1e-17)


def test_no_schedule_is_constant() -> None:
    assert scheduled(0.1, None, 7, 10) == 0.1


def test_a_rank_without_parameters_clips_nothing() -> None:
    """A pipeline stage may have none; its part of the norm is 0."""
    assert clipped([], 0.5).item() == 0.0
