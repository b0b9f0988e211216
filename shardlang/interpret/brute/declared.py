"""A declared operator -> whether it is what its declaration says, by brute force: `shardc verify`.

Each call is computed whole and under every split that the declaration allows, forward and backward,
in float64. A dim that is declared `whole` is tried too, to say which could be free."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from shardlang.check.own import OwnDecl
from shardlang.extensions import loaded
from shardlang.interpret.brute.splits import Case, Local, Rank, check, evaluate, gradients, splits, text
from shardlang.interpret.brute.threads import Ranks
from shardlang.interpret.brute.trials import Trial, further, trials
from shardlang.ops.declared import REST, Declaration
from shardlang.ops.rule import Split


@dataclass(frozen=True)
class Verdict:
    """refused: what the operator (or optimizer) does that its declaration rules out; "" if it
    passed. help: what to change. at: the trial. tried: how many splits, in how many sets of sizes.
    free: dims that are `whole`, and need not be."""

    declaration: Declaration | OwnDecl
    refused: str = ""
    help: str = ""
    at: str = ""
    tried: int = 0
    sets: int = 0
    free: tuple[str, ...] = ()


class Refused(Exception):
    """The message, and what helps."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.help = help


def verify(declaration: Declaration, begun: Callable[[str], None] = lambda trial: None) -> Verdict:
    """The verdict on an operator. begun: is told each trial that is tried, and "" before the first,
    where the file is loaded. RunError SH619 where it cannot be."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loaded.module(Path(declaration.path), declaration.source)
    loaded.function(declaration.source, declaration.function)
    done: list[Trial] = []
    tried, at = 0, ""
    begun(at)
    try:
        for trial in trials(declaration):
            if isinstance(trial, Exception):
                raise Refused(f"the function fails on whole operands: {said(trial)}")
            at = str(trial)
            begun(at)
            _whole(trial)
            tried += _splits(trial)
            done.append(trial)
        for other in itertools.chain.from_iterable(map(further, done)):
            at = str(other)
            begun(at)
            _shape(other)
    except Refused as refused:
        return Verdict(declaration, str(refused), refused.help, at, tried, len(done))
    free = tuple(name for name in sorted(declaration.whole) if _could_be_free(name, done))
    return Verdict(declaration, "", "", "", tried, len(done), free)


# --- whole operands ----------------------------------------------------------


def _whole(trial: Trial) -> None:
    """Holds the function on whole operands to its declaration."""
    case = trial.case()
    inputs = [_leaf(x) for x in case.inputs]
    before = [x.detach().clone() for x in inputs]
    result = _called(case, inputs)
    _require_type(trial, case, result)
    names = [name for name, _ in trial.declaration.operands]
    changed = [n for n, x, y in zip(names, inputs, before, strict=True) if not torch.equal(x.detach(), y)]
    if changed:
        raise Refused(f"it changes its operand `{changed[0]}`", "make a new tensor: an operand has other readers")
    others = [_leaf(x) for x in case.inputs]
    if not torch.equal(result.detach(), _called(case, others).detach()):
        help = "random numbers are operands: `randn` and `dropout` draw the same on any number of ranks"
        raise Refused("two calls with equal operands give different results", help)
    single = trial.case("f32")
    _require_type(trial, single, _called(single, [_leaf(x) for x in single.inputs]))
    if result.is_floating_point() and any(x.requires_grad for x in inputs):
        _require_gradient(trial, case, result, inputs, others)


def _shape(trial: Trial) -> None:
    """Holds the shape of a result to the declaration, at sizes at which the function need not have
    one."""
    case = trial.case()
    try:
        with torch.no_grad():
            result = evaluate(text(case), [x.detach().clone() for x in case.inputs], case=case)
    except Exception:  # a window may need to be shorter than what it moves over
        return
    _require_type(trial, case, result)


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_(x.requires_grad)


def _called(case: Case, inputs: list[Tensor]) -> Tensor:
    try:
        result: Tensor = evaluate(text(case), inputs, case=case)
    except Exception as error:
        raise Refused(f"the function fails on whole operands: {said(error)}") from None
    return result


def _require_type(trial: Trial, case: Case, result: Tensor) -> None:
    (type,) = case.inference.results
    shape, dtype = tuple(result.shape), _SHORT.get(result.dtype, str(result.dtype))
    if shape != type.shape:
        raise Refused(f"its result has shape {list(shape)}, and {list(type.shape)} is declared")
    if dtype != type.dtype:
        given = "operands of the run's type" if not trial.declaration.result.dtype else "these operands"
        raise Refused(f"its result is {dtype} where {type.dtype} is declared, for {given}")


_SHORT = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.bool: "bool",
}  # fmt: skip


def _require_gradient(trial: Trial, case: Case, result: Tensor, inputs: list[Tensor], others: list[Tensor]) -> None:
    if not result.requires_grad:
        raise Refused("its result has no gradient", "compute it by functions of torch that are differentiable")
    seed = torch.ones_like(result)
    first, second = gradients(result, inputs, seed), gradients(_called(case, others), others, seed)
    if any(a is not None and b is not None and not torch.equal(a, b) for a, b in zip(first, second, strict=True)):
        raise Refused("two calls with equal operands give different gradients")
    wanted = [x for x in inputs if x.requires_grad]

    def function(*given: Tensor) -> Tensor:
        found = iter(given)
        return _called(case, [next(found) if x.requires_grad else x for x in inputs])

    try:
        torch.autograd.gradcheck(function, tuple(wanted), fast_mode=True)
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"its backward is not the derivative of its forward: {said(error)}") from None


# --- splits ------------------------------------------------------------------


def _splits(trial: Trial) -> int:
    """Holds each split of a trial to the whole; how many there are."""
    count = 0
    for case in splits(trial.case()):
        _one(trial, case)
        count += 1
    return count


def _one(trial: Trial, case: Case) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ranks = check(case)
    except Exception as error:
        raise Refused(f"with {', '.join(_shown(trial, case))} {_how(trial, error)}", _help(trial, case)) from None
    _require_sums(trial, case, ranks)


def _require_sums(trial: Trial, case: Case, ranks: Sequence[Rank]) -> None:
    """Holds the sums that ranks make over dims that are `inside` to their count in the
    declaration."""
    split = [f for f in case.axes if case.rule.factors[f].split is Split.INSIDE]
    if not split:
        return
    others = [f for dim in case.rule.operands[0] for f in dim if case.rule.factors[f].split is not Split.INSIDE]
    learns = any(x.requires_grad for x in case.inputs)
    for at, rank in zip(Ranks(case.sizes).coordinates, ranks, strict=True):
        local = Local(case, at)
        each = len(split) * math.prod(local.cut(f)[1] for f in others)
        declared = trial.declaration.reduces
        if rank.reduced != (declared[0] * each, declared[1] * each * learns):
            raise Refused(f"with {', '.join(_shown(trial, case))} {_counted(trial, rank, each)}", _sums(rank, each))


def _counted(trial: Trial, rank: Rank, each: int) -> str:
    forward, backward = trial.declaration.reduces
    first, dims = trial.declaration.operands[0][0], " and ".join(f"`{d}`" for d in sorted(trial.declaration.inside))
    return (
        f"a rank reduces {rank.reduced[0]} numbers forward and {rank.reduced[1]} backward: `reduces {forward}, "
        f"{backward}` says {forward} and {backward} times {each}, the size of `{first}` without {dims}"
    )


def _sums(rank: Rank, each: int) -> str:
    if each and not any(n % each for n in rank.reduced):
        return f"`reduces {rank.reduced[0] // each}, {rank.reduced[1] // each}`"
    return "let each sum have the shape of the first operand, with 1 for each dim that is `inside`"


def _named(case: Case) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The names whose factors are split, and over which axes."""
    for name, factors in case.inference.attrs["factors"]:
        for f in factors:
            if f in case.axes:
                yield ("a dim of `...`" if name.startswith(REST) else f"`{name}`"), case.axes[f]


def _shown(trial: Trial, case: Case) -> Iterator[str]:
    for name, axes in _named(case):
        yield f"{name} split over {' x '.join(str(case.sizes[axis]) for axis in axes)} ranks"
    for axis, operands in case.pending.items():
        names = " and ".join(f"`{trial.declaration.operands[at][0]}`" for at in operands)
        yield f"{names} pending over {case.sizes[axis]} ranks"


def _help(trial: Trial, case: Case) -> str:
    for operands in case.pending.values():
        names = [trial.declaration.operands[at][0] for at in operands]
        return f"leave `linear {names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'}` out"
    *_, (name, _) = _named(case)  # the others agree by themselves
    if not name.startswith("`"):
        return "name the dims that `...` stands for, and say of them `whole`"
    kept = any(f in case.axes for dim in case.result for f in dim)
    why = "" if kept else f": it is no sum over {name}"
    return f"`whole {name[1:-1]}`{why}"


def _how(trial: Trial, error: Exception) -> str:
    """In a few words, what went wrong with a split."""
    text = str(error)
    largest = re.search(r"Greatest absolute difference: (\S+) at index (\([^)]*\))", text)
    what = re.match(r"(results|gradients of operand (\d+)|the ranks that share a part) differ", text)
    if what is None:
        return f"the function fails on a part: {said(error)}"
    about = f"the gradients of `{trial.declaration.operands[int(what[2])][0]}`" if what[2] else what[1]
    about = "the results" if about == "results" else about
    return f"{about} differ" + (f" by {float(largest[1]):.3g} at {largest[2]}" if largest else "")


def said(error: BaseException) -> str:
    """The first line of an exception."""
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line}"[:200].removesuffix(": ")


def _could_be_free(name: str, done: list[Trial]) -> bool:
    """Whether every split of a dim that is declared `whole` gives the same, in all trials."""
    found = 0
    for trial in done:
        declaration = trial.declaration
        freed = replace(trial, declaration=replace(declaration, whole=declaration.whole - {name}))
        case = freed.case()
        mine = set(dict(case.inference.attrs["factors"]).get(name, ()))
        for split in splits(case):
            if not mine.intersection(split.axes):
                continue
            try:
                _one(freed, split)
            except Refused:
                return False
            found += 1
    return found > 0
