"""Python files of the user's own -> the functions in them, each file known by the hash of its text.

A text that has another hash than the program was compiled with is not run. Only what trains,
verifies or binds a program comes here."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from shardlang.errors import RunError
from shardlang.extensions.locks import digest

# By path and the hash of the text, and by that alone: equal texts in two folders are two files, and
# each may read what lies beside it.
_FILES: dict[tuple[str, str], ModuleType] = {}
_MODULES: dict[str, ModuleType] = {}


@dataclass(frozen=True)
class OwnFunction:
    """A function of a file: path from a program's folder, hash of its text, name."""

    file: str
    digest: str
    name: str

    def found(self, base: Path) -> Callable[..., Any]:
        """The function itself. RunError SH619 where the file is another, fails or lacks it."""
        return _named(module(base / self.file, self.digest), self.name)


def load(base: Path, files: Mapping[str, str]) -> None:
    """Loads files, path from `base` -> hash. RunError SH619 where one is not what was compiled, or
    fails."""
    for name, wanted in files.items():
        module(base / name, wanted)


def module(path: Path, wanted: str) -> ModuleType:
    """The module of a file whose text has the hash `wanted`, run once in a process."""
    if (str(path), wanted) in _FILES:
        return _FILES[str(path), wanted]
    try:
        text = path.read_bytes().decode("utf-8").removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError("SH619", f"a file with a function of yours cannot be read: {error}", file=path) from None
    if digest(text) != wanted:
        help = "compile the program again; `shardc verify` looks at what has changed"
        raise RunError("SH619", "the file has changed since the program was compiled", file=path, help=help)
    made = ModuleType(f"own_{wanted[:16]}_{len(_FILES)}")
    made.__file__ = str(path)
    linecache.cache[str(path)] = (len(text), None, text.splitlines(keepends=True), str(path))
    sys.modules[made.__name__] = made
    try:
        exec(compile(text, str(path), "exec"), made.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[made.__name__]
        fact = f"the file cannot be loaded: {type(error).__name__}: {error}"
        raise RunError("SH619", fact, file=path, line=line_of(error, path)) from error
    _FILES[str(path), wanted] = made
    _MODULES.setdefault(wanted, made)
    return made


def function(wanted: str, name: str) -> Callable[..., Any]:
    """A function of a file that has been loaded."""
    return _named(_MODULES[wanted], name)


def _named(made: ModuleType, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] | None = getattr(made, name, None)
    if not callable(found):
        raise RunError("SH619", f"the file has no function `{name}`", file=Path(str(made.__file__)))
    return found


@contextmanager
def calling(code: str, what: str, file: Path) -> Iterator[None]:
    """Says of whatever the user's Python raises what was called, and the line: a RunError of a
    code."""
    try:
        yield
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        said = next(iter(str(error).strip().splitlines()), "")
        fact = f"{what} raises {type(error).__name__}" + (f": {said}" if said else "")
        raise RunError(code, fact[:400], file=file, line=line_of(error, file)) from error


def line_of(error: BaseException, path: Path) -> int | None:
    """The line of the file that an exception came from."""
    if isinstance(error, SyntaxError):
        return error.lineno
    trace, line = error.__traceback__, None
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(path) else line
        trace = trace.tb_next
    return line
