"""Files that commands write: each at once or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click


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
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise click.UsageError(f"`{path}` cannot be written: {(error.strerror or '').lower()}") from error
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
        os.chmod(temporary, path.stat().st_mode & 0o7777 if path.exists() else 0o644)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes emitted files to a folder where nothing is in their way."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        replace(folder / name, text)
