"""A function of tensors -> which of their dims are one, and the sizes of what it gives: found by
calls with other sizes, in a process of its own. A call that ends that process is one that fails."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlang.interpret.brute.apart import LIMIT, child, said_end

# A dim is tried with other sizes: so much more, and so many times as many.
_MORE, _TIMES = (1, 2, 3, 4, 5, 6), (2, 3)
_SMALL = tuple(range(2, 17))
# Larger operands have no numbers when sizes are tried.
_ELEMENTS = 1 << 20
# So many calls may end their process before no more are tried.
_ENDED = 20

Place = tuple[int, int]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Size:
    """The size of a dim of a result: the dim `same`, or a formula of dims, `{0}` the first of
    all."""

    same: int | None = None
    formula: str = ""


@dataclass(frozen=True)
class Sizes:
    """groups: places of operands (operand, dim) that are one dim. result: of each of its dims, None
    for a literal one. view: whether the result shares its numbers with an operand."""

    groups: tuple[tuple[Place, ...], ...]
    result: tuple[Size | None, ...]
    view: bool


class Unsized(Exception):
    """Why sizes cannot be found."""


@dataclass(frozen=True)
class Operand:
    """terms: of each dim something that says what it is, None for a literal one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    terms: tuple[Any, ...]


class _Trial:
    """Calls of one function."""

    def __init__(
        self,
        function: Callable[..., Any],
        settings: Mapping[str, float],
        operands: Sequence[Operand],
        ended: Mapping[Shapes, str],
        tell: Callable[[Any], None],
    ) -> None:
        """ended: sizes that ended the process, and how. tell: is told of sizes before each call."""
        self.function, self.settings, self.operands = function, settings, operands
        self.ended, self.tell = ended, tell
        self.known: dict[tuple[tuple[int, ...], ...], tuple[int, ...] | None] = {}

    def shape(self, changed: Mapping[Place, int]) -> tuple[int, ...] | None:
        """The shape of the result with other sizes at some places; None where there is none."""
        shapes = tuple(tuple(changed.get((at, dim), size) for dim, size in enumerate(operand.shape))
                       for at, operand in enumerate(self.operands))  # fmt: skip
        if shapes not in self.known:
            try:
                found = self.called(shapes)[0]
                self.known[shapes] = tuple(found.shape) if isinstance(found, Tensor) else None
            except Exception:
                self.known[shapes] = None
        return self.known[shapes]

    def called(self, shapes: Shapes) -> tuple[Any, list[Tensor]]:
        if shapes in self.ended:
            raise Unsized(f"it ends the process that calls it ({self.ended[shapes]})")
        self.tell({"at": shapes})
        small = sum(torch.Size(shape).numel() for shape in shapes) <= _ELEMENTS
        given = [_numbers(shape, each.dtype, "cpu" if small else "meta")
                 for shape, each in zip(shapes, self.operands, strict=True)]  # fmt: skip
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.function(*given, **self.settings), given

    def groups(self) -> list[tuple[Place, ...]]:
        """The places that are one dim, where one may have another size."""
        places = [(at, dim) for at, operand in enumerate(self.operands) for dim in range(len(operand.shape))
                  if operand.terms[dim] is not None]  # fmt: skip
        found: list[tuple[Place, ...]] = []
        for place in places:
            if not any(place in group for group in found):
                group = next((each for each in self._candidates(place, places) if self.free(each)), None)
                if group is not None:
                    found.append(group)
        return [group for at, group in enumerate(found)
                if not any(set(group) & set(other) for other in found[:at])]  # fmt: skip

    def _candidates(self, place: Place, places: Sequence[Place]) -> list[tuple[Place, ...]]:
        """The place alone, or with others of its size: first with those that are the same dim."""
        size, term = self._size(place), self.operands[place[0]].terms[place[1]]
        others = [each for each in places if each[0] != place[0] and self._size(each) == size]
        same = [each for each in others if self.operands[each[0]].terms[each[1]] == term]
        pools = [[], same, *([each] for each in others), others]
        return [tuple(sorted([place, *pool])) for pool in pools]

    def _size(self, place: Place) -> int:
        return self.operands[place[0]].shape[place[1]]

    def free(self, group: Sequence[Place]) -> list[int]:
        """The other sizes that a dim may have, alone."""
        here = self._size(group[0])
        tried = [*(here + more for more in _MORE), *(here * times for times in _TIMES), *_SMALL]
        return [size for size in dict.fromkeys(tried) if size != here and self.shape(dict.fromkeys(group, size))]


def _numbers(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    if dtype.is_floating_point:
        return torch.rand(shape, device=device, generator=torch.Generator().manual_seed(0) if device == "cpu" else None)
    return torch.zeros(shape, dtype=dtype, device=device)


def sizes(
    function: Callable[..., Any], settings: Mapping[str, float], operands: Sequence[Operand], shape: tuple[int, ...]
) -> Sizes:  # fmt: skip
    """The sizes of a function whose result has a shape. Unsized."""
    ended: dict[Shapes, str] = {}

    def tried(tell: Callable[[Any], None]) -> None:
        try:
            found = _found(_Trial(function, settings, operands, ended, tell), shape)
        except Unsized as error:
            tell({"unsized": str(error)})
        else:
            tell({"groups": found.groups, "view": found.view,
                  "result": [each and [each.same, each.formula] for each in found.result]})  # fmt: skip

    while True:
        told, status = child(tried, LIMIT, gradients=False)
        last, begun = (told or [{}])[-1], [each["at"] for each in told if "at" in each]
        if "unsized" in last:
            raise Unsized(last["unsized"])
        if "groups" in last:
            groups = tuple(tuple((at, dim) for at, dim in group) for group in last["groups"])
            return Sizes(groups, tuple(each and Size(*each) for each in last["result"]), last["view"])
        how = f"not ended after {LIMIT:g} seconds" if "endless" in last else said_end(status)
        if not begun or len(ended) >= _ENDED:
            raise Unsized(f"it ends the process that calls it ({how})")
        ended[tuple(map(tuple, begun[-1]))] = how


def _found(trial: _Trial, shape: tuple[int, ...]) -> Sizes:
    try:
        result, given = trial.called(tuple(operand.shape for operand in trial.operands))
    except Unsized:
        raise
    except Exception as error:
        raise Unsized(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
    if tuple(result.shape) != shape:
        raise Unsized(f"its result has {list(result.shape)}, and {list(shape)} was traced")
    groups = trial.groups()
    while True:
        found = [_size(trial, groups, at) for at in range(len(shape))]
        wrong = [involved for involved in found if isinstance(involved, list)]
        if not wrong:
            break
        groups = [group for at, group in enumerate(groups) if at not in wrong[0]]
    return Sizes(tuple(groups), tuple(each for each in found if not isinstance(each, list)), _shares(result, given))


def _shares(result: Tensor, given: Sequence[Tensor]) -> bool:
    """Whether a result is a view of an operand, or an operand itself."""
    if result.device.type == "meta":
        return any(result._base is each or result is each for each in given)
    return any(result.untyped_storage().data_ptr() == each.untyped_storage().data_ptr() for each in given)


def _size(trial: _Trial, groups: Sequence[tuple[Place, ...]], at: int) -> Size | list[int] | None:
    """The size of a dim of the result; the dims that it depends on where no formula is found."""
    samples = _samples(trial, groups)
    counts = [(sizes, shape[at]) for sizes, shape in samples]
    here = counts[0][1]
    involved = [number for number in range(len(groups)) if _moves(counts, number)]
    if not involved:
        return None if here == 1 else Size(formula=str(here))
    for number in involved:
        if all(sizes[number] == count for sizes, count in counts):
            return Size(same=number)
    text = next((text for text in _formulas(involved, counts) if _fits(text, counts)), "")
    return Size(formula=text) if text else involved


def _samples(
    trial: _Trial, groups: Sequence[tuple[Place, ...]]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:  # fmt: skip
    """Sizes of all dims and the result's shape: as they are, one at other sizes, pairs."""
    here = tuple(trial._size(group[0]) for group in groups)
    free = [trial.free(group) for group in groups]
    wanted = [here]
    for number, others in enumerate(free):
        wanted += [(*here[:number], size, *here[number + 1 :]) for size in others]
    for one, other in itertools.combinations(range(len(groups)), 2):
        for a, b in zip(free[one][:4], free[other][1:5], strict=False):
            changed = {one: a, other: b}
            wanted.append(tuple(changed.get(at, size) for at, size in enumerate(here)))
    found = []
    for sizes in wanted:
        shape = trial.shape({place: size for group, size in zip(groups, sizes, strict=True) for place in group})
        if shape is not None:
            found.append((sizes, shape))
    return found


def _moves(counts: Sequence[tuple[tuple[int, ...], int]], number: int) -> bool:
    here, before = counts[0]
    alone = [count for sizes, count in counts
             if [at for at, (a, b) in enumerate(zip(here, sizes, strict=True)) if a != b] == [number]]  # fmt: skip
    return any(count != before for count in alone)


def _formulas(involved: Sequence[int], counts: Sequence[tuple[tuple[int, ...], int]]) -> list[str]:
    """Formulas that a size may have, simple ones first."""
    names = ["{" + str(number) + "}" for number in involved]
    sizes, here = counts[0]
    total = sum(sizes[number] for number in involved)
    if len(names) > 1:
        times = " * ".join(names)
        return [times, f"{' + '.join(names)}{_more(here - total)}"]
    found = []
    for by in range(1, 9):
        head = names[0] if by == 1 else f"{by} * {names[0]}"
        found.append(f"{head}{_more(here - by * total)}")
    for by in range(2, 9):
        for more in range(-2 * by, 2 * by + 1):
            inner = f"({names[0]}{_more(more)}) // {by}" if more else f"{names[0]} // {by}"
            rest = here - (total + more) // by
            found.append(f"{inner}{_more(rest)}")
    return sorted(dict.fromkeys(found), key=len)


def _more(number: int) -> str:
    return f" {'-' if number < 0 else '+'} {abs(number)}" if number else ""


def _fits(text: str, counts: Sequence[tuple[tuple[int, ...], int]]) -> bool:
    return all(eval(text.format(*sizes)) == count for sizes, count in counts)
