"""A declared operator -> calls to try it by: sizes of its dims, values of its settings, operands.

There are two sets of sizes at least, one of primes where the declaration allows it. Sizes at which
the function fails are passed over, as long as others are found: a window may need to be shorter
than what it moves over."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from shardlang.check.graph.unify import Unifier
from shardlang.diagnostics.diagnostic import InternalError, Sink
from shardlang.errors import RunError
from shardlang.interpret.meaning.call import ELEMENTS
from shardlang.interpret.trials.splits import Case, evaluate, text
from shardlang.ops.declaration import CallSite, Inference
from shardlang.ops.declared import DECLARED, Declaration, Signature, operator_of
from shardlang.ops.declared import evaluate as size_of
from shardlang.sources.source import Source, Span
from shardlang.types.dim import Dim, TensorType, Term

# For each set of sizes: pools to take them from, the first that serves.
_POOLS = (
    ((4, 6, 8, 12, 9, 10), (2, 4, 8, 16, 3, 32)),
    ((5, 3, 7, 2, 11, 13), (6, 10, 2, 14, 4, 22), (8, 4, 16, 2, 32, 64)),
    ((6, 4, 2, 8, 3, 5), (3, 9, 6, 12, 2, 4)),
)
# How many ways of giving the sizes of a pool to the dims are tried.
_WAYS = 120
# At how many further sizes, and up to which, the result's shape is compared.
_FURTHER, _LARGEST = 40, 13
# A size that is large beside the others, for a function that treats many in another way than a few.
_MANY = (120, 128, 127)
# The sizes of the dims that `...` stands for.
_LEADING = (2, 3)
# How many elements a tensor of a trial may have: each split copies it several times.
_ELEMENTS = 2**22


@dataclass(frozen=True)
class Called:
    """A call whose types are inferred, as splits.py wants it."""

    types: tuple[TensorType | None, ...]
    inference: Inference | None
    operator: str = DECLARED


@dataclass(frozen=True)
class Trial:
    """sizes: of the names of the signature; leading: how many dims `...` stands for. positive: all
    numbers are above 0, for a function that has no values elsewhere."""

    declaration: Declaration
    sizes: Mapping[str, int]
    leading: int
    settings: Mapping[str, Any]
    positive: bool = False

    def __str__(self) -> str:
        named = {**self.sizes, **self.settings}
        rest = [f"{self.leading} leading dims"] if _has_rest(self.declaration) else []
        return ", ".join([*(f"{name} = {value}" for name, value in named.items()), *rest])

    def case(self, dtype: str = "f64") -> Case:
        """The call with operands drawn for it, floating ones of `dtype`."""
        dims = {name: Dim(name, size) for name, size in self.sizes.items()}
        dims |= {f"...{at}": Dim(f"...{at}", _LEADING[at]) for at in range(self.leading)}
        types = tuple(self._type(signature, dims, dtype) for _, signature in self.declaration.operands)
        sink, span = Sink(), Span(Source(self.declaration.home, self.declaration.name), 0, 1)
        operator = operator_of(self.declaration)
        site = CallSite(
            operator, types, dict(self.settings), arrow=None, dims=Unifier(), sink=sink, span=span,
            spans=(span,) * len(types),
            names=tuple(name for name, _ in self.declaration.operands), floating=dtype,
        )  # fmt: skip
        inference = operator.inferred(site)
        if inference is None:
            raise InternalError(f"a call of {self.declaration.name} was not inferred: {sink.found}")
        draws = torch.Generator().manual_seed(len(self.sizes))
        return Case(Called(types, inference), tuple(self._drawn(type, draws) for type in types))

    def _type(self, signature: Signature, dims: Mapping[str, Dim], dtype: str) -> TensorType:
        terms: list[Term] = []
        for entry in signature.spread(self.leading):
            if isinstance(entry, int):
                terms.append(() if entry == 1 else (Dim(str(entry), entry, None, True),))
            else:
                terms.append(tuple(dims[name] for name in entry))
        return TensorType(signature.dtype or dtype, tuple(terms))

    def _drawn(self, type: TensorType, draws: torch.Generator) -> Tensor:
        """Normal numbers; whole ones are 0 and 1, an index into any dim."""
        if type.dtype == "bool":
            return torch.rand(type.shape, generator=draws) < 0.5
        if not type.floating:
            below = min([*self.sizes.values(), 2])
            return torch.randint(below, type.shape, generator=draws, dtype=ELEMENTS[type.dtype])
        x = torch.randn(type.shape, generator=draws, dtype=torch.float64)
        return (x.abs() + 0.5 if self.positive else x).to(ELEMENTS[type.dtype]).requires_grad_()


def trials(declaration: Declaration, begun: Callable[[str], None]) -> Iterator[Trial | Exception]:
    """The trials of an operator; an exception of its function in the place of one for which no
    sizes serve. begun: is told each call."""
    settings = [_settings(declaration, changed) for changed in (False, False, True)]
    count = 3 if declaration.settings or _has_rest(declaration) else 2
    positive = False
    for at in range(count):
        leading = (2, 1, 0)[at] if _has_rest(declaration) else 0
        found = _first(declaration, at, leading, settings[at], positive, begun)
        if isinstance(found, Exception) and at == 2:  # other values of settings may not be allowed
            found = _first(declaration, at, leading, settings[0], positive, begun)
        if isinstance(found, Trial):
            positive = found.positive
        yield found


def further(trial: Trial) -> Iterator[Trial]:
    """The call of a trial at other sizes, at which only the result's shape is looked at."""
    draws = random.Random(0)
    for _ in range(_FURTHER):
        tried = replace(trial, sizes={name: draws.randint(1, _LARGEST) for name in trial.sizes})
        if _made(tried):
            yield tried


def large(trial: Trial, begun: Callable[[str], None]) -> Iterator[tuple[str, Trial]]:
    """The call of a trial with many of one dim, for each dim that may be split, by its name; none
    where the function fails there."""
    for name in trial.sizes:
        if name in trial.declaration.whole:
            continue
        for size in _MANY:
            tried = replace(trial, sizes={**trial.sizes, name: size})
            begun(str(tried))
            if _made(tried) and isinstance(_runs(tried), Trial):
                yield name, tried
                break


def _has_rest(declaration: Declaration) -> bool:
    return any(("...",) in signature.dims for _, signature in declaration.operands)


def _settings(declaration: Declaration, changed: bool) -> dict[str, Any]:
    """Values of the settings: the defaults, or others. RunError where only its user knows one."""
    found: dict[str, Any] = {}
    for param in declaration.settings:
        value = {"int": 1, "float": 0.5, "bool": False}.get(param.kind) if param.required else param.default
        if value is None:
            help = f'`{param.name}: str = "..."`, a value that may be tried'
            raise RunError("SH618", f"`{param.name}` of `{declaration.name}` has no default to try", help=help)
        found[param.name] = _other(value) if changed else value
    return found


def _other(value: Any) -> Any:
    """Another value of the same kind, but for a text."""
    if isinstance(value, bool | str):
        return value if isinstance(value, str) else not value
    return value + 1 if isinstance(value, int) else 1.5 * value + 0.25


def _first(
    declaration: Declaration, at: int, leading: int, settings: Mapping[str, Any], positive: bool,
    begun: Callable[[str], None],
) -> Trial | Exception:  # fmt: skip
    """The first sizes at which the function has values, or why it has none."""
    names = list(dict.fromkeys(n for _, s in declaration.operands for n in s.names if n != "..."))
    failure: Exception | None = None
    for pool in _POOLS[at]:
        longer = [*pool, *(2 + size % 5 for size in range(max(0, len(names) - len(pool))))]
        for sizes in itertools.islice(itertools.permutations(longer, len(names)), _WAYS):
            trial = Trial(declaration, dict(zip(names, sizes, strict=True)), leading, settings, positive)
            if not _made(trial):
                continue
            begun(str(trial))
            found = _runs(trial)
            if isinstance(found, Trial):
                return found
            failure = failure or found
    fact = f"dims are whole numbers, flops a number from 0 on, and tensors of at most {_ELEMENTS:,} elements"
    return failure or ValueError(f"no sizes were found at which {fact}")


def _made(trial: Trial) -> bool:
    """Whether the declaration counts dims and flops that can be used, and its tensors are small
    enough to be tried."""
    declaration = trial.declaration
    sizes: dict[str, Any] = {**trial.settings, **trial.sizes}
    for name, expr in declaration.dims:
        size = size_of(expr, sizes)
        if size is None or Fraction(size).denominator != 1 or size < 1:
            return False
        sizes[name] = int(size)
    flops = size_of(declaration.flops, sizes)
    if flops is None or flops < 0:
        return False
    sizes |= {f"...{at}": size for at, size in enumerate(_LEADING[: trial.leading])}
    signatures = [*(signature for _, signature in declaration.operands), declaration.result]
    return all(_elements(signature, trial.leading, sizes) <= _ELEMENTS for signature in signatures)


def _elements(signature: Signature, leading: int, sizes: Mapping[str, Any]) -> int:
    entries = signature.spread(leading)
    return math.prod(n for e in entries for n in ((e,) if isinstance(e, int) else (sizes[name] for name in e)))


def _runs(trial: Trial) -> Trial | Exception:
    """The trial, with positive numbers if it has no values otherwise; or why it fails."""
    for one in dict.fromkeys((trial.positive, True)):
        tried = replace(trial, positive=one)
        case = tried.case()
        try:
            result = evaluate(text(case), [x.detach().clone() for x in case.inputs], case=case)
        except Exception as error:
            return error
        if result.layout is not torch.strided or result.device.type != "cpu":
            return TypeError(f"it gave a tensor that is {_kind(result)}, of operands that are dense and on cpu")
        if not bool(torch.isnan(result).any()):
            return tried
    return ValueError("its result is not a number, for positive operands too")


def _kind(x: Tensor) -> str:
    return f"on {x.device}" if x.layout is torch.strided else str(x.layout).removeprefix("torch.")
