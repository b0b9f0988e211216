"""A call of a declared operator on whole operands -> whether the function does what its declaration
says, before any split.

That is the type and the shape of its result, its gradients, and that it is the same each time, in
f32 as in f64, and in evaluation as in training."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from shardlang.interpret.meaning.call import ELEMENTS
from shardlang.interpret.trials.cases import Trial
from shardlang.interpret.trials.splits import TOLERANCE, Case, evaluate, gradients, leaf, text

# How far results in f32 may be from those in f64, of the largest number: half of the digits of f32.
_ROUNDED = 1e-3


# What launchers tell a rank of itself.
_RANK = {"RANK": "5", "LOCAL_RANK": "3", "WORLD_SIZE": "7"}


class Breach(Exception):
    """The message, and what helps."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.help = help


def held(trial: Trial) -> Tensor:
    """The result of the function on whole operands, which is held to its declaration. Refused where
    it is something else."""
    case = trial.case()
    inputs = [leaf(x) for x in case.inputs]
    before, modes = [x.detach().clone() for x in inputs], _modes()
    result = _called(case, inputs)
    _require_type(trial, case, result)
    changed = [n for n, x, y in zip(_names(trial), inputs, before, strict=True) if not torch.equal(x.detach(), y)]
    if changed:
        raise Breach(f"it changes its operand `{changed[0]}`", "make a new tensor: an operand has other readers")
    others = [leaf(x) for x in case.inputs]
    if not torch.equal(result.detach(), _called(case, others).detach()):
        help = "random numbers are operands: `randn` and `dropout` draw the same on any number of ranks"
        raise Breach("two calls with equal operands give different results", help)
    _require_modes(modes)
    if result.is_floating_point() and any(x.requires_grad for x in inputs):
        _require_gradient(trial, case, result, inputs, others)
    with torch.no_grad():
        _require_close(
            _called(case, [x.detach().clone() for x in inputs]), result.detach(), TOLERANCE,
            "without a gradient, as in evaluation, its results", "compute the same where torch records no gradient",
        )  # fmt: skip
    return result.detach()


def single(trial: Trial) -> None:
    """Holds results and gradients in f32, in which a run computes, to those in f64."""
    narrow, case = trial.case("f32"), trial.case()
    inputs = [leaf(x) for x in narrow.inputs]
    result = _called(narrow, inputs)
    _require_type(trial, narrow, result)
    same = [leaf(x.to(y.dtype)) for x, y in zip(inputs, case.inputs, strict=True)]
    wanted = _called(replace(case, inputs=tuple(same)), same)
    _require_close(result.detach(), wanted.detach(), _ROUNDED, "in f32 its results")
    if not result.is_floating_point():
        return
    found = gradients(result, inputs, torch.ones_like(result))
    for name, x, y in zip(_names(trial), found, gradients(wanted, same, torch.ones_like(wanted)), strict=True):
        if (x is None) != (y is None):
            raise Breach(f"`{name}` has a gradient in one of f32 and f64 alone")
        if x is not None and y is not None:
            _require_close(x, y, _ROUNDED, f"in f32 the gradients of `{name}`")


def again(trial: Trial, result: Tensor) -> None:
    """Holds one more call to the first result of a trial: all other calls were made in between. It
    is made as on another rank, by what launchers tell of it."""
    case = trial.case()
    inputs = [leaf(x) for x in case.inputs]
    with _elsewhere():
        found = _called(case, inputs).detach()
    _require_new(trial, inputs, found)
    if not torch.equal(found, result) and torch.equal(_called(case, [leaf(x) for x in case.inputs]).detach(), result):
        help = "a strategy decides which part a rank has: let `group`, or the shapes of operands, tell of it"
        raise Breach(f"it gives other results where {' and '.join(_RANK)} in the environment are others", help)
    if not torch.equal(_called(case, [leaf(x) for x in case.inputs]).detach(), result):
        help = "let the result depend on operands and settings alone"
        raise Breach("a call gives other results after calls with other operands", help)


@contextmanager
def _elsewhere() -> Iterator[None]:
    """The environment of another rank than this process is."""
    before = {name: os.environ.get(name) for name in _RANK}
    os.environ.update(_RANK)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ |= {name: value} if value is not None else {}


def _names(trial: Trial) -> list[str]:
    return [name for name, _ in trial.declaration.operands]


def shaped(trial: Trial) -> None:
    """Holds the shape of a result to the declaration, at sizes at which the function need not have
    one."""
    case = trial.case()
    try:
        with torch.no_grad():
            result = evaluate(text(case), [x.detach().clone() for x in case.inputs], case=case)
    except Exception:  # a window may need to be shorter than what it moves over
        return
    _require_type(trial, case, result)


def _called(case: Case, inputs: list[Tensor]) -> Tensor:
    try:
        result: Tensor = evaluate(text(case), inputs, case=case)
    except Exception as error:
        raise Breach(f"the function fails on whole operands: {said(error)}") from None
    return result


def _require_type(trial: Trial, case: Case, result: Tensor) -> None:
    (type,) = case.inference.results
    shape, dtype = tuple(result.shape), _SHORT.get(result.dtype, str(result.dtype))
    if shape != type.shape:
        raise Breach(f"its result has shape {list(shape)}, and {list(type.shape)} is declared")
    if dtype != type.dtype:
        given = "operands of the run's type" if not trial.declaration.result.dtype else "these operands"
        raise Breach(f"its result is {dtype} where {type.dtype} is declared, for {given}")


def _require_new(trial: Trial, inputs: Sequence[Tensor], result: Tensor) -> None:
    """Refused where the result is a view of an operand: both would be one memory, which the plan
    counts twice, and a change to one would change the other."""
    for name, x in zip(_names(trial), inputs, strict=True):
        if x.numel() and x.untyped_storage().data_ptr() == result.untyped_storage().data_ptr():
            raise Breach(f"its result is no new tensor: it shares the memory of its operand `{name}`", "`.clone()` it")


_SHORT = {dtype: name for name, dtype in ELEMENTS.items()}


def _require_gradient(trial: Trial, case: Case, result: Tensor, inputs: list[Tensor], others: list[Tensor]) -> None:
    if not result.requires_grad:
        raise Breach("its result has no gradient", "compute it by functions of torch that are differentiable")
    seed = torch.ones_like(result)
    first, second = gradients(result, inputs, seed), gradients(_called(case, others), others, seed)
    if any(a is not None and b is not None and not torch.equal(a, b) for a, b in zip(first, second, strict=True)):
        raise Breach("two calls with equal operands give different gradients")
    _require_each(trial, case, first)
    wanted = [x for x in inputs if x.requires_grad]

    def function(*given: Tensor) -> Tensor:
        found = iter(given)
        return _called(case, [next(found) if x.requires_grad else x for x in inputs])

    try:
        torch.autograd.gradcheck(function, tuple(wanted), fast_mode=True)
    except Breach:
        raise
    except Exception as error:
        raise Breach(f"its backward is not the derivative of its forward: {said(error)}") from None


def _require_each(trial: Trial, case: Case, wanted: Sequence[Tensor | None]) -> None:
    """Holds the gradient of each operand to the same where the others have none, as beside frozen
    parameters and data."""
    for at, (name, gradient) in enumerate(zip(_names(trial), wanted, strict=True)):
        if gradient is None or sum(x is not None for x in wanted) == 1:
            continue
        inputs = [leaf(x).requires_grad_(i == at) for i, x in enumerate(case.inputs)]
        result = _called(case, inputs)
        (found, *_) = [x for x in gradients(result, inputs, torch.ones_like(result)) if x is not None] or [None]
        if found is None:
            raise Breach(f"`{name}` has no gradient where the other operands need none")
        _require_close(found, gradient, TOLERANCE, f"where only `{name}` needs a gradient, its gradients")


def _require_close(found: Tensor, wanted: Tensor, tolerance: float, what: str, help: str = "") -> None:
    """Refused where the numbers differ by more than `tolerance` of the largest, or of 1."""
    x, y = found.to(torch.float64), wanted.to(torch.float64)
    finite = y[torch.isfinite(y)].abs()
    least = tolerance * max(1.0, float(finite.max()) if finite.numel() else 1.0) if wanted.is_floating_point() else 0.0
    if not torch.allclose(x, y, rtol=0.0, atol=least, equal_nan=True):
        far = float((x - y).abs().nan_to_num(torch.inf).max())
        raise Breach(f"{what} differ by {far:.3g}", help)


def _modes() -> dict[str, object]:
    """The settings of torch that a function could change for all others."""
    return {
        "the default element type": torch.get_default_dtype(),
        "whether gradients are recorded": torch.is_grad_enabled(),
        "the number of threads": torch.get_num_threads(),
        "whether algorithms are deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def _require_modes(before: dict[str, object]) -> None:
    changed = [name for name, mode in _modes().items() if mode != before[name]]
    if changed:
        raise Breach(f"it changes {changed[0]} of torch, for all that comes after it", "set it back, or leave it")


def said(error: BaseException) -> str:
    """The first line of an exception."""
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line}"[:200].removesuffix(": ")
