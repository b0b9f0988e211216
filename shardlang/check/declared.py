"""Declarations of everything but operators that a program may call (optimizers, learning-rate
schedules, data sources, starts of parameters): one declaration each, which the checker reads and
the reference is made from, with how a call of one is written. And what their arguments, and the
settings of a run, may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from shardlang.check.constants import show
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import Param
from shardlang.syntax import ast


def called(node: ast.Expr) -> str:
    """The name that an expression calls; "" where it is no call of a name."""
    return node.callee.text if isinstance(node, ast.Call) and isinstance(node.callee, ast.Name) else ""


def signature(name: str, params: Sequence[Param], arrow: bool = False) -> str:
    """`dropout(x, p = 0.5)`; the kind stands where no default shows it."""
    listed = ", ".join(written(param) for param in params)
    return f"{name}({listed}{' -> [dims]' if arrow else ''})"


def written(param: Param) -> str:
    """A parameter as a signature has it."""
    many = {
        "tensors": "x, y, ...",
        "slices": "dim = start..end, ...",
        "places": "dim = index",
        "pads": "dim = (before, behind), ...",
    }
    if param.kind in many:
        return many[param.kind]
    shown = param.kind != "tensor" and param.default in (..., None)
    kind = f": {'dim' if param.kind == 'newdim' else param.kind}" if shown else ""
    return f"{param.name}{kind}{default(param)}"


def default(param: Param) -> str:
    """` = 0.5`; nothing where the argument must be given."""
    return "" if param.required else f" = {_value(param.default)}"


def _value(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_value, value))})"
    if value is None:
        return "none"
    return f"{value:g}".replace("e-0", "e-") if isinstance(value, float) else show(value)


def require_once(names: Iterable[ast.Name], fact: str, help: str, sink: Sink) -> None:
    """Reports each name that stands there already; `fact` says it of `{}`."""
    seen: dict[str, ast.Name] = {}
    for name in names:
        before = seen.setdefault(name.text, name)
        if before is not name:
            sink.again("SH201", fact.format(name.text), name.span, before.span, help)


@dataclass(frozen=True)
class DeclaredKind:
    """`doc`: a sentence or a formula a line. `params`: as an operator's."""

    doc: str
    params: tuple[Param, ...] = ()

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Argument -> its default; Ellipsis where it must be given."""
        return {param.name: param.default for param in self.params}


@dataclass(frozen=True)
class ArgumentLimit:
    """The values that are allowed for an argument, and these in words."""

    fits: Callable[[Any], bool]
    wanted: str
    code: str = "SH237"


_FROM_0, _FROM_1 = ArgumentLimit(lambda v: v >= 0, "at least 0"), ArgumentLimit(lambda v: v >= 1, "at least 1", "SH213")
_RATES = ("lr", "min", "momentum", "dampening", "weight_decay", "eps", "l1", "l2", "initial_accumulator")
# What gives words of csv data numbers (model/words.py), and what its texts.
WORDS: Mapping[str, DeclaredKind] = {
    "categories": DeclaredKind(
        "Listed words are 0, 1, ... in their order, or the `most` most frequent ones of the training file. `unknown` "
        "gives all others one more number; without it they have one if `most` is given.",
        (Param("most", "int", None), Param("unknown", "bool", None)),
    ),
    "hashed": DeclaredKind("A word is its CRC-32 modulo `count`.", (Param("count", "int"),)),
}
TEXTS: Mapping[str, DeclaredKind] = {
    "words": DeclaredKind(
        "The `most` most frequent words of the training file are 4 and on; 0 to 3 are padding, beginning, end and "
        "unknown.",
        (Param("most", "int"),),
    ),
    "tokenizer": DeclaredKind(
        "The tokens of a tokenizer.json, below `size`, with the marks that it gives to a text. `pad` fills a text up; "
        "by default it is the tokenizer's own padding.",
        (Param("path", "str"), Param("size", "int"), Param("pad", "int", None)),
    ),
    "bytes": DeclaredKind(
        "Each byte of a text in UTF-8 is a number. `pad` fills a text up; a `pad` of 256 is one number more.",
        (Param("pad", "int", 256),),
    ),
}
# What ends a line, quotes a cell, or is a part of numbers.
_NO_DELIMITER = '\n\r\0".+-0123456789eE'
# By the name of an argument or a setting, whatever it belongs to.
LIMITS: Mapping[str, ArgumentLimit] = {
    **dict.fromkeys((*_RATES, "warmup", "seed", "workers", "pad", "keep"), _FROM_0),
    **dict.fromkeys(("epochs", "steps", "batches", "threshold", "patience", "most", "size"), _FROM_1),
    "betas": ArgumentLimit(lambda v: all(0 <= beta < 1 for beta in v), "at least 0 and below 1"),
    "lr_power": ArgumentLimit(lambda v: v < 0, "below 0"),
    "clip": ArgumentLimit(lambda v: v > 0, "above 0"),
    "ema": ArgumentLimit(lambda v: 0 < v < 1, "above 0 and below 1"),
    "split": ArgumentLimit(lambda v: v in ("train", "test"), '"train" or "test"'),
    "dtype": ArgumentLimit(lambda v: v in ("u16", "u32"), '"u16" or "u32"'),
    "delimiter": ArgumentLimit(
        lambda v: len(v) == 1 and v not in _NO_DELIMITER, 'one character that no number has, as ";"'
    ),
    "to": ArgumentLimit(bool, "the name of a folder"),
}
