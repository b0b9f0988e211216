"""The bytes, text and lines of data files, or why they cannot be had, in words: a `RunError` with
what to type.

A file packed with gzip is known by its content, whatever its name. Each source interprets the
lines."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardlang.errors import RunError
from shardlang.hints.paths import instead, typed

GZIP = b"\x1f\x8b"
BOM, _UTF16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")


# The files that have been asked for since this was emptied: a source's own.
asked: list[Path] = []


def require(path: Path) -> Path:
    """The path itself, where it is a regular file; RunError where it is not."""
    asked.append(path)
    try:
        kind = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if stat.S_ISDIR(kind):
        inside = sorted(each.name for each in path.glob("*") if each.is_file())
        name = f", such as `{inside[0]}`" if inside else ""
        raise RunError("SH502", "this is a folder, where a file is due", file=path, help=f"name a file in it{name}")
    if not stat.S_ISREG(kind):
        raise RunError("SH502", "this is no regular file", file=path, help="write its content to a file, and name that")
    return path


def unreadable(path: Path, error: OSError | ValueError) -> RunError:
    """Why the system does not give a file; a ValueError is that no file can have the name."""
    match error:
        case FileNotFoundError() | ValueError():
            what, help = "the data file is missing", instead(path)
        case PermissionError():
            what, help = "the data file may not be read by this user", f"chmod u+r {typed(path)}"
        case _:
            what, help = f"the data file cannot be read: {(error.strerror or str(error)).lower()}", ""
    return RunError("SH502", what, file=path, help=help)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Says in words why a file cannot be read to its end."""
    help = f"fetch or pack it again; `gzip --test {typed(path)}` checks it"
    try:
        yield
    except EOFError:
        raise RunError("SH502", "the packed file ends too early: it was cut short", file=path, help=help) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise RunError("SH502", f"the packed file is damaged: {error}", file=path, help=help) from None
    except OSError as error:
        raise unreadable(path, error) from None


def head(path: Path, size: int) -> bytes:
    """The first bytes of a file, fewer where it is shorter."""
    with reading(path), require(path).open("rb") as file:
        return file.read(size)


def require_unpacked(path: Path, head: bytes, what: str) -> None:
    """RunError where a file, which begins so, is packed: what it holds is read where it stands."""
    if head.startswith(GZIP):
        fact = f"the file is packed with gzip, and {what} are read where they stand"
        raise RunError("SH502", fact, file=path, help=f"gunzip --keep {typed(path)}")


def content(path: Path) -> bytes:
    """A file's content, unpacked where it is packed with gzip; never empty."""
    with reading(path):
        found = require(path).read_bytes()
        packed = found.startswith(GZIP)
        if packed:
            found = gzip.decompress(found)
    if not found:
        raise RunError("SH502", "the file is empty", file=path, help="name a file that holds examples")
    if path.suffix.lower() == ".gz" and not packed:
        fact = f"the name says gzip, and the content is not: it begins with {found[:8]!r}"
        help = f"fetch it again, or name it as what it is: mv {typed(path)} {typed(path.with_suffix(''))}"
        raise RunError("SH502", fact, file=path, help=help)
    return found


def text(path: Path) -> str:
    """The text of a file in UTF-8, without a byte order mark; lines end with \n."""
    found = content(path)
    if found.startswith(_UTF16):
        help = _converted(path, "UTF-16")
        raise RunError("SH502", "the text is in UTF-16, where UTF-8 is due", file=path, help=help)
    return decoded(path, found.removeprefix(BOM), 1).replace("\r\n", "\n").replace("\r", "\n")


def decoded(path: Path, found: bytes, line: int) -> str:
    """Bytes of a file, from `line` on, as text."""
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        fact = f"the line is no text in UTF-8: it has the byte 0x{found[error.start]:02x}"
        line += found.count(b"\n", 0, error.start)
        raise RunError("SH502", fact, file=path, line=line, help=_converted(path, "LATIN1")) from None


def _converted(path: Path, encoding: str) -> str:
    return f"iconv -f {encoding} -t UTF-8 {typed(path)} > NEW, or save it as UTF-8"
