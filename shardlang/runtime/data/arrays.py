"""The sources of arrays: `digits`, `mnist`, `numpy`, read whole. Every mistake in a file names the
file and the place.

How examples are ordered and cut is in loader.py, how arrays fit their fields in dataset.py.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardlang.errors import RunError
from shardlang.runtime.data import data_files
from shardlang.runtime.data.dataset import Arrays, Dataset, Origin, path_of
from shardlang.runtime.program import BatchSource

DIGITS = Path(__file__).parents[2] / "data" / "digits.csv.gz"
# Every fifth example is to test. The file is ordered by writer: its last examples as a test would
# be a harder task than the data set is known for (0.90 where this split gives 0.96).
DIGITS_STRIDE = 5
# Mean and deviation of the pixels of mnist's training images, scaled to 0..1.
MNIST_MEAN, MNIST_DEVIATION = 0.1307, 0.3081
_NPY, _ZIP = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")


def _split(source: BatchSource) -> str:
    split = source.arguments.get("split", "train")
    if split not in ("train", "test"):
        raise RunError("SH502", f'`split` of `{source.kind}` is "train" or "test", not "{split}"')
    return str(split)


def read_digits(source: BatchSource, base: Path, like: Dataset | None = None) -> Arrays:
    """digits(split = "train"): image [64] in 0..1, label; 1,437 examples to train, 360 to test."""
    table = np.loadtxt(data_files.text(DIGITS).splitlines(), delimiter=",")
    test = np.arange(len(table)) % DIGITS_STRIDE == 0
    part = test if _split(source) == "test" else ~test
    images = (table[part, :64] / 16.0).astype(np.float32)
    return Arrays(source.fields, {"image": images, "label": table[part, 64].astype(np.int64)}, Origin(DIGITS))


def _idx(path: Path, magic: int, dims: int) -> np.ndarray:
    """An array of bytes in the idx format: magic number, one big-endian size per dim, the bytes."""
    content = data_files.content(path)
    head = 4 + 4 * dims
    if len(content) < head:
        raise RunError("SH502", f"the file ends within its header, after {len(content)} bytes of {head}", file=path)
    found, *shape = struct.unpack(f">{1 + dims}I", content[:head])
    if found != magic:
        fact = f"the file begins with {found}, where {magic} is due: it is no idx file of {dims} dims"
        raise RunError("SH502", fact, file=path)
    if len(content) - head != math.prod(shape):
        fact = f"the header says {' x '.join(map(str, shape))} bytes; there are {len(content) - head}"
        raise RunError("SH502", fact, file=path)
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _either(folder: Path, name: str) -> Path:
    """The packed file, or the unpacked one if only that is there; the case of names is ignored."""
    if not folder.is_dir():
        data_files.require(folder)
        raise RunError("SH502", "this is a file, where a folder is due", file=folder, help=f'mnist("{folder.parent}")')
    there = {each.name.lower(): each for each in folder.iterdir()}
    packed = folder / f"{name}.gz"
    return there.get(packed.name) or there.get(name) or packed


def read_mnist(source: BatchSource, base: Path, like: Dataset | None = None) -> Arrays:
    """mnist("folder", split = "train"): image [1, 28, 28], normalised; label. Files may be .gz."""
    folder = path_of(source, base)
    prefix = "train" if _split(source) == "train" else "t10k"
    pixels = _idx(_either(folder, f"{prefix}-images-idx3-ubyte"), 2051, 3)
    labels = _idx(_either(folder, f"{prefix}-labels-idx1-ubyte"), 2049, 1)
    images = pixels.astype(np.float32)
    images /= 255.0
    images -= MNIST_MEAN
    images /= MNIST_DEVIATION
    return Arrays(source.fields, {"image": images, "label": labels.astype(np.int64)}, Origin(folder))


def read_numpy(source: BatchSource, base: Path, like: Dataset | None = None) -> Arrays:
    """numpy("file.npz", ...): the arrays of an .npz by the fields' names, examples along the first
    dim. A field that is alone may be all of an .npy."""
    path = path_of(source, base)
    begin = data_files.head(path, 8)
    if begin.startswith(_NPY):
        arrays = _only_field(source, path)
    elif begin.startswith(_ZIP):
        arrays = _members(source, path)
    else:
        what = f"the file is neither .npz nor .npy: it begins with {begin!r}" if begin else "the file is empty"
        raise RunError("SH502", what, file=path, help=_saved(source, path))
    return Arrays(source.fields, arrays, Origin(path))


def _saved(source: BatchSource, path: Path) -> str:
    """How a file for the fields is made."""
    listed = ", ".join(f"{field.name}={field.name}" for field in source.fields)
    return f'numpy.savez("{path.with_suffix(".npz").name}", {listed})'


def _only_field(source: BatchSource, path: Path) -> dict[str, np.ndarray]:
    with _reading(path):
        array = np.load(path, allow_pickle=False)
    if len(source.fields) == 1:
        return {source.fields[0].name: array}
    fact = f"the file holds one array {list(array.shape)} of {array.dtype}, and the program declares"
    raise RunError("SH502", f"{fact} {len(source.fields)} fields", file=path, help=_saved(source, path))


def _members(source: BatchSource, path: Path) -> dict[str, np.ndarray]:
    with _reading(path), np.load(path, allow_pickle=False) as archive:
        missing = [field.name for field in source.fields if field.name not in archive]
        if missing:
            there = ", ".join(f"`{name}`" for name in archive.files) or "none"
            what = f"there is no array `{missing[0]}`; there are: {there}"
            raise RunError("SH502", what, file=path, help=_saved(source, path))
        found = {}
        for field in source.fields:
            with _reading(path, f"array `{field.name}`"):
                # What is no array comes as its bytes.
                found[field.name] = np.asarray(archive[field.name])
        return found


@contextlib.contextmanager
def _reading(path: Path, what: str = "the file") -> Iterator[None]:
    """Says of whatever numpy raises for a broken file what is broken. Pickled objects, which could
    run code, are never read."""
    try:
        yield
    except RunError:
        raise
    except OSError as error:
        raise data_files.unreadable(path, error) from None
    except Exception as error:  # of many kinds: zipfile's, zlib's, the tokenizer's, for whatever is broken
        objects = isinstance(error, ValueError) and "allow_pickle" in str(error)
        why = "it holds Python objects" if objects else str(error) or type(error).__name__
        help = "save it as numbers: `array.astype(numpy.float32)`" if objects else "fetch or save it again"
        raise RunError("SH502", f"{what} cannot be read as plain numbers: {why}", file=path, help=help) from None
