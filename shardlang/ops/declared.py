"""An operator that a `.shard` file declares -> the `Operator` that check, plan and emitter know.

Its signature is its factor rule: each name of a dim is a factor. Nothing here imports the Python
function that computes it."""

from __future__ import annotations

import math
import operator as python
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from fractions import Fraction
from functools import partial
from typing import Any, NoReturn

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.frozen.records import dataclass
from shardlang.ops.code import RT, Code, Module, around
from shardlang.ops.declaration import REGISTRY, CallRefused, CallSite, Inference, Operator, Param, declaring
from shardlang.ops.factors import promote, refuse_twice, sized
from shardlang.ops.python_text import literal
from shardlang.ops.rule import DimFactors, Factor, FactorRule, Split, factor_rule
from shardlang.ops.saved_activations import LocalOp, Residuals, everything
from shardlang.ops.site import OpSite, maybe_empty
from shardlang.ops.texts import TORCH_DTYPES, group_text
from shardlang.syntax import ast
from shardlang.types.dim import TensorType, Term, term_size, term_text

# What plans know every such operator by, and the attribute that has its declaration.
DECLARED = "of_a_file"
# `...` in a signature, and `result` in `keeps`.
REST, RESULT = "...", "result"
# The argument by which a function that sums over split dims gets the group to do so.
GROUP = "group"
# A size above this is a slip, as in the rest of the language; so are flops, and what comes between.
_LARGEST_SIZE, _LARGEST = 2**63 - 1, 2**127
# One dim of a signature: the names of its factors, major first, or a number.
Entry = tuple[str, ...] | int
# The object of an emitted file that calls the functions.
OWN = Module("own")


@dataclass(frozen=True)
class Signature:
    """The type of an operand or of the result, as declared. dtype: "" for the run's own type."""

    dtype: str
    dims: tuple[Entry, ...]

    @property
    def names(self) -> list[str]:
        return [name for entry in self.dims if not isinstance(entry, int) for name in entry]

    def spread(self, leading: int) -> tuple[Entry, ...]:
        """The dims with a name for each of those that `...` stands for."""
        own = tuple((f"{REST}{at}",) for at in range(leading))
        return tuple(e for entry in self.dims for e in (own if entry == (REST,) else (entry,)))


@dataclass(frozen=True)
class Declaration:
    """A declared operator. dims: those of the result that no operand has, with their sizes. inside:
    those over which the function itself sums. reduces: how many sums that are, forward and
    backward, each as large as the first operand without these dims. linear: sets of operands that
    may be pending. keeps: what backward reads, None where that is not said.

    file: the Python file, from the folder of the program. path: the same file, to read it. source,
    digest: of its text and of the declaration's. home: the file that declares it. verified: whether
    its lock says that both have passed `shardc verify`."""

    name: str
    operands: tuple[tuple[str, Signature], ...]
    settings: tuple[Param, ...]
    result: Signature
    dims: tuple[tuple[str, ast.Expr], ...] = field(compare=False)  # its digest has them, as it has `flops`
    whole: frozenset[str]
    inside: frozenset[str]
    reduces: tuple[int, int]
    linear: tuple[tuple[int, ...], ...]
    flops: ast.Expr = field(compare=False)
    keeps: tuple[str, ...] | None
    function: str
    file: str
    path: str
    source: str
    digest: str
    home: str
    verified: bool

    def __repr__(self) -> str:
        return f"{self.home}: {self.name} {self.digest} {self.source}"


def operator_of(declaration: Declaration) -> Operator:
    """The operator as programs call it. Its attributes have all that depends on the declaration."""
    tensors = tuple(Param(name, "tensor") for name, _ in declaration.operands)
    return replace(
        REGISTRY[DECLARED], name=declaration.name, params=(*tensors, *declaration.settings),
        infer=partial(_infer, declaration),
    )  # fmt: skip


def evaluate(expr: ast.Expr, names: Mapping[str, Any]) -> int | float | Fraction | None:
    """The number that an expression of a declaration stands for; None where it has none, or none
    that can be used: a part of it divides by zero, or is above 2**127."""
    match expr:
        case ast.Number():
            return expr.value
        case ast.Name():
            found: int | float | None = names.get(expr.text)
            return found
        case ast.Unary(op="-"):
            value = evaluate(expr.operand, names)
            return None if value is None else -value
        case ast.Binary():
            left, right = evaluate(expr.left, names), evaluate(expr.right, names)
            return None if left is None or right is None else _combined(expr.op, left, right)
    return None


def _combined(op: str, a: Any, b: Any) -> Any:
    exact = not isinstance(a, float) and not isinstance(b, float)
    try:
        found = Fraction(a) / Fraction(b) if op == "/" and exact else _OPERATIONS[op](a, b)
    except (ZeroDivisionError, OverflowError):
        return None
    return found if abs(found) <= _LARGEST else None  # nor is one that is no number


_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": python.add, "-": python.sub, "*": python.mul, "/": python.truediv, "//": python.floordiv, "%": python.mod,
}  # fmt: skip


# --- a call -> types and rule ------------------------------------------------


@dataclass
class _Binding:
    """The terms that the names of a signature stand for in one call; leading: dims of `...`."""

    declaration: Declaration
    site: CallSite
    names: dict[str, Term] = field(default_factory=dict)
    leading: int | None = None

    def refuse(self, at: int, fact: str, help: str = "") -> NoReturn:
        """Reports how operand `at` does not fit."""
        message = f"`{self.declaration.operands[at][0]}` of `{self.declaration.name}` {fact}"
        self.site.sink.report("SH617", message, self.site.spans[at], f"{self.site.operands[at]}", help=help)
        raise CallRefused

    def operand(self, at: int) -> None:
        """Binds the dims of one operand."""
        signature, type = self.declaration.operands[at][1], self.site.operands[at]
        if type.dtype != signature.dtype and (signature.dtype or not type.floating):
            wanted = signature.dtype or "floating"
            help = f"`cast({self.site.names[at]}, {signature.dtype or 'f32'})` changes the element type"
            self.refuse(at, f"must be {wanted}, and this is {type.dtype}", help)
        rest = (REST,) in signature.dims
        extra = len(type.dims) - len(signature.dims) + rest
        if extra < 0 or (extra and not rest):
            self.refuse(at, f"has {len(signature.dims) - rest} dims, and this has {len(type.dims)}")
        if rest and self.leading not in (None, extra):
            self.refuse(at, f"has {extra} dims for `...`, and an operand before it has {self.leading}")
        self.leading = extra if rest else self.leading
        for entry, term in zip(signature.spread(extra), type.dims, strict=True):
            self._entry(entry, term, at)

    def _entry(self, entry: Entry, given: Term, at: int) -> None:
        if isinstance(entry, int):
            one = entry == 1 and given and not self.site.dims.same((), given)
            if one or term_size(given) not in (entry, None):
                self.refuse(at, f"needs {entry} where this has {sized(given)}")
            return
        known = [self.names[name] for name in entry if name in self.names]
        if len(known) == len(entry):
            return self._same(tuple(dim for term in known for dim in term), given, at)
        if len(entry) == 1:
            self.names[entry[0]] = given
            return
        if known or len(given) != len(entry):
            text = " * ".join(entry)
            help = f"`rearrange` makes such a dim: `rearrange({self.site.names[at]} -> [{text}])`"
            self.refuse(at, f"needs a product `{text}` where this has {sized(given)}", help)
        self.names.update((name, (dim,)) for name, dim in zip(entry, given, strict=True))

    def _same(self, wanted: Term, given: Term, at: int) -> None:
        if wanted != given and not self.site.dims.same(wanted, given):
            help = f"if they are meant to be one dim, `relabel({self.site.names[at]} -> [{term_text(wanted)}])` says so"
            self.refuse(at, f"needs {sized(wanted)} where this has {sized(given)}", help)

    def make(self) -> None:
        """Adds the dims that the declaration makes."""
        site = self.site
        sizes: dict[str, Any] = {**site.static, **{name: term_size(term) for name, term in self.names.items()}}
        for name, expr in self.declaration.dims:
            size = evaluate(expr, sizes)
            unknown = size is None and None in sizes.values()
            if not unknown and (size is None or size != int(size) or not 1 <= size <= _LARGEST_SIZE):
                what, help = f"the size of dim `{name}`", f"`{expr.span.text}` must be a whole number from 1 on"
                self._unusable(what, size, expr, help)
            number = None if size is None else int(size)
            sizes[name] = number
            self.names[name] = site.dims.fresh(name, number)
        count = self.declaration.flops
        flops = evaluate(count, sizes)
        if (flops is None and None not in sizes.values()) or (flops is not None and flops < 0):
            help = f"`flops {count.span.text}` must be a number from 0 on"
            self._unusable("the count of flops", flops, count, help)

    def one_dtype(self) -> None:
        """All operands of the run's type have one element type."""
        own = [at for at, (_, signature) in enumerate(self.declaration.operands) if not signature.dtype]
        types = [self.site.operands[at].dtype for at in own]
        for at, dtype in zip(own, types, strict=True):
            if dtype != types[0]:
                help = f"`cast({self.site.names[at]}, {types[0]})` changes the element type"
                self.refuse(at, f"is {dtype}, and an operand before it is {types[0]}", help)

    def _unusable(self, what: str, number: int | float | Fraction | None, expr: ast.Expr, help: str) -> NoReturn:
        fact = f"{what} of `{self.declaration.name}` is {_shown(number)} here"
        given = [(expr.span, f"`{expr.span.text}`")]
        self.site.sink.report("SH617", fact, self.site.span, "called here", labels=given, help=help)
        raise CallRefused


def _shown(number: int | float | Fraction | None) -> str:
    if number is None:
        return "no number that can be used"
    large = float(number)
    return str(number) if abs(large) < _LARGEST_SIZE else f"{large:g}"


def _infer(declaration: Declaration, site: CallSite) -> Inference:
    bound = _Binding(declaration, site)
    for at in range(len(site.operands)):
        bound.operand(at)
    bound.one_dtype()
    bound.make()
    leading = bound.leading or 0
    factors = _Factors(declaration, {name: site.dims.resolve(term) for name, term in bound.names.items()})
    operands = [factors.dims(signature.spread(leading)) for _, signature in declaration.operands]
    entries = declaration.result.spread(leading)
    result = factors.dims(entries)
    dims = tuple(_term(entry, factors.names, site) for entry in entries)
    refuse_twice(site, dims)
    rule = factor_rule(tuple(factors.made), tuple(operands), (result,), declaration.linear)
    floating = [type for type in site.operands if type.floating]
    dtype = declaration.result.dtype or (promote(floating) if floating else site.floating)
    attrs = {DECLARED: declaration, "factors": tuple(factors.index.items()), "settings": tuple(site.static.items())}
    return Inference((TensorType(dtype, dims),), rule, attrs)


def _term(entry: Entry, names: Mapping[str, Term], site: CallSite) -> Term:
    if isinstance(entry, int):
        return () if entry == 1 else site.dims.fresh(str(entry), entry)
    return tuple(dim for name in entry for dim in names[name])


@dataclass
class _Factors:
    """The factors of a call: made, and index, those of each name. A dim that is known by two names
    may not be split, for the declaration says nothing of a split of both."""

    declaration: Declaration
    names: Mapping[str, Term]
    made: list[Factor] = field(default_factory=list)
    index: dict[str, DimFactors] = field(default_factory=dict)

    def dims(self, entries: tuple[Entry, ...]) -> tuple[DimFactors, ...]:
        """The factors of each dim of a tensor."""
        return tuple(self._number(e) if isinstance(e, int) else self._entry(e) for e in entries)

    def _entry(self, entry: tuple[str, ...]) -> DimFactors:
        return tuple(f for name in entry for f in self._name(name))

    def _name(self, name: str) -> DimFactors:
        if name not in self.index:
            term, first = self.names[name], len(self.made)
            own = {name for name, _ in self.declaration.dims} | self.declaration.whole
            others = {dim for other, dims in self.names.items() if other != name for dim in dims}
            inside = name in self.declaration.inside
            for dim in term:
                fixed = name in own or dim in others
                split = Split.WHOLE if fixed else Split.INSIDE if inside else Split.FREE
                sums = self.declaration.reduces if split is Split.INSIDE else (0, 0)
                forward, backward = ((1,) * count for count in sums)
                self.made.append(Factor(dim.name, dim.size or 1, split, (forward, backward)))
            self.index[name] = tuple(range(first, first + len(term)))
        return self.index[name]

    def _number(self, number: int) -> DimFactors:
        if number == 1:
            return ()
        self.made.append(Factor(str(number), number, Split.WHOLE))
        return (len(self.made) - 1,)


# --- the declaration of all of them, by attributes ---------------------------


class _OfAFile(Operator):
    def flops(self, rule: FactorRule, attrs: Mapping[str, Any]) -> int:
        """The flops of each element of the leading dims, times these."""
        sizes = {name: math.prod(rule.factors[f].size for f in factors) for name, factors in attrs["factors"]}
        leading: int = math.prod(size for name, size in sizes.items() if name.startswith(REST))
        declaration: Declaration = attrs[DECLARED]
        # A part's sizes may be too small for what the whole's are not.
        return max(0, int(evaluate(declaration.flops, {**dict(attrs["settings"]), **sizes}) or 0)) * leading

    def keeps(self, rule: FactorRule, attrs: Mapping[str, Any], axes: object) -> tuple[int, ...]:
        return _kept(attrs[DECLARED])


def _saved(local: LocalOp) -> Residuals:
    declaration: Declaration = local.attrs[DECLARED]
    if declaration.keeps is None:
        return everything(local)
    return Residuals(_kept(declaration), (0,) if RESULT in declaration.keeps else ())


def _kept(declaration: Declaration) -> tuple[int, ...]:
    """The operands that backward reads."""
    keeps = declaration.keeps
    return tuple(at for at, (name, _) in enumerate(declaration.operands) if keeps is None or name in keeps)


def _text(site: OpSite) -> Code:
    declaration: Declaration = site.attrs[DECLARED]
    settings = [around(f"{name}=", literal(value)) for name, value in site.attrs["settings"]]
    members = [around(f"{GROUP}=", _members(site, declaration))] if declaration.inside else []
    call = (literal(declaration.file), literal(declaration.function), *site.operands, *settings, *members)
    summed = any(site.groups[f] for f in _inside(site))
    if summed or not maybe_empty((*site.operand_shapes, *site.result_shapes)):
        return OWN("call", *call)  # a rank without a part takes part in sums
    # A rank's part may be empty.
    return OWN("part", site.result_shapes[0], TORCH_DTYPES[site.result_types[0].dtype], *call)


def _inside(site: OpSite) -> list[int]:
    """The factors over which the function itself sums."""
    return [f for f, factor in enumerate(site.rule.factors) if factor.split is Split.INSIDE]


def _members(site: OpSite, declaration: Declaration) -> Code:
    """The group that the function gets: the sizes of dims in the whole, and the ranks that share
    them. result: the ranks that all have the result, where it lacks such a dim."""
    factors = {name: mine for name, mine in site.attrs["factors"] if name in declaration.inside}
    sizes = [f"{literal(name)}: {math.prod(site.rule.factors[f].size for f in mine)}" for name, mine in factors.items()]
    kept = {f for dim in site.rule.results[0] for f in dim}
    group = group_text(site, _inside(site))
    lacking = group_text(site, [f for f in _inside(site) if f not in kept])
    given = [group] if group else []
    return RT("Members", f"{{{', '.join(sizes)}}}", *given, **({"result": lacking} if lacking else {}))


def _undeclared(site: CallSite) -> NoReturn:
    raise InternalError(f"a program calls `{DECLARED}`")


declaring(_OfAFile)(
    DECLARED, (), _undeclared, _text, "An operator that a file of the user's declares.", saved=_saved, internal=True
)
