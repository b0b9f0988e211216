"""The values that an expression can have while a program is checked: static values, tensors,
layers, the names of a file, the unknown.

Plain values only; evaluating is left to `expressions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from typing import Any

from shardlang.check.own import OwnDecl
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import Operator
from shardlang.ops.declared import Declaration
from shardlang.paths.patterns import indexes
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.types.dim import TensorType, Term, term_size


class Unknown:
    """The value of a wrong (and reported) or unknown expression. It silences further mistakes."""

    def __repr__(self) -> str:
        return "?"


UNKNOWN = Unknown()
Static = int | float | bool | str | Fraction | tuple


@dataclass(frozen=True, slots=True)
class DimValue:
    """A dim, or a product of dims, used as a value."""

    term: Term

    @property
    def size(self) -> int | None:
        return term_size(self.term)


@dataclass(frozen=True, slots=True)
class CsvWords:
    """How words of a csv file become numbers: those that are listed, or (`most`) so many of the
    most frequent ones, in their order; `unknown`: every other word is the last number. Or their
    hash below `hashed`."""

    listed: tuple[str, ...] = ()
    most: int = 0
    unknown: bool = False
    hashed: int = 0

    @property
    def count(self) -> int:
        """How many numbers there are."""
        return self.hashed or (len(self.listed) or self.most) + self.unknown

    @property
    def counted(self) -> bool:
        """Whether the words are those of the training file."""
        return bool(self.most)


@dataclass(frozen=True, slots=True)
class CsvText:
    """How the texts of a csv file become numbers below `count`: by its most frequent words
    (`form` "words"), by bytes ("bytes"), or by the file `path` of a tokenizer ("tokenizer"). `pad`:
    the number that fills texts up; None where it is the tokenizer's own."""

    form: str
    count: int
    path: str = ""
    pad: int | None = None

    @property
    def counted(self) -> bool:
        """Whether the words are those of the training file."""
        return self.form == "words"


# What gives the cells of a csv file numbers.
Numbering = CsvWords | CsvText


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the graph as one model sees it: its type is in that model's dims."""

    id: int
    type: TensorType
    name: str


@dataclass(frozen=True, slots=True)
class CallResults:
    """The values of a call whose body returns several."""

    values: tuple[Tensor, ...]


@dataclass(eq=False)
class FileScope:
    """`names`: dims, models, functions, hardware, imports of a file. `spans`: where each was
    declared.

    `below`: the dims of the whole file, those further down too. `own`: names that the file imports
    from itself, which is reported: that it declares them too is no further mistake."""

    source: Source
    names: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    below: dict[str, Span] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)

    def find(self, name: str) -> Any:
        return self.names.get(name)

    def visible(self) -> list[str]:
        return list(self.names)

    def declare(self, name: ast.Name, value: Any, sink: Sink) -> None:
        before = self.spans.get(name.text)
        if before is not None and name.text not in self.own:
            help = "a name is declared once; give one of them another name"
            return sink.again("SH201", f"`{name.text}` is declared twice", name.span, before, help)
        if before is not None:
            self.own.discard(name.text)
        self.names[name.text] = value
        self.spans[name.text] = name.span


@dataclass(frozen=True, slots=True, eq=False)
class ModelDecl:
    node: ast.Model
    file: FileScope


@dataclass(frozen=True, slots=True, eq=False)
class FunctionDecl:
    node: ast.Function
    file: FileScope


@dataclass(frozen=True, slots=True, eq=False)
class OperatorDecl:
    node: ast.Operator
    declaration: Declaration
    operator: Operator

    @property
    def span(self) -> Span:
        return self.node.name.span


@dataclass(frozen=True, slots=True)
class HardwareDecl:
    node: ast.Hardware
    file: FileScope


@dataclass(eq=False)
class Instance:
    """One layer: a model with its formals given. `names`: formals, dims, layers, parameters.
    `calls` counts calls so far. `sound`: False after a mistake in what it was given, so that its
    results are unknown. `depth`: how many layers it is in.

    `results`: the names its last call bound. `missing`: names of members that a static `if`
    removed."""

    decl: ModelDecl
    path: str
    span: Span
    depth: int = 0
    names: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    nodes: dict[str, object] = field(default_factory=dict)
    missing: dict[str, Span] = field(default_factory=dict)
    forward: ast.Forward | None = None
    calls: int = 0
    sound: bool = True
    results: Mapping[str, Any] = field(default_factory=dict)
    result_nodes: Mapping[str, object] = field(default_factory=dict)

    def below(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


@dataclass(eq=False)
class LayerArray(Sequence[Instance]):
    """`layer blocks[4] = ...`. `copies`: how those that are not declared each by itself are copied
    of the first one (model/copies.py)."""

    path: str
    declared: Sequence[Instance]
    copies: Sequence[Any] = ()

    def __len__(self) -> int:
        return len(self.declared) + len(self.copies)

    def __getitem__(self, at: Any) -> Any:
        return self.declared[at] if at < len(self.declared) else self.copies[at - len(self.declared)].layers[0]

    def places(self) -> list[range]:
        """The numbers of the layers that each item stands for."""
        paths = (*(layer.path for layer in self.declared), *(copy.new for copy in self.copies))
        return [indexes(path.rpartition("[")[2][:-1]) for path in paths]


@dataclass(frozen=True, slots=True)
class Every:
    """The layers that `blocks[*]` names, or the same part of each, in order."""

    layers: tuple[Any, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that the run knows after each step, by its name."""

    name: str


def unfit(needed: str, value: object, span: Span, sink: Sink, help: str = "") -> Any:
    """UNKNOWN, after reporting SH210: that a value is not what is `needed`, as a sentence says."""
    sink.report("SH210", f"{needed}, and this is {describe(value)}", span, describe(value), help=help)
    return UNKNOWN


_KINDS: Mapping[type, str] = {
    Tensor: "a tensor", DimValue: "a dim", bool: "a truth value", int: "a number", float: "a number",
    Fraction: "a number", str: "a text", tuple: "a tuple", Instance: "a layer", LayerArray: "an array of layers",
    Every: "every layer of an array", Figure: "a figure of the step",
    CallResults: "several values", ModelDecl: "a model", FunctionDecl: "a function",
    OperatorDecl: "an operator", HardwareDecl: "hardware", CsvWords: "words of csv data",
    CsvText: "text of csv data", OwnDecl: "a source, schedule or optimizer",
}  # fmt: skip


def describe(value: object) -> str:
    """The kind of a value, for messages."""
    return _KINDS.get(type(value), "unknown")
