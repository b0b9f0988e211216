"""Which files shardlang has written itself: those alone does it replace or remove.

Each kind of file tells by what it begins with who wrote it. A path that leads to anything else is
refused, with its name and what to type, before anything is written. An empty file holds nothing,
and may become any kind."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from shardlang.errors import RunError
from shardlang.frozen.records import dataclass

# The second paragraph of every emitted file begins so.
EMITTED_MARK = "Written by shardc from the program and its strategy."
# The first line of a rank's log.
LOG_MARK = "A log of shardlang: the next run in this folder replaces it."
# What the record of a rank's collectives begins with.
RECORD_MARK = b"SHARDREC"
# What the header of weights begins with, after its length: under the names of a module, and as
# `--save-weights` writes them, under the paths of a program.
WEIGHTS_MARK = '{"__metadata__":{"format":"pt","written_by":"shardlang"'
NAMED_MARK = f'{WEIGHTS_MARK},"names":"module"}}'
SAVED_MARK = f"{WEIGHTS_MARK}}}"
# The same, with a record of the words of its data to follow.
CATEGORIES = "categories"
WORDS_MARK = f'{WEIGHTS_MARK},"{CATEGORIES}":'
# What a trace of steps begins with.
TRACE_MARK = '{"written_by":"shardlang",'
TOKENS_MARK = b"SHARDTOK"
# What a file of `shardc predict` ends with: the comment of an archive.
PREDICTED_MARK = b"written by shardc predict"
# Stands in the first lines of every file that starts a job.
JOB_MARK = "Written by shardc launch for the job"
# What files of `shardc import` begin with: the program, its name map.
MODEL_MARK = "## Imported by `shardc import` from"
NAMES_MARK = "# Names of `shardc import`:"
# What the docstring of a Python file of `shardc import --opaque` begins with.
OPAQUE_MARK = "Written by `shardc import --opaque`"
_FIGURES = re.compile(rb'\{"step": \d+, "epoch": \d+[,}]|\{"epoch": \d+(, "step": \d+)?(, "eval\.|\})')
_HEAD = 8192


def _begins(*marks: str | bytes, at: int | None = 0) -> Callable[[Path], bool]:
    """A function that tells whether a file has one of some marks: at a place, or (None) anywhere in
    its first bytes."""
    wanted = tuple(mark.encode() if isinstance(mark, str) else mark for mark in marks)

    def is_own(path: Path) -> bool:
        with path.open("rb") as file:
            head = file.read(_HEAD)
        return any(mark in head for mark in wanted) if at is None else head.startswith(wanted, at)

    return is_own


def _ends(mark: bytes) -> Callable[[Path], bool]:
    """A function that tells whether a file ends with a mark."""

    def is_own(path: Path) -> bool:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - len(mark)))
            return file.read() == mark

    return is_own


def _is_figures(path: Path) -> bool:
    """Each line is of a step or an evaluation; the end of a run may have cut the last short."""
    with path.open("rb") as file:
        while line := file.readline(1 << 20):
            cut_short = line.startswith((b'{"step"', b'{"epoch"')) and not line.endswith(b"\n")
            if _FIGURES.match(line) is None and not cut_short:
                return False
    return True


@dataclass(frozen=True)
class FileKind:
    """A kind of file that shardlang writes. what: in words. option: its name. streams: pipes."""

    what: str
    is_own: Callable[[Path], bool]
    option: str
    streams: bool = False


EMITTED = FileKind("the emitted program", _begins(f"\n{EMITTED_MARK}", at=None), "another folder")
LOG = FileKind("a rank's log", _begins(LOG_MARK), "another folder for --log-dir")
RECORD = FileKind("a rank's collectives", _begins(RECORD_MARK), "another folder for --log-dir")
# A pickled dict, and its first name.
_FLIGHT = _begins(b"\x80\x02}(X\x07\x00\x00\x00version")
FLIGHT = FileKind("the flight recorder of a rank", _FLIGHT, "another folder for --log-dir")
EVENTS = FileKind("events", _begins('{"event": "start", '), "another file for --log", streams=True)
FIGURES = FileKind("figures", _is_figures, "another file for --metrics", streams=True)
WEIGHTS = FileKind("saved weights", _begins(WEIGHTS_MARK, at=8), "another file for --save-weights")
SAVED = FileKind("saved weights", _begins(SAVED_MARK, WORDS_MARK, at=8), "another file for --save-weights")
TRACE = FileKind("a trace", _begins(TRACE_MARK), "another folder for --log-dir")
JOB = FileKind("a file of the job", _begins(JOB_MARK, at=None), "another folder")
COURSE = FileKind("the course of a step", _begins(TRACE_MARK), "another file for --trace", streams=True)
_PAGE = '<meta name="generator" content="shardc report">'
PAGE = FileKind("the page", _begins(_PAGE, at=None), "another file for -o", streams=True)
MACHINE = FileKind("the measured machine", _begins("## Measured by `shardc calibrate`"), "another file for -o")
PROFILE = FileKind("the profile", _begins('{"format": 1, "device": '), "another file for -o")
MODEL = FileKind("the imported program", _begins(MODEL_MARK), "another file for -o")
LOCK = FileKind("the lock of what was verified", _begins('{\n  "shardlang": '), "the file of operators another name")
NAMES = FileKind("the name map", _begins(NAMES_MARK), "another file for -o")
OPAQUE = FileKind("the steps of the module", _begins(f'"""{OPAQUE_MARK}'), "another file for -o")
REPORT = FileKind("the report", _begins('{"imported_from": '), "another file for --report")
PREDICTED = FileKind("what is predicted", _ends(PREDICTED_MARK), "another file for --out")
GENERATED = FileKind("what is generated", _begins('{"generated_by": "shardlang", '), "another file for --out")
TOKENS = FileKind("tokens", _begins(TOKENS_MARK), "another file for -o")


def target(path: Path, kind: FileKind) -> Path:
    """Where to write a file of a kind to `path`: links are followed. RunError if it is in use."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return Path(os.path.realpath(path))
    except OSError as error:
        raise RunError("SH512", f"{kind.what} cannot be written: {error.strerror}", file=path) from None
    if kind.streams and not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        return path
    why = _foreign(path, found.st_mode, kind) if found.st_size or not stat.S_ISREG(found.st_mode) else ""
    if why:
        fact = f"{kind.what} would replace {why}"
        raise RunError("SH512", fact, file=path, help=f"name {kind.option}")
    return Path(os.path.realpath(path))


def _foreign(path: Path, mode: int, kind: FileKind) -> str:
    """Why what is there is not shardlang's to replace; "" where it is."""
    if stat.S_ISDIR(mode):
        return "a folder"
    if not stat.S_ISREG(mode):
        return "something that is no regular file"
    try:
        return "" if kind.is_own(path) else "a file that holds something else"
    except OSError as error:
        return f"a file that cannot be read ({error.strerror})"


def is_own(path: Path, *kinds: FileKind) -> bool:
    """Whether a path is a regular file, no link, of one of the kinds."""
    try:
        return stat.S_ISREG(path.lstat().st_mode) and any(kind.is_own(path) for kind in kinds)
    except OSError:
        return False
