"""Data files -> the facts of them that a checkpoint records, and two such records -> what differs,
in words; without torch."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# A larger file is looked at in so many places, evenly spread, of so many bytes each.
_PLACES, _BYTES = 256, 2**16
# Arguments of data sources that name files; what is in these is recorded.
PATHS = ("path", "source_vocab", "target_vocab")


def facts_of(path: Path) -> list[Any]:
    """The name of a file, its bytes, and a checksum of all of it, or of places in it. OSError where
    it cannot be read."""
    with path.open("rb") as file:
        size, crc = path.stat().st_size, 0
        for place in range(_PLACES):
            file.seek(max(0, size - _BYTES) * place // (_PLACES - 1) if size > _PLACES * _BYTES else place * _BYTES)
            crc = zlib.crc32(file.read(_BYTES), crc)
    return [path.name, size, f"{crc:08x}"]


def differences(here: Sequence[Any], there: Sequence[Any]) -> Iterator[tuple[str, str, str]]:
    """Each file that differs between two records: which, here, there. It may have another name."""
    for number in range(max(len(here), len(there))):
        one, other = (_recorded(each, number) for each in (here, there))
        if one[1:] != other[1:]:
            yield f"data file {number + 1}", _shown(one), _shown(other)


def _recorded(files: Sequence[Any], number: int) -> list[Any]:
    """The facts of a file, or why there are none."""
    found = files[number] if number < len(files) else "none"
    return found if isinstance(found, list) and len(found) == 3 else [found]


def _shown(file: Any) -> str:
    return file[0] if len(file) == 1 else f"{file[0]} of {file[1]} bytes (checksum {file[2]})"


def as_now(arguments: Mapping[str, Any], base: Path, recorded: Any) -> list[Any]:
    """The files of a record as they are now, by a source's arguments in a folder; as they were
    where they cannot be found or read: the run will say so, if it needs them."""
    given = [base / str(arguments[name]) for name in PATHS if name in arguments]
    found = []
    for file in recorded if isinstance(recorded, list) else []:
        path = _place(given, file, len(recorded))
        try:
            found.append(facts_of(path) if path is not None and path.is_file() else file)
        except OSError:
            found.append(file)
    return found


def _place(given: Sequence[Path], file: Any, count: int) -> Path | None:
    """Where a recorded file would be: itself given, or in a folder that is."""
    name = file[0] if isinstance(file, list) and len(file) == 3 and isinstance(file[0], str) else ""
    if not name or Path(name).name != name:
        return None
    if len(given) == count == 1 and not given[0].is_dir():
        return given[0]
    places = [path / name if path.is_dir() else path for path in given]
    return next((path for path in places if path.name == name), None)
