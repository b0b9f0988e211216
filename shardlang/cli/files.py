"""Files that commands write: each at once or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import click

from shardlang.cli.output import ending
from shardlang.disk.locks import synced
from shardlang.disk.overwrite_guard import FileKind, target
from shardlang.sources.files import umask


def claimed(name: str | Path | None, kind: FileKind) -> None:
    """Ends the command where a path (None: there is none) leads to what is none of this kind, or
    to a folder that is not there, before any work is done for it."""
    if name is None:
        return
    path = Path(name)
    if path.is_dir():
        raise click.UsageError(f"`{path}` is a directory")
    require_folder(path)
    with ending(2):
        target(path, kind)


def apart(paths: Mapping[str, Path | None]) -> None:
    """UsageError where two of the files that a command writes, by what they are, are one."""
    seen: dict[str, str] = {}
    for what, path in paths.items():
        real = os.path.realpath(path) if path is not None else ""
        if real and real in seen and not _endless(Path(real)):
            raise click.UsageError(f"`{path}` would be both {seen[real]} and {what}: give each a path of its own")
        seen[real] = what


def _endless(path: Path) -> bool:
    """Whether a path is of a pipe or a device, which takes one after the other."""
    return path.exists() and not path.is_file()


def require_folder(path: Path) -> None:
    """UsageError where a path leads to a folder that is not there."""
    if not path.absolute().parent.is_dir():
        raise click.UsageError(f"`{path}` cannot be written: there is no folder `{path.parent}`")


def replace(path: Path, text: str) -> None:
    """Replaces a file's content, whole or not at all, through symbolic links; keeps its mode.
    A pipe or a device is written to and stays."""
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise click.UsageError(f"`{path}` is a directory")
    if path.exists() and not path.is_file():
        path.write_text(text, "utf-8")
        return
    try:
        temporary = _beside(path, text.encode())
    except OSError as error:
        raise click.UsageError(f"`{path}` cannot be written: {(error.strerror or '').lower()}") from error
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_all(files: Mapping[Path, bytes]) -> None:
    """Replaces the content of several files, all or none, through symbolic links."""
    staged: dict[Path, Path] = {}
    changed: list[tuple[Path, Path | None]] = []
    try:
        for name, content in files.items():
            path = Path(os.path.realpath(name))
            staged[path] = _beside(path, content)
        for path, temporary in staged.items():
            changed.append((path, _beside(path, path.read_bytes()) if path.exists() else None))
            os.replace(temporary, path)
    except BaseException as error:
        _restore(staged, changed)
        if isinstance(error, OSError):
            why = (error.strerror or "").lower()
            raise click.UsageError(f"`{error.filename}` cannot be written, and no file was: {why}") from error
        raise
    for _, before in changed:
        if before is not None:
            before.unlink()


def _restore(staged: Mapping[Path, Path], changed: Sequence[tuple[Path, Path | None]]) -> None:
    """Puts back what was there."""
    for path, before in changed:
        if before is not None:
            os.replace(before, path)
        elif not staged[path].exists():
            path.unlink()
    for temporary in staged.values():
        temporary.unlink(missing_ok=True)


def _beside(path: Path, content: bytes) -> Path:
    """A file with a name of its own beside a path, with the mode that the path has or would get."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as stream:
            stream.write(content)
        os.chmod(name, path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~umask())
        synced(Path(name))
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return Path(name)


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes emitted files to a folder where nothing is in their way."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        replace(folder / name, text)
