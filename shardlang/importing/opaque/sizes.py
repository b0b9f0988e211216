"""A function of tensors -> which of their dims are one, and the sizes of what it gives: found by a
call with sizes that are symbols. Where torch cannot call it so, all sizes are those of the trace.

It is called with numbers first, in a process of its own, which it may end."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv, Mod, PythonMod

from shardlang.importing.steps.sizes import symbolic
from shardlang.importing.steps.trace import quiet
from shardlang.interpret.trials.processes import LIMIT, child, said_end

# What a formula of the language has of what sympy writes.
_FORMULA = re.compile(r"([-+()\d ]|\{\d+\}|(?<!\*)\*(?!\*)|//)*")
# Parentheses around parentheses.
_TWICE = re.compile(r"\((\((?:[^()]|\([^()]*\))*\))\)")

Place = tuple[int, int]


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


def sizes(
    function: Callable[..., Any], settings: Mapping[str, float], operands: Sequence[Operand], shape: tuple[int, ...]
) -> Sizes:  # fmt: skip
    """The sizes of a function whose result has a shape. Unsized."""

    def called(tell: Callable[[Any], None]) -> None:
        try:
            tell({"view": _is_view(function, settings, operands, shape)})
        except Unsized as error:
            tell({"unsized": str(error)})

    told, status = child(called, LIMIT, gradients=False)
    found = told[-1] if told else {}
    if "view" not in found:
        how = f"not ended after {LIMIT:g} seconds" if "endless" in found else said_end(status)
        raise Unsized(found.get("unsized", f"it ends the process that calls it ({how})"))
    return Sizes(*_symbolic(function, settings, operands, shape), found["view"])


def _is_view(
    function: Callable[..., Any], settings: Mapping[str, float], operands: Sequence[Operand], shape: tuple[int, ...]
) -> bool:  # fmt: skip
    """Whether the result shares its numbers with an operand. Unsized where it has another shape."""
    given = [_numbers(each) for each in operands]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = function(*given, **settings)
    except Exception as error:
        raise Unsized(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error
    if tuple(result.shape) != shape:
        raise Unsized(f"its result has {list(result.shape)}, and {list(shape)} was traced")
    return any(result.untyped_storage().data_ptr() == each.untyped_storage().data_ptr() for each in given)


def _numbers(operand: Operand) -> Tensor:
    if operand.dtype.is_floating_point:
        return torch.rand(operand.shape, generator=torch.Generator().manual_seed(0))
    return torch.zeros(operand.shape, dtype=operand.dtype)


def _symbolic(
    function: Callable[..., Any], settings: Mapping[str, float], operands: Sequence[Operand], shape: tuple[int, ...]
) -> tuple[tuple[tuple[Place, ...], ...], tuple[Size | None, ...]]:  # fmt: skip
    """The places that are one dim, and the sizes of the result by these."""
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    given = []
    for at, operand in enumerate(operands):
        free = [term is not None for term in operand.terms]
        given.append(symbolic(mode, torch.empty(operand.shape, dtype=operand.dtype), f"x{at}", free))
    try:
        with quiet(), enable_python_dispatcher(), mode, torch.no_grad():
            made = [_expression(env, size) for size in function(*given, **settings).shape]
    except Exception:
        return (), tuple(None if size == 1 else Size(formula=str(size)) for size in shape)
    places = {(at, dim): _expression(env, size) for at, each in enumerate(given) for dim, size in enumerate(each.shape)}
    equal = [each for each in (env.replace(guard.expr) for guard in env.guards) if isinstance(each, sympy.Eq)]
    numbers = {each.lhs: each.rhs for each in equal if each.rhs.is_Integer}
    # Of several dims it is not known which one must be a multiple.
    whole = {FloorDiv(*each.lhs.args): each.lhs.args[0] / each.lhs.args[1] for each in equal
             if isinstance(each.lhs, Mod) and each.rhs == 0}  # fmt: skip
    made = [each.xreplace(whole if len(each.free_symbols) > 1 else numbers) for each in made]
    fixed = _fixed(equal, places.values(), made)
    groups: dict[Any, tuple[Place, ...]] = {}
    for (at, dim), size in places.items():
        if size in fixed:
            numbers[size] = sympy.Integer(operands[at].shape[dim])
        elif size.is_Symbol:
            groups[size] = (*groups.get(size, ()), (at, dim))
    result = [_size(each.xreplace(numbers), list(groups), now) for each, now in zip(made, shape, strict=True)]
    return tuple(groups.values()), tuple(result)


def _expression(env: ShapeEnv, size: Any) -> Any:
    """A size as torch writes it, with one symbol for sizes that must be equal."""
    return sympy.Integer(size) if isinstance(size, int) else env.replace(size.node.expr)


def _fixed(equal: Sequence[Any], places: Iterable[Any], made: Sequence[Any]) -> set[Any]:
    """The symbols whose sizes stay as traced: others depend on them, or the language has no formula
    for a size that they make. A size that must be even may be another even one."""
    tied = [each for each in places if not each.is_Symbol]
    unsaid = [each for each in made if not _has_formula(each)]
    bound = [each for each in equal if not each.has(Mod, PythonMod, FloorDiv)]
    return {symbol for each in (*bound, *tied, *unsaid) for symbol in each.free_symbols}


def _has_formula(expression: Any) -> bool:
    """Whether the language can write what torch has found."""
    return bool(_FORMULA.fullmatch(_text(expression, list(expression.free_symbols))))


def _size(expression: Any, known: Sequence[Any], now: int) -> Size | None:
    """A size of the result. known: the dims. now: the size that was traced."""
    if expression in known:
        return Size(known.index(expression))
    if expression.is_Integer or not expression.free_symbols <= set(known):
        return None if now == 1 else Size(formula=str(now))
    return Size(formula=_text(expression, known))


def _text(expression: Any, known: Sequence[Any]) -> str:
    names = {symbol: sympy.Symbol(f"{{{number}}}", integer=True) for number, symbol in enumerate(known)}
    text = re.sub(r"\s*(//|(?<!\*)\*(?!\*))\s*", r" \1 ", str(expression.xreplace(names)))
    text = _TWICE.sub(r"\1", text)
    return text[1:-1] if expression.func is FloorDiv else text
