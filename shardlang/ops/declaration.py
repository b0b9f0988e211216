"""An operator is one declaration: signature, shape and factor rule, cost, emitted text. Families
declare theirs here.

`infer` gets a `CallSite` (typed operands, evaluated static arguments) and returns an `Inference`,
or refuses the call: what is wrong is reported on `site.sink`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, ClassVar, NoReturn, ParamSpec, Protocol

from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.ops.code import RT, Code, Module, infix
from shardlang.ops.rule import FactorRule
from shardlang.ops.saved_activations import Aliasing, LocalOp, Residuals, everything, own, view
from shardlang.ops.site import OpSite, maybe_empty
from shardlang.ops.streams import Streams, once
from shardlang.ops.working_memory import WorkingMemory, plain
from shardlang.sources.source import Span
from shardlang.types.dim import TensorType, Term

Given = ParamSpec("Given")


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of an operator. kind:

    tensor   a value ("tensors" takes all further positional values);
    dim      a dim of the first operand, by name        -> attrs: Term (a whole term of the operand)
    dims     one dim or a tuple of dims `(h, w)`        -> tuple[Term, ...]
    newdim   any dim in scope, or a number (a new dim)  -> Term
    int, float, bool, str, dtype                        -> the Python value (dtype as "bf16")
    number   int or float                               -> the Python value
    pair     an int, or a tuple of two ints             -> (int, int)
    slices   all further keywords `d = 0..4`            -> tuple of (Term, start, stop, step)
    places   all further keywords `d = 3`               -> tuple of (Term, index)
    pads     all further keywords `d = 1`, `d = (1, 2)`  -> tuple of (Term, before, behind)
    `default` REQUIRED means the argument must be given; a tensor with default None may be absent.
    written: a tensor that is a state which the operator writes.
    """

    name: str
    kind: str
    default: Any = ...  # Ellipsis: required
    written: bool = False

    @property
    def required(self) -> bool:
        return self.default is ...


class Dims(Protocol):
    """The questions that `infer` may ask about dims, answered by check/ (literal dims unify)."""

    def same(self, a: Term, b: Term) -> bool:
        """Whether two terms are one; unifies a literal dim with a term of its size."""

    def fresh(self, name: str, size: int | None) -> Term:
        """A new literal dim (of an operator's own making, e.g. the height after a convolution)."""

    def resolve(self, term: Term) -> Term:
        """The term with unified literal dims replaced; product dims flattened."""


class CallRefused(Exception):
    """The operator does not take the call, as its site's sink says."""


@dataclass(frozen=True, slots=True)
class CallSite:
    """A call as `infer` sees it. `operands[i]` is None for an absent optional tensor. All terms are
    resolved.

    `arrow`: for einsum, rearrange, relabel: the terms after `->` ('...' already expanded). `spans`:
    per operand."""

    operator: Operator
    operands: tuple[TensorType, ...]
    static: Mapping[str, Any]
    arrow: tuple[Term, ...] | None
    dims: Dims
    sink: Sink
    span: Span
    spans: tuple[Span, ...]
    names: tuple[str, ...]  # how to call each operand in a message (`x`, `image`, "the left side")
    floating: str = "f32"  # the element type of a mean, or a quotient, of whole numbers

    def refuse(self, code: str, fact: str, help: str = "", *shown: int, span: Span | None = None) -> NoReturn:
        """Reports why the operator does not take this call, at all of it or at `span`, beside the
        types of the operands that are `shown`."""
        labels = [(self.spans[at], str(self.operands[at])) for at in shown]
        self.sink.report(code, fact, span or self.span, labels=labels, help=help)
        raise CallRefused


@dataclass(frozen=True, slots=True)
class Inference:
    """Result types, factor rule and the attributes kept in the graph (hashable values only).

    The rule has an entry for each operand that is present; absent ones are left out of the graph,
    and of `OpSite` too."""

    results: tuple[TensorType, ...]
    rule: FactorRule
    attrs: Mapping[str, Any] = field(default_factory=dict)


class Precision(Enum):
    """The type in which an operator computes in a run of low precision; as torch.autocast does.

    Where the stream between layers is low too, operators of GIVEN, BESIDE and ALIKE that read a low
    value or a parameter read all in that, but for single numbers."""

    F32 = "f32"  # in f32: losses
    WIDENS = "widens"  # in f32, of what it is given as that is: the loss of classes, whose scores are large
    INSIDE = "inside"  # in f32; of a low stream it reads and gives that, in f32 inside: norms, softmax
    SUM = "sum"  # as INSIDE, where the result has dims: sums, means
    FIRST = "first"  # as INSIDE in its first operand, whatever the others are: batch_norm
    LOW = "low"  # in the low precision: products and lookups
    GIVEN = "given"  # in the types of what it is given
    BESIDE = "beside"  # as GIVEN, but a parameter beside a value in the low precision is converted to that
    ALIKE = "alike"  # as GIVEN where all operands have one type, else in f32
    WRITTEN = "written"  # in the types that the program writes: conversions


class Arrow(Enum):
    """Whether a call says the dims of the result, `-> [..]`."""

    NONE = "none"
    DIMS = "dims"
    NAMES = "names"  # these mean the dims that are known where it is called before its operand's own: relabel


class Total(Enum):
    """How the values of a reduction over the batches of `eval` make one."""

    SUM = "sum"
    MEAN = "mean"
    ROWS = "rows"  # of all items at once


@dataclass(frozen=True, slots=True)
class Indexing:
    """Whole numbers that are indices. numbers: the operand that has them. into: the operand (or
    result, counted on from the last operand) that they point into, along `dim`, which is the
    attribute `dim` where it is None. rows: that operand is a table: the operator runs where it is,
    and its gradient may be kept as rows."""

    numbers: int
    into: int
    dim: int | None = None
    rows: bool = False


@dataclass(frozen=True, slots=True)
class Operator:
    """`emit` writes one Python expression for the site. product: of one that is a product of two
    matrices, (batch, m, n, k) of [m, k] and [k, n], in the sizes of its rule. streams: the bytes
    read and written, where that is not each tensor once.

    differentiable: whether a gradient flows to its operands (False: argmax, comparisons, one_hot,
    detach). random: whether one of these attributes takes a random key. symbol: how it is written
    between or before its operands (`+`).
    reduces: where the operator is a reduction that `eval` may accumulate over batches; `accumulate`
    writes an expression for a float64 tensor [2]: the local sum and the local count of items,
    padded rows left out. For Total.ROWS it writes a tuple of its operands' items, without the
    padded rows, which are joined over the batches. numbers: its text takes a static number as
    Python's; in that of others a number is a tensor. internal: added by the planner; no program can
    call it. in_torch: torch's function of the same operands, where it has another name; None where
    there is none to be measured: it only views its operand, or wants sizes of torch's own.
    doc: what it means, in a sentence or two. example: a call of it, as a function of the language,
    from which the reference shows shapes and rule: `(x: [..., d]) -> [..., d] { relu(x) }`.
    saved: what its backward reads; aliasing: whether its result is memory of its own, and in which
    order of dims; work: the memory that it needs meanwhile. precision: what it computes in.
    indexes: which of its operands are indices. places: from its attributes, the dim whose places
    the result has: of operand 0, by the order of what is there, or of the result where there is no
    operand. moves: the elements of the result are elements of the operands, unchanged. of_number:
    what it is of a static number, which gives one.

    A class of their own says what only one or two operators have; it is no field.
    train_only: the operator is the identity on its first operand in `eval` (dropout). chunked: the
    internal operator that computes this loss in chunks of rows, with the product that its scores
    are. attends: whether its ranks exchange parts of a cut sequence, as `attend` says."""

    train_only: ClassVar[bool] = False
    chunked: ClassVar[str] = ""
    attends: ClassVar[bool] = False

    name: str
    params: tuple[Param, ...]
    infer: Callable[[CallSite], Inference]
    emit: Callable[[OpSite], Code]
    doc: str
    product: Callable[[FactorRule], tuple[int, int, int, int]] | None = None
    streams: Callable[[LocalOp], Streams | None] = lambda local: None
    differentiable: bool = True
    random: Callable[[Mapping[str, Any]], bool] = lambda attrs: False
    reduces: Total | None = None
    accumulate: Callable[[OpSite], Code] | None = None
    numbers: bool = False
    internal: bool = False
    in_torch: str | None = ""
    arrow: Arrow = Arrow.NONE
    example: str = ""
    saved: Callable[[LocalOp], Residuals] = everything
    aliasing: Callable[[LocalOp], Aliasing] = own
    work: Callable[[LocalOp], WorkingMemory] = plain
    symbol: str = ""
    precision: Precision = Precision.F32
    indexes: Indexing | None = None
    places: Callable[[Mapping[str, Any]], int] | None = None
    moves: bool = False
    of_number: Callable[[float], float] | None = None

    def flops(self, rule: FactorRule, attrs: Mapping[str, Any]) -> int:
        """Its multiply-adds times two, from its rule (in whole or in local sizes)."""
        return 2 * math.prod(self.product(rule)) if self.product is not None else 0

    def exchanging(self, rule: FactorRule, attrs: Mapping[str, Any], ring: bool) -> FactorRule:
        """The rule where ranks exchange parts of a cut sequence, or send keys round a ring."""
        return rule

    def keeps(self, rule: FactorRule, attrs: Mapping[str, Any], axes: Sequence[tuple[str, ...]]) -> Iterable[int]:
        """The operands that its text keeps for backward on all ranks (`rt.keeping`) where one may
        have no part, of which its kernel may save nothing. axes: those that split each factor."""
        return ()

    def text(self, site: OpSite) -> Code:
        """The call that `emit` writes, and what else is kept of it for backward."""
        made, shapes = self.emit(site), (*site.operand_shapes, *site.result_shapes)
        kept = self.keeps(site.rule, site.attrs, site.axes) if site.training and maybe_empty(shapes) else ()
        read = [site.operands[at] for at in kept if site.operand_types[at].floating]
        return RT("keeping", made, *read) if read else made

    def inferred(self, site: CallSite) -> Inference | None:
        """The answer of `infer` to a call; None where it refuses."""
        try:
            return self.infer(site)
        except CallRefused:
            return None

    @property
    def updates(self) -> tuple[int, ...]:
        """The operands that are states it writes."""
        return tuple([at for at, param in enumerate(self.params) if param.written])

    @property
    def table(self) -> int | None:
        """The operand whose rows it looks up."""
        return self.indexes.into if self.indexes is not None and self.indexes.rows else None

    @property
    def freezes(self) -> bool:
        """Whether what it is given is meant to get no gradient from it: a view without one."""
        return not self.differentiable and self.aliasing is view

    def streamed(self, local: LocalOp) -> Streams:
        """The bytes that it reads and writes on one rank."""
        return self.streams(local) or once(local, self.saved(local), self.aliasing(local), self.work(local))


REGISTRY: dict[str, Operator] = {}
# (symbol, number of operands) -> the operator that is written so.
SYMBOLS: dict[tuple[str, int], str] = {}
# The module that declares an operator, of those in families/.
FAMILIES: dict[str, str] = {}


def declaring(make: Callable[Given, Operator]) -> Callable[Given, None]:
    """A function that declares operators of a class; a second of the same name is our fault."""

    def declare(*given: Given.args, **facts: Given.kwargs) -> None:
        operator = make(*given, **facts)
        if operator.name in REGISTRY:
            raise ValueError(f"operator {operator.name} is declared twice")
        REGISTRY[operator.name] = operator
        FAMILIES[operator.name] = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]
        if operator.symbol:
            SYMBOLS[operator.symbol, len(operator.params)] = operator.name

    return declare


declare = declaring(Operator)


def always(attrs: Mapping[str, Any]) -> bool:
    """Whatever the attributes are."""
    return True


def calls(module: Module, name: str) -> Callable[[OpSite], Code]:
    """`emit` of an operator that a function of all its operands is."""
    return lambda site: module(name, *site.operands)


def between(symbol: str) -> Callable[[OpSite], Code]:
    """`emit` of an operator that is written between its operands."""
    return lambda site: infix(symbol, *site.operands)


def written(operator: str) -> str:
    """How a user writes an operator: `+`, `relu`, or one of their own."""
    return (REGISTRY[operator].symbol if operator in REGISTRY else "") or operator
