"""The folders of an editor -> the programs in them, whether they are open or not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

# Entries of folders that are looked at: an editor may have a whole disk open.
MOST = 20_000
_INSTALLED = ("node_modules", "site-packages")


class TooManyFiles(Exception):
    """Folders that have more entries than are looked at; the message tells what to do."""


def program_files(folders: Iterable[Path]) -> list[Path]:
    """The `.shard` files in folders and below, but for hidden folders and installed packages."""
    return sorted({path for folder in folders for path in _below(folder)})


def _below(folder: Path) -> Iterator[Path]:
    seen = 0
    for home, inner, files in os.walk(folder):
        inner[:] = [name for name in inner if not name.startswith(".") and name not in _INSTALLED]
        seen += len(inner) + len(files)
        if seen > MOST:
            raise TooManyFiles(f"{folder} has more than {MOST:,} files; open the folder of the programs alone.")
        yield from (Path(home, name) for name in files if name.endswith(".shard"))
