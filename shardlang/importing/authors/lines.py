"""The Python lines that a step comes from -> the names that their statements give."""

from __future__ import annotations

import ast
import contextlib
import functools
import linecache
import re
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx.experimental import proxy_tensor

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')
_FORWARD = "forward"
# Functions that only call what they are put around.
_AROUND = ("wrapper", "wrapped_func", "inner", "__call__")


@dataclass(frozen=True)
class AuthorLine:
    """A line that runs when a step is made. names: what its statement assigns to, "" for what has
    no name; () where it assigns nothing. reads: the names in it."""

    file: str
    number: int
    names: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()

    @property
    def wish(self) -> Wish | None:
        """The name, if there is one alone."""
        name = self.names[0] if len(self.names) == 1 else ""
        return Wish(name, name in self.reads) if name else None


@dataclass(frozen=True)
class Wish:
    """A name that a line gives. again: the line reads what had the name before."""

    name: str
    again: bool = False


# The lines of one `forward`: its own, then those of the functions that it calls.
Level = tuple[AuthorLine, ...]


@contextlib.contextmanager
def whole_stacks() -> Iterator[None]:
    """Lets torch.export keep the lines of functions that a `forward` calls, where it can be told:
    names alone depend on them."""
    kind: Any = getattr(proxy_tensor, "_ModuleStackTracer", None)
    if not hasattr(kind, "_filter_traceback_frames"):
        yield
        return
    own = vars(kind).get("_filter_traceback_frames")
    kind._filter_traceback_frames = lambda _, stack: traceback.StackSummary.from_list(_kept(stack))
    try:
        yield
    finally:
        if own is None:
            del kind._filter_traceback_frames
        else:
            kind._filter_traceback_frames = own


def _kept(stack: Any) -> list[Any]:
    """The frames of a stack from the first `forward` on; of torch's those of a `forward`, and the
    first that others call."""
    found: list[Any] = []
    theirs = True
    for frame in stack:
        torchs, begins = is_torch(frame.filename), _begins(frame.filename, frame.name)
        if (found or begins) and (begins or not (torchs and theirs)):
            found.append(frame)
        theirs = torchs
    return found


def _begins(file: str, function: str) -> bool:
    """Whether a frame is the `forward` of a module; what traces has such names too."""
    return function == _FORWARD and (not is_torch(file) or "/torch/nn/" in file)


def is_torch(file: str) -> bool:
    return "/torch/" in file


def frames(stack: str) -> list[tuple[str, int, str]]:
    """File, line and function of each frame, outermost first."""
    return [(file, int(line), function) for file, line, function in _FRAME.findall(stack)]


def place_of(stack: str) -> tuple[str, str]:
    """`file.py:12` and the text of the innermost line of a `forward` outside of torch."""
    found = [(file, line) for file, line, function in frames(stack) if function == _FORWARD and not is_torch(file)]
    if not found:
        return "a line of torch", ""
    file, line = found[-1]
    return f"{file.rsplit('/', 1)[-1]}:{line}", linecache.getline(file, line).strip()


class Lines:
    """Reads statements of source files, each once."""

    def __init__(self) -> None:
        self._files: dict[str, Mapping[int, AuthorLine]] = {}

    def levels(self, stack: str) -> tuple[Level, ...]:
        """The lines of each `forward` of a stack, outermost first; () for one of torch."""
        found: list[list[AuthorLine]] = []
        inside = False
        for file, number, function in frames(stack):
            begins = _begins(file, function)
            if begins:
                found.append([])
            inside = not is_torch(file) and (inside or begins)
            if inside and function not in _AROUND:
                found[-1].append(self._line(file, number))
        return tuple(map(tuple, found))

    def _line(self, file: str, number: int) -> AuthorLine:
        if file not in self._files:
            linecache.checkcache(file)
            self._files[file] = _statements(file, "".join(linecache.getlines(file)))
        return self._files[file].get(number) or AuthorLine(file, number)


@functools.lru_cache(64)
def _statements(file: str, text: str) -> Mapping[int, AuthorLine]:
    """The lines of a file that assign anything: all lines of such a statement are its first."""
    found: dict[int, AuthorLine] = {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target: ast.expr = node.targets[0]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            target = node.target
        else:
            continue
        each = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        reads = {one.id for one in ast.walk(node.value or target) if isinstance(one, ast.Name)}
        reads |= {one.id for one in each if isinstance(node, ast.AugAssign) and isinstance(one, ast.Name)}
        line = AuthorLine(file, node.lineno, tuple(map(_name, each)), frozenset(reads))
        found.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), line))
    return found


def _name(target: ast.expr) -> str:
    """A plain name; of one that means nothing, as `_`, none."""
    plain = isinstance(target, ast.Name) and target.id.isascii() and target.id.strip("_")
    return target.id if plain and isinstance(target, ast.Name) else ""
