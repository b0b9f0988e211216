"""One run at a time writes to one place: what a run writes to, held by locks of the system
(flock(2)).

The system gives a lock back when the last process that has it ends, however it ends: ranks that are
forked have it too. A lock is on a file that shardlang makes: in a folder, or beside a file that is
replaced at the end. That file goes with its run; one that a killed run left behind is free, and is
taken over."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from shardlang.disk.overwrite_guard import FileKind, target
from shardlang.errors import RunError
from shardlang.frozen.records import dataclass
from shardlang.terminal import signals

_MARK = b"a lock of shardlang, "
LOCK, _PART = ".shardlang-lock", ".shardlang-part"
# File systems without locks, and servers that do not answer for theirs.
_LACKING = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def draft_of(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.with_name(f".{path.name}{_PART}")


def synced(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def drafted(path: Path, what: str, code: str = "SH512") -> Iterator[BinaryIO]:
    """A new file to write, which takes the place of `path` once it is whole and on the disk; what a
    killed run left of it is gone by now. RunError where it cannot be written."""
    draft = draft_of(path)
    try:
        file = draft.open("xb")
    except OSError as error:
        raise RunError(code, f"{what} cannot be written: {error.strerror}", file=draft) from None
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        synced(path.parent)
    except OSError as error:
        raise RunError(code, f"{what} cannot be written: {error.strerror}", file=path) from None
    finally:
        draft.unlink(missing_ok=True)


@dataclass(frozen=True)
class _LockPlace:
    """A place that process `owner` holds, to write `what` there: it has locked `file`. beside: that
    is not the place itself. remove: it goes with the lock, or, where it is the place itself, if
    nothing was written to it."""

    owner: int
    what: str
    is_folder: bool
    file: Path
    descriptor: int
    beside: bool
    remove: bool


# By real path, what this process holds: who holds a place may name it again, for the same.
_held: dict[str, _LockPlace] = {}


def require_apart(path: Path, what: str, is_folder: bool = True) -> None:
    """RunError where what is to be written would be in one place with something else that this
    process writes, or has a name of shardlang's own. Nothing needs to be there yet."""
    key = os.path.realpath(path)
    if key.endswith((LOCK, _PART)):
        reason = f"the name is that of a {'lock' if key.endswith(LOCK) else 'draft'} of shardlang"
        raise RunError("SH512", f"{what} cannot be written: {reason}", file=path, help="name another path")
    for place, held in _held.items():
        common = os.path.commonpath((place, key))
        # A file has nothing below it; a folder may be one for several things.
        one = (common == place and not held.is_folder) or (common == key and not is_folder)
        if one and (place, held.what) != (key, what):
            help = "give each of them a path of its own"
            raise RunError("SH512", f"this run would write both {what} and {held.what} here", file=path, help=help)


def held_in(folder: Path) -> list[Path]:
    """The locks of this process in a folder, relative to it."""
    real = Path(os.path.realpath(folder))
    return [path.relative_to(real) for path in map(Path, _held) if real in path.parents]


class Claims(ExitStack):
    """The places that a run writes to, from when they are claimed to the end of the `with`."""

    def __init__(self) -> None:
        super().__init__()
        self._mine: list[str] = []
        self.enter_context(signals.at_once(self._release))
        self.callback(self._release)

    def _release(self) -> None:
        while self._mine:
            _release(_held.pop(self._mine.pop()))

    def folder(self, path: Path, what: str) -> None:
        """A folder, made if absent. RunError where it cannot be, or another run writes to it."""
        require_apart(path, what)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(path, what, error) from None
        self._take(path, path / LOCK, what, is_folder=True)

    def file(self, path: Path, kind: FileKind) -> Path:
        """A file that is replaced once its draft is whole; where that is, links followed. RunError
        where something of the user's is in the way of either, or another run writes to it."""
        path = target(path, kind)
        require_apart(path, kind.what, is_folder=False)
        lock, draft = path.with_name(f".{path.name}{LOCK}"), draft_of(path)
        # What a run that was killed left behind has its lock beside it.
        if os.path.lexists(draft) and str(path) not in _held and not _is_lock(lock):
            raise _in_the_way(draft, kind.what)
        if self._take(path, lock, kind.what):
            draft.unlink(missing_ok=True)
        return path

    def lines(self, path: Path, kind: FileKind) -> Path:
        """A file that is written line by line: it is locked itself."""
        path = target(path, kind)
        require_apart(path, kind.what, is_folder=False)
        if path.is_file() or not path.exists():
            self._take(path, path, kind.what)
        return path

    def _take(self, place: Path, file: Path, what: str, is_folder: bool = False) -> bool:
        """Locks a place by its file; False where this process has it already."""
        key = os.path.realpath(place)
        if key in _held:
            return False
        _held[key] = _locked(place, file, what, is_folder)
        self._mine.append(key)
        return True


def _is_lock(file: Path) -> bool:
    try:
        with file.open("rb") as lock:
            return lock.read(len(_MARK)) == _MARK
    except OSError:
        return False


def _locked(place: Path, file: Path, what: str, is_folder: bool) -> _LockPlace:
    """The lock on a file, made if absent, which names its holder unless it is the place itself."""
    beside = file != place
    while True:
        try:
            made, descriptor = True, os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            made, descriptor = False, _opened(file, place, what)
            if descriptor < 0:
                continue
        except OSError as error:
            raise unwritable(place, what, error) from None
        if beside and not made and os.fstat(descriptor).st_size and not os.pread(descriptor, 64, 0).startswith(_MARK):
            os.close(descriptor)
            raise _in_the_way(file, what)
        _flock(descriptor, place, what, beside)
        if _is_there(file, descriptor):
            break
        # The run that held it has just ended, and its file with it.
        os.close(descriptor)
    ours = made or (beside and os.fstat(descriptor).st_size > 0)
    held = _LockPlace(os.getpid(), what, is_folder, file, descriptor, beside, ours)
    if beside and ours:
        try:
            os.pwrite(descriptor, _MARK + f"held by process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            _release(held)
            raise unwritable(place, what, error) from None
    return held


def _opened(file: Path, place: Path, what: str) -> int:
    """A file that is there; -1 where it has just gone."""
    try:
        return os.open(file, os.O_RDWR | os.O_NONBLOCK | (os.O_NOFOLLOW if file != place else 0))
    except FileNotFoundError:
        return -1
    except OSError as error:
        raise unwritable(place, what, error) from None


def _flock(descriptor: int, place: Path, what: str, beside: bool) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _LACKING:
            text = f"warning: `{place}` is on a file system without locks: see to it that no other run writes there"
            print(text, file=sys.stderr, flush=True)
            return
        who = os.pread(descriptor, 4096, 0).decode(errors="replace") if beside else ""
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise unwritable(place, what, error) from None
        who = who.removeprefix(_MARK.decode()).strip().removeprefix("held by ")
        fact = f"another run writes {what} there" + (f": {who}" if who else "")
        help = "wait until it has ended, or give this run a place of its own"
        raise RunError("SH513", fact, file=place, help=help) from None


def _is_there(file: Path, descriptor: int) -> bool:
    """Whether the name still means the file that is open."""
    try:
        return os.path.samestat(file.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _release(held: _LockPlace) -> None:
    """Removes a lock's file, then gives the lock back: those who wait make a new file."""
    if held.owner == os.getpid() and held.remove:
        with suppress(OSError):
            if held.beside or not os.fstat(held.descriptor).st_size:
                held.file.unlink()
    os.close(held.descriptor)


def unwritable(path: Path, what: str, error: OSError, help: str = "name another path") -> RunError:
    """The error for a path that the system does not let us write."""
    reason = "a file is in the way" if isinstance(error, FileExistsError | NotADirectoryError) else error.strerror
    return RunError("SH512", f"{what} cannot be written: {reason}", file=path, help=help)


def _in_the_way(path: Path, what: str) -> RunError:
    reason = f"{what} cannot be written: something else has this name"
    return RunError("SH512", reason, file=path, help="name another path")
