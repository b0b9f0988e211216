"""Parts of an expression -> its Python, which knows what it uses, how it binds, and where it may be
broken over lines.

Operators and the emitter make their text of these, so nobody looks into a text again for imports or
brackets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.ops.python_text import tuple_text

_NOTHING: frozenset[str] = frozenset()


class Code(str):
    """Python text. uses: the modules and the names of local sizes in it. primary: whether a method
    or an operator may stand beside it without brackets. head, arguments: of the call whose
    arguments are broken over lines."""

    uses: frozenset[str]
    primary: bool
    head: str
    arguments: tuple[str, ...]

    def __new__(
        cls, text: str, uses: frozenset[str] = _NOTHING, primary: bool = True, head: str = "",
        arguments: tuple[str, ...] = (),
    ) -> Code:  # fmt: skip
        self = super().__new__(cls, text)
        self.uses, self.primary, self.head, self.arguments = uses, primary, head, arguments
        return self

    @property
    def tail(self) -> str:
        """The text after the arguments."""
        return self[len(self.head) + len(", ".join(self.arguments)) :]


def used(*parts: str) -> frozenset[str]:
    """The imports and names that several texts use together."""
    found = _NOTHING
    for part in parts:
        if isinstance(part, Code) and not part.uses <= found:
            found = found | part.uses if found else part.uses
    return found


def around(before: str, text: str, after: str = "", primary: bool = False) -> Code:
    """`text` between two others; it is still its call that is broken."""
    head, arguments = (text.head, text.arguments) if isinstance(text, Code) else ("", ())
    return Code(f"{before}{text}{after}", used(before, text, after), primary, f"{before}{head}", arguments)


def atom(text: str) -> str:
    """`text` so that an operator or a method may follow or precede it."""
    return text if not isinstance(text, Code) or text.primary else Code(f"({text})", text.uses)


def call_of(function: str, *given: Any, **named: Any) -> Code:
    """`function(given, name=named)`. Arguments are Python text, or values without strings."""
    items = tuple([*map(_item, given), *(around(f"{name}=", _item(value)) for name, value in named.items())])
    text, uses = f"{function}({', '.join(items)})", used(function, *items)
    if not items and isinstance(function, Code):  # there is nothing to break, but perhaps in what is called
        return Code(text, uses, True, function.head, function.arguments)
    return Code(text, uses, True, f"{function}(", items)


def _item(value: Any) -> str:
    if isinstance(value, tuple):
        return Code(tuple_text(value), used(*(part for part in value if isinstance(part, str))), False)
    return value if isinstance(value, str) else str(value)


def method(of: str, name: str, *given: Any, **named: Any) -> Code:
    """`of.name(given)`."""
    return call_of(around("", atom(of), f".{name}"), *given, **named)


def infix(symbol: str, *sides: Any) -> Code:
    """`left + right`, or more of them. The call that has the longest arguments is broken."""
    parts = [atom(_item(side)) for side in sides]
    lengths = [sum(map(len, part.arguments)) if isinstance(part, Code) else 0 for part in parts]
    at = len(parts) - 1 - lengths[::-1].index(max(lengths))
    before = Code("".join([f"{part} {symbol} " for part in parts[:at]]), used(*parts[:at]))
    after = Code("".join([f" {symbol} {part}" for part in parts[at + 1 :]]), used(*parts[at + 1 :]))
    return around(before, parts[at], after)


class Module:
    """Makes calls of a module's functions."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, function: str, *given: Any, **named: Any) -> Code:
        return call_of(self.has(function), *given, **named)

    def has(self, name: str) -> Code:
        """`torch.float32`."""
        return Code(f"{self.name}.{name}", frozenset((self.name,)))


TORCH, F, RT = Module("torch"), Module("F"), Module("rt")


def joined(texts: Sequence[str], between: str = ", ", brackets: str = "") -> Code:
    """Several texts as one that is not broken, in `()` or `[]`."""
    text = between.join(texts)
    return Code(f"{brackets[0]}{text}{brackets[1]}" if brackets else text, used(*texts), bool(brackets))
