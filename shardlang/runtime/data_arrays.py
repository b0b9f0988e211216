"""The sources that are read whole into arrays: `digits`, `mnist`, `numpy`, `csv`. Every mistake in a file names file
and line.

How examples are ordered and cut is in data.py.
"""

from __future__ import annotations

import gzip
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

from shardlang.runtime.data import Arrays, Dataset, require
from shardlang.runtime.errors import RunError
from shardlang.runtime.program import Field, Source, elements

DIGITS = Path(__file__).parent.parent / "data" / "digits.csv.gz"
# Every fifth example is to test. The file is ordered by writer: its last examples as a test would be a harder task than
# the data set is known for (0.90 where this split gives 0.96).
DIGITS_STRIDE = 5
# Mean and deviation of the pixels of mnist's training images, scaled to 0..1.
MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081


def _bytes(path: Path) -> bytes:
    """A file's content, unpacked where its name ends in .gz."""
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except FileNotFoundError:
        raise RunError(
            "SH502", "the data file is missing", file=path, help="paths are relative to the program's file"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise RunError("SH502", f"the data file cannot be read: {error}", file=path) from None


def _split(source: Source) -> str:
    split = source.arguments.get("split", "train")
    if split not in ("train", "test"):
        raise RunError("SH502", f'`split` of `{source.kind}` is "train" or "test", not "{split}"')
    return str(split)


def read_digits(source: Source, base: Path, like: Dataset | None = None) -> Arrays:
    """digits(split = "train"): image [64] in 0..1, label; 1,437 examples to train, 360 to test."""
    table = _table(DIGITS, _bytes(DIGITS).decode().splitlines(), 0, 65)
    test = np.arange(len(table)) % DIGITS_STRIDE == 0
    part = test if _split(source) == "test" else ~test
    images = (table[part, :64] / 16.0).astype(np.float32)
    return Arrays(source, {"image": images, "label": table[part, 64].astype(np.int64)}, DIGITS)


def _idx(path: Path, magic: int, dims: int) -> np.ndarray:
    """An array of bytes in the idx format: magic number, one big-endian size per dim, the bytes."""
    content = _bytes(path)
    head = 4 + 4 * dims
    if len(content) < head:
        raise RunError("SH502", f"the file ends within its header, after {len(content)} bytes of {head}", file=path)
    found, *shape = struct.unpack(f">{1 + dims}I", content[:head])
    if found != magic:
        raise RunError(
            "SH502", f"the file begins with {found}, where {magic} is due: it is no idx file of {dims} dims", file=path
        )
    if len(content) - head != elements(shape):
        raise RunError(
            "SH502", f"the header says {' x '.join(map(str, shape))} bytes; there are {len(content) - head}", file=path
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _either(folder: Path, name: str) -> Path:
    """The packed file, or the unpacked one where only that is there."""
    packed, plain = folder / f"{name}.gz", folder / name
    return plain if plain.exists() and not packed.exists() else packed


def read_mnist(source: Source, base: Path, like: Dataset | None = None) -> Arrays:
    """mnist("folder", split = "train"): image [1, 28, 28], normalised; label. idx files, .gz or not."""
    folder = base / str(require(source.arguments, "path", "mnist"))
    prefix = "train" if _split(source) == "train" else "t10k"
    pixels = _idx(_either(folder, f"{prefix}-images-idx3-ubyte"), 2051, 3)
    labels = _idx(_either(folder, f"{prefix}-labels-idx1-ubyte"), 2049, 1)
    images = pixels.astype(np.float32)
    images /= 255.0
    images -= MNIST_MEAN
    images /= MNIST_DEVIATION
    return Arrays(source, {"image": images, "label": labels.astype(np.int64)}, folder)


def read_numpy(source: Source, base: Path, like: Dataset | None = None) -> Arrays:
    """numpy("file.npz", ...): the arrays of an .npz by the fields' names, examples along the first dim."""
    path = base / str(require(source.arguments, "path", "numpy"))
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {field.name: archive[field.name] for field in source.fields if field.name in archive}
            missing = [field.name for field in source.fields if field.name not in archive]
            there = ", ".join(f"`{name}`" for name in archive)
    except FileNotFoundError:
        raise RunError(
            "SH502", "the data file is missing", file=path, help="paths are relative to the program's file"
        ) from None
    except (OSError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise RunError("SH502", f"the file is no .npz of plain arrays: {error}", file=path) from None
    if missing:
        raise RunError("SH502", f"there is no array `{missing[0]}`; there are {there}", file=path)
    scalars = [name for name, array in arrays.items() if array.ndim == 0]
    if scalars:
        raise RunError("SH502", f"array `{scalars[0]}` is a single number, not one entry an example", file=path)
    return Arrays(source, arrays, path)


def _numbers(path: Path, line: int, text: str, width: int, delimiter: str) -> list[float]:
    cells = text.split(delimiter)
    if len(cells) != width:
        raise RunError("SH502", f"the line has {len(cells)} values, where {width} are due", file=path, line=line)
    for column, cell in enumerate(cells, 1):
        if not _is_number(cell):
            raise RunError("SH502", f"value {column} is {cell.strip()!r}, which is no number", file=path, line=line)
    return [float(cell) for cell in cells]


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _table(path: Path, lines: list[str], first: int, width: int, delimiter: str = ",") -> np.ndarray:
    """float64 [lines, width] from lines of numbers, those of no text left out."""
    text = [(number, line) for number, line in enumerate(lines[first:], first + 1) if line.strip()]
    try:
        table = (
            np.loadtxt([line for _, line in text], delimiter=delimiter, ndmin=2, comments=None)
            if text
            else np.empty((0, width))
        )
    except ValueError:
        table = np.empty((0, 0))
    if table.shape != (len(text), width):
        # Something is wrong somewhere: go line by line to say where.
        table = np.array([_numbers(path, number, line, width, delimiter) for number, line in text])
    return table


def read_csv(source: Source, base: Path, like: Dataset | None = None) -> Arrays:
    """csv("file.csv", ...): numbers, .gz or not. With a header, a field takes its columns by name (`x`, or `x0`,
    `x1`, ...; `x_0`, `x.0` too); without one, the columns go to the fields in their order.
    """
    path = base / str(require(source.arguments, "path", "csv"))
    try:
        lines = _bytes(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise RunError("SH502", f"the file is no text: {error}", file=path) from None
    if not lines:
        raise RunError("SH502", "the file is empty", file=path)
    delimiter = str(source.arguments.get("delimiter", ","))
    head = [cell.strip().strip('"') for cell in lines[0].split(delimiter)]
    named = bool(source.arguments.get("header", not all(_is_number(cell) for cell in head)))
    columns = _named(source, head, path) if named else _in_order(source, len(head), path)
    table = _table(path, lines, int(named), len(head), delimiter)
    return Arrays(source, {name: table[:, at] for name, at in columns.items()}, path)


def _width(field: Field) -> int:
    return elements(field.shape[1:])


def _in_order(source: Source, width: int, path: Path) -> dict[str, list[int]]:
    due = sum(_width(field) for field in source.fields)
    if due != width:
        raise RunError("SH502", f"the line has {width} values, where the fields need {due}", file=path, line=1)
    columns, start = {}, 0
    for field in source.fields:
        columns[field.name] = list(range(start, start + _width(field)))
        start += _width(field)
    return columns


def _named(source: Source, head: list[str], path: Path) -> dict[str, list[int]]:
    columns = {}
    for field in source.fields:
        at = [i for i, name in enumerate(head) if name == field.name]
        at = at or [
            i
            for i, name in enumerate(head)
            if name.removeprefix(field.name).lstrip("_.[").rstrip("]").isdigit() and name.startswith(field.name)
        ]
        if len(at) != _width(field):
            raise RunError(
                "SH502",
                f"field `{field.name}` needs {_width(field)} columns; the header names {len(at)} of it",
                file=path,
                line=1,
            )
        columns[field.name] = at
    return columns
