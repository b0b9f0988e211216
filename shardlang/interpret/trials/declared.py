"""A declared operator -> whether it is what its declaration says, by brute force: `shardc verify`.

Each call is computed whole and under every split that the declaration allows, forward and backward,
in float64. A dim that is declared `whole` is tried too, to say which could be free."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from shardlang.check.own import OwnDecl
from shardlang.extensions import loaded
from shardlang.interpret.trials.cases import Trial, further, large, trials
from shardlang.interpret.trials.fake_ranks import Ranks
from shardlang.interpret.trials.saved_tensors import require_keeps
from shardlang.interpret.trials.splits import Case, LocalCase, Rank, check, splits
from shardlang.interpret.trials.whole_operator import Breach, again, held, said, shaped, single
from shardlang.ops.declared import REST, Declaration
from shardlang.ops.rule import Split


@dataclass(frozen=True)
class TrialVerdict:
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


def verify(declaration: Declaration, begun: Callable[[str], None] = lambda trial: None) -> TrialVerdict:
    """The verdict on an operator. begun: is told each trial under a split before it is tried, and
    "" before the first, once the file is loaded. RunError SH619 where it cannot be."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loaded.module(Path(declaration.path), declaration.source)
    loaded.function(declaration.source, declaration.function)
    done: list[Trial] = []
    results: list[Tensor] = []
    tried, at = 0, ""
    begun(at)
    try:
        for trial in trials(declaration, begun):
            if isinstance(trial, Exception):
                raise Breach(f"the function fails on whole operands: {said(trial)}")
            at = str(trial)
            begun(at)
            results.append(held(trial))
            tried += _splits(trial, splits(trial.case()), begun)
            single(trial)
            done.append(trial)
        for name, trial in large(done[0], begun):
            at = str(trial)
            begun(at)
            tried += _splits(trial, _of_one(trial, name), begun)
        for other in itertools.chain.from_iterable(map(further, done)):
            at = str(other)
            begun(at)
            shaped(other)
        at = str(done[0])
        require_keeps(done)
        for trial, result in zip(done, results, strict=True):
            at = str(trial)
            begun(at)
            again(trial, result)
    except Breach as refused:
        return TrialVerdict(declaration, str(refused), refused.help, at, tried, len(done))
    free = tuple(name for name in sorted(declaration.whole) if _could_be_free(name, done, begun))
    return TrialVerdict(declaration, "", "", "", tried, len(done), free)


# --- splits ------------------------------------------------------------------


def _splits(trial: Trial, cases: Iterable[Case], begun: Callable[[str], None]) -> int:
    """Holds each split of a trial to the whole; how many there are."""
    count = 0
    for case in cases:
        begun(str(trial))
        _one(trial, case)
        count += 1
    return count


def _of_one(trial: Trial, name: str) -> Iterator[Case]:
    """The splits of one dim alone, over one axis."""
    case = trial.case()
    mine = set(dict(case.inference.attrs["factors"]).get(name, ()))
    for split in splits(case):
        if not split.pending and len(split.sizes) == 1 and mine.issuperset(split.axes):
            yield split


def _one(trial: Trial, case: Case) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ranks = check(case)
    except Exception as error:
        raise Breach(f"with {', '.join(_shown(trial, case))} {_how(trial, error)}", _help(trial, case)) from None
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
        local = LocalCase(case, at)
        each = len(split) * math.prod(local.cut(f)[1] for f in others)
        declared = trial.declaration.reduces
        if rank.reduced != (declared[0] * each, declared[1] * each * learns):
            raise Breach(f"with {', '.join(_shown(trial, case))} {_counted(trial, rank, each)}", _sums(rank, each))


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


def _could_be_free(name: str, done: list[Trial], begun: Callable[[str], None]) -> bool:
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
            begun(str(freed))
            try:
                _one(freed, split)
            except Breach:
                return False
            found += 1
    return found > 0
