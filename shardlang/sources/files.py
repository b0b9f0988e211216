"""The texts that a program is made of: the file itself, what it imports from files, the standard
library.

Reads UTF-8 from regular files of a bounded size, and says in words why it cannot. Others interpret
the texts."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import field
from pathlib import Path

from shardlang.frozen.records import dataclass
from shardlang.sources.resources import folder
from shardlang.sources.source import Source

LARGEST = 4_000_000
_STD = "std."
# The name of a program that comes from a pipe.
STDIN = "<stdin>"


def umask() -> int:
    """The permissions that a new file of this process does not get."""
    found = os.umask(0o77)
    os.umask(found)
    return found


class Unreadable(Exception):
    """A file that cannot be read; the message says why, as what goes on after `x.shard`: "is a
    directory".

    brief: the same in two words, and help: what to do where an import names the file; "" where
    there is none."""

    def __init__(self, message: str, brief: str = "", help: str = "") -> None:
        super().__init__(message)
        self.brief, self.help = brief, help


MISSING = Unreadable("does not exist")


def too_large() -> Unreadable:
    help = "cut the file into several, each imported"
    return Unreadable(f"is larger than {LARGEST // 1_000_000} MB", "too large", help)


def read_text(path: Path) -> str:
    """The file's text. Unreadable if missing, no regular file, too large, not UTF-8, forbidden."""
    try:
        # Opened without waiting, so that a pipe or a device is refused instead of read.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise _reason(error) from error
    try:
        kind = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(kind):
            help = 'name a file in it: `use "./folder/layers.shard": Block`'
            raise Unreadable("is a directory", "a directory", help)
        if not stat.S_ISREG(kind):
            raise Unreadable("is no regular file", "not a plain file", "name a plain file, not a pipe or a device")
        with open(descriptor, "rb", closefd=False) as file:
            return decoded(file.read(LARGEST + 1))
    except OSError as error:
        raise _reason(error) from error
    finally:
        os.close(descriptor)


def decoded(content: bytes) -> str:
    """The text of bytes that are meant to be a program."""
    if len(content) > LARGEST:
        raise too_large()
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = f"is not UTF-8 (line {line}, byte {error.start})"
        raise Unreadable(text, "not UTF-8", "save the file as UTF-8") from error


def _reason(error: OSError | ValueError) -> Unreadable:
    match error:
        case FileNotFoundError() | NotADirectoryError() | ValueError():
            return Unreadable(str(MISSING))
        case PermissionError():
            help = "let this user read the file: `chmod u+r FILE`"
            return Unreadable("may not be read by this user", "forbidden", help)
        case _:
            text = f"cannot be read: {(error.strerror or str(error)).lower()}"
            return Unreadable(text, "found, and not to be read", "mend the file or the link to it")


def read_program(name: str) -> Source:
    """The file that a user named; `-` is the standard input."""
    if name == "-":
        return Source(STDIN, decoded(sys.stdin.buffer.read(LARGEST + 1)))
    return Source(name, read_text(Path(name)))


def folder_of(name: str) -> Path:
    """The folder that paths in a file are relative to: the folder that it lies in itself, not that
    of a link to it; for a program from the standard input the current folder."""
    return Path(os.path.realpath(name)).parent


def beneath(home: str, path: str) -> bool:
    """Whether a path from the file `home` leads, links followed, to its folder or below that."""
    folder = os.path.realpath(folder_of(home))
    return os.path.realpath(os.path.join(folder, path)).startswith(os.path.join(folder, ""))


@dataclass
class Files:
    """The files that imports find, each once whatever its name."""

    texts: dict[str, Source] = field(default_factory=dict)

    def add(self, source: Source) -> None:
        """Makes the program itself known, so that an import of it is the same file."""
        self.texts[os.path.realpath(source.name)] = source

    def load(self, importing: str, path: str, is_file: bool) -> Source | Unreadable:
        """The source that `use` names, or why there is none."""
        name, place = self._place(importing, path, is_file)
        if place is None:
            return MISSING
        real = os.path.realpath(place)
        try:
            if real not in self.texts:
                self.texts[real] = Source(name, read_text(place), library=not is_file)
        except Unreadable as reason:
            return reason
        return self.texts[real]

    def _place(self, importing: str, path: str, is_file: bool) -> tuple[str, Path | None]:
        """The name to show and the path to read; None for what cannot be a library."""
        if "\0" in path:
            return path, None  # no file can have this name
        if is_file:
            shown = os.path.normpath(os.path.join(os.path.dirname(importing), path))
            real = os.path.realpath(folder_of(importing) / path)
            return shown if os.path.realpath(shown) == real else real, Path(real)
        parts = path.removeprefix(_STD).split(".")
        file = f"{parts[-2]}.map" if parts[-1] == "map" and len(parts) > 1 else f"{parts[-1]}.shard"
        place = folder("stdlib").joinpath(*parts[: -2 if file.endswith(".map") else -1], file)
        known = path.startswith(_STD) and all(p.isidentifier() for p in parts) and place.is_file()
        return path, place if known else None
