"""Files as people have them: each is read right, or refused with its name, the line or cell, a reason, what to type."""

from __future__ import annotations

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.runtime.data import token_files
from shardlang.runtime.data.loader import load
from shardlang.runtime.program import Extent, SourceField

FEATURES = (SourceField("x", "f32", (2, 2)), SourceField("label", "i64", (2,), bound=3))
LINES = b"1,2,0\n3,4,2\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in helps have paths from the current folder."""
    monkeypatch.chdir(tmp_path)


def csv(path: str = "t.csv", fields=FEATURES, **arguments) -> rt.Source:
    return rt.Source("csv", batch=2, path=path, fields=fields, **arguments)


def numpy(path: str = "a.npz", fields=FEATURES) -> rt.Source:
    return rt.Source("numpy", batch=2, path=path, fields=fields)


def read(source: rt.Source, base: Path) -> dict[str, list]:
    """All that a source holds, by field."""
    data = load(source, base)
    examples = np.arange(data.length)
    return {
        f.name: data.take(f, examples, Extent((0,) * len(f.shape), (data.length, *f.shape[1:]))).tolist()
        for f in source.fields
    }


def refused(source: rt.Source, base: Path) -> RunError:
    """The one error, which names a file and what to do; no other exception."""
    with pytest.raises(RunError) as caught:
        read(source, base)
    error = caught.value
    assert error.code == "SH502" and error.file is not None and error.help, str(error)
    assert "Errno" not in error.message and "object at 0x" not in error.message
    return error


# What a file holds that gives x = [[1, 2], [3, 4]], label = [0, 2].
RIGHT: dict[str, tuple[bytes, dict[str, object]]] = {
    "plain": (LINES, {}),
    "byte order mark": (b"\xef\xbb\xbf" + LINES, {}),
    "byte order mark and names": (b"\xef\xbb\xbfx0,x1,label\n" + LINES, {}),
    "CRLF": (LINES.replace(b"\n", b"\r\n"), {}),
    "CR alone": (LINES.replace(b"\n", b"\r"), {}),
    "no final newline": (LINES[:-1], {}),
    "blank lines, before and between": (b"\n\nx0,x1,label\n\n1,2,0\n  \n3,4,2\n\n", {}),
    "spaces": (b" 1 , 2, 0\n3 ,4 , 2 \n", {}),
    "quotes": (b'"1","2","0"\n3,4,2\n', {}),
    "names in quotes": (b'"x0","x1","label"\n1,2,0\n3,4,2\n', {}),
    "a text column": (b"comment,x0,x1,label\nnote,1,2,0\nnote,3,4,2\n", {}),
    "a text column with commas": (b'x0,x1,comment,label\n1,2,"a, ""b""",0\n3,4,c,2\n', {}),
    "a text column with ends of lines": (b'comment,x0,x1,label\n"a\nb",1,2,0\n"\n\n",3,4,2\n', {}),
    "a text column with other separators": ("t,x0,x1,label\na\u2028\x85\x0c,1,2,0\nb,3,4,2\n".encode(), {}),
    "an end of line in a name": (b'"a\nb",x0,x1,label\nu,1,2,0\nv,3,4,2\n', {}),
    "missing values in a column that no field takes": (b"x0,other,x1,label\n1,,2,0\n3,,4,2\n", {}),
    "columns in another order": (b"label,x1,x0\n0,2,1\n2,4,3\n", {}),
    "numbers of columns that text would sort otherwise": (b"x10,x9,label\n2,1,0\n4,3,2\n", {}),
    "a long cell in a column that no field takes": (
        b'x0,other,x1,label\n1,"' + b"w" * 200_000 + b'",2,0\n3,,4,2\n',
        {},
    ),
    "empty tabs in columns that no field takes": (
        b"x0\tx1\tlabel\ta\tb\n1\t2\t0\t\t\n3\t4\t2\t\t\n",
        {"delimiter": "\t"},
    ),
    "an unused column twice": (b"a,a,x0,x1,label\n9,9,1,2,0\n9,9,3,4,2\n", {}),
    "semicolons": (b"1;2;0\n3;4;2\n", {"delimiter": ";"}),
    "tabs": (b"x0\tx1\tlabel\n1\t2\t0\n3\t4\t2\n", {"delimiter": "\t"}),
    "packed under another name": (gzip.compress(LINES), {}),
    "whole numbers with a point": (b"1.0,2.0,0.0\n3.0,4.0,2.0\n", {}),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_csv_is_read(tmp_path: Path, name: str) -> None:
    content, arguments = RIGHT[name]
    (tmp_path / "t.csv").write_bytes(content)
    assert read(csv(**arguments), tmp_path) == {"x": [[1, 2], [3, 4]], "label": [0, 2]}


@pytest.mark.parametrize("name", ["A.CSV.GZ", "a.csv.Gz", "a.csv.gz"])
def test_a_packed_csv_is_read_whatever_its_capitals(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"\xef\xbb\xbf" + LINES))
    assert read(csv(name), tmp_path)["label"] == [0, 2]


# Content, message, line, and a part of the help.
WRONG: dict[str, tuple[bytes, str, int | None, str]] = {
    "empty": (b"", "the file is empty", None, ""),
    "no text": (b"\n \n", "the file has no line of text", None, ""),
    "names alone": (b"x0,x1,label\n", "`csv` finds no example", None, ""),
    "latin-1": ("x0,x1,label\n1,2,0\n3,é,2\n".encode("latin-1"),
                "the line is no text in UTF-8: it has the byte 0xe9", 3, "iconv -f LATIN1 -t UTF-8 t.csv"),
    "UTF-16": (LINES.decode().encode("utf-16"), "the text is in UTF-16, where UTF-8 is due", None, "iconv -f UTF-16"),
    "packed and cut short": (gzip.compress(LINES)[:-9], "the packed file ends too early: it was cut short", None,
                             "gzip --test t.csv"),
    "an open quote": (b'a,x0,x1,label\nb,1,2,0\n"c,3,4,2\n',
                      "the line cannot be cut into cells: unexpected end of data", 3, "written twice"),
    "a cell of text": (b"1,2,0\n\n3,x,1\n", "value 2 is 'x', which is no number", 3, "a number there"),
    "a missing value": (b"x0,label,x1\n1,0,2\n3,2,\n", "value 3 is '', which is no number", 3, "a number there"),
    "a cell with a comma": (b'x0,x1,label\n1,"2,5",0\n', "value 2 is '2,5', which is no number", 2, "a number there"),
    "too few": (b"t,x0,x1,label\na,1,2,0\nb,3,4\n", "the line has 3 values, where 4 are due", 3, "quotes"),
    "too many": (b"t,x0,x1,label\na,1,2,0\nb,c,3,4,2\n", "the line has 5 values, where 4 are due", 3, "quotes"),
    "half a number": (b"1,2,0\n\n3,4,0.5\n", "`label` must be whole numbers; the line has 0.5 in column 3", 3,
                      "without i64"),
    "no number": (b"1,2,0\n3,4,nan\n", "`label` must be whole numbers; the line has nan in column 3", 2, "without i64"),
    "infinite": (b"1,2,0\n3,4,inf\n",
                 "`label` must be from -9007199254740991 to 9007199254740991 to be exact; the line has inf in column 3",
                 2, "npz"),
    "past the end": (b"x0,x1,label\n1,2,0\n\n3,4,3\n",
                     "`label` must be from 0 to 2; the line has 3 in column `label`", 4,
                     "where 3 is right, declare `label` with `< 4`; else mend the number, or leave the example out"),
    "negative": (b"1,2,0\n3,4,-100\n", "`label` must be from 0 to 2; the line has -100 in column 3", 2,
                 "mend the number, or leave the example out; where it marks a label that is not to count, the loss "
                 "that reads it takes `ignore_index = -100`"),
    "beyond float32": (b"1,2,0\n3,1e39,2\n",
                       "`x` is f32, whose numbers go up to 3.4e+38; the line has 1e+39 in column 2",
                       2, "scale"),
    "beyond float64": (b"1,2,0\n3,-1e400,2\n",
                       "value 2 is -1e400, which is beyond the largest number of f64", 2, "`inf`"),
    "Python's underscores": (b'1,2,0\n3,"1_000",2\n', "value 2 is '1_000', which is no number", 2, "a number there"),
    "a line of empty cells": (b"x0,x1,label\n1,2,0\n,,\n3,4,2\n", "value 1 is '', which is no number", 3, "a number"),
    "capitals": (b"X0,X1,Label\n1,2,0\n", "field `x` needs 2 columns; the header names 0 of it", 1, "`X0`"),
    "other names": (b"a,b,label\n1,2,0\n", "field `x` needs 2 columns; the header names 0 of it", 1,
                    "the columns are `a`, `b`, `label`"),
    "a number twice": (b"x0,x_0,label\n1,2,0\n", "two columns are number 0 of `x`", 1, "rename"),
    "a name twice": (b"x0,x1,label,label\n1,2,0,1\n", "field `label` needs 1 column; the header names 2 of it", 1,
                     "the columns are"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_csv_is_refused(tmp_path: Path, name: str) -> None:
    content, message, line, help = WRONG[name]
    (tmp_path / "t.csv").write_bytes(content)
    error = refused(csv(), tmp_path)
    assert (error.message, error.line, error.file) == (message, line, tmp_path / "t.csv")
    assert help in error.help


def test_whole_numbers_beyond_float64_are_not_rounded(tmp_path: Path) -> None:
    fields = [SourceField("n", "i64", (2,))]
    (tmp_path / "t.csv").write_text("n\n-9007199254740991\n9007199254740993\n")
    assert refused(csv(fields=fields), tmp_path).line == 3
    np.savez(tmp_path / "a.npz", n=np.array([1, 9007199254740993]))
    assert read(numpy(fields=fields), tmp_path) == {"n": [1, 9007199254740993]}


# --- files that are none


def kinds(path: str) -> list[rt.Source]:
    """Every source that reads a file, of this name."""
    ids = [
        SourceField("source", "i64", (2, 3)),
        SourceField("target", "i64", (2, 3)),
        SourceField("label", "i64", (2, 3)),
    ]
    clicks = [
        SourceField("ids", "i64", (2, 39), bound=50),
        SourceField("values", "f32", (2, 39)),
        SourceField("label", "f32", (2, 1)),
    ]
    runs = [SourceField("tokens", "i64", (2, 4)), SourceField("label", "i64", (2, 4))]
    return [
        csv(path), numpy(path), rt.Source("parallel_text", batch=2, path=path, fields=ids),
        rt.Source("criteo", batch=2, path=path, fields=clicks), rt.Source("tokens", batch=2, path=path, fields=runs),
    ]  # fmt: skip


@pytest.mark.parametrize("source", kinds("f"), ids=lambda s: s.kind)
def test_what_is_no_file_is_refused(tmp_path: Path, source: rt.Source, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f"
    none = "no token file is there" if source.kind == "tokens" else "the data file is missing"
    assert none in refused(source, tmp_path).message
    path.mkdir()
    assert refused(source, tmp_path).message == "this is a folder, where a file is due"
    (path / "train.txt").touch()
    assert "`train.txt`" in refused(source, tmp_path).help
    (path / "train.txt").unlink()
    path.rmdir()
    os.mkfifo(path)
    assert refused(source, tmp_path).message == "this is no regular file"
    path.unlink()
    path.touch()
    assert refused(source, tmp_path)

    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    path.write_bytes(LINES)
    monkeypatch.setattr(Path, "open", forbidden)
    monkeypatch.setattr(Path, "read_bytes", forbidden)
    error = refused(source, tmp_path)
    assert (error.message, error.help) == ("the data file may not be read by this user", "chmod u+r f")


@pytest.mark.parametrize("source", kinds("a\0b"), ids=lambda s: s.kind)
def test_a_name_that_no_file_can_have(tmp_path: Path, source: rt.Source) -> None:
    refused(source, tmp_path)


# --- arrays


def test_one_array_is_the_one_field(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert read(numpy("x.npy", FEATURES[:1]), tmp_path) == {"x": [[1, 2], [3, 4]]}
    error = refused(numpy("x.npy"), tmp_path)
    assert error.message == "the file holds one array [2, 2] of float64, and the program declares 2 fields"
    assert error.help == 'numpy.savez("x.npz", x=x, label=label)'


LABEL = np.array([0, 2])
GOOD: dict[str, np.ndarray] = {
    "Fortran": np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]),
    "big-endian": np.array([[1, 2], [3, 4]], ">f8"),
    "big-endian whole": np.array([[1, 2], [3, 4]], ">i2"),
    "half": np.array([[1, 2], [3, 4]], np.float16),
    "unsigned": np.array([[1, 2], [3, 4]], np.uint64),
    "a dim of one": np.array([[[1], [2]], [[3], [4]]], np.float32),
}


@pytest.mark.parametrize("name", GOOD)
def test_an_array_is_read(tmp_path: Path, name: str) -> None:
    for label in (LABEL, LABEL.astype(">i4"), LABEL.astype(np.uint8), LABEL.astype(float)):
        np.savez(tmp_path / "a.npz", x=GOOD[name], label=label)
        assert read(numpy(), tmp_path) == {"x": [[1, 2], [3, 4]], "label": [0, 2]}


X = np.zeros((2, 2))
BAD: dict[str, tuple[dict[str, np.ndarray], str]] = {
    "text": ({"x": np.array([["a", "b"]] * 2), "label": LABEL}, "`x` holds text (<U1), where f32 is due"),
    "complex": ({"x": X * 1j, "label": LABEL}, "`x` holds complex numbers (complex128), where f32 is due"),
    "dates": ({"x": X.astype("M8[s]"), "label": LABEL}, "`x` holds dates or times (datetime64[s]), where f32 is due"),
    "records": ({"x": np.zeros(2, "f4,f4"), "label": LABEL}, "`x` holds records or raw bytes"),
    "one number": ({"x": X, "label": np.array(1)}, "array `label` is a single number, not one entry an example"),
    "another shape": ({"x": np.zeros((2, 3)), "label": LABEL}, "an example of `x` has shape [3], where the program"),
    "nan": ({"x": X, "label": np.array([0, np.nan])}, "`label` must be whole numbers; example 1 has nan"),
    "infinite": ({"x": X, "label": np.array([0, np.inf])}, "to be exact; example 1 has inf"),
    "past int64": ({"x": X, "label": np.array([0, 2**63], np.uint64)}, "example 1 has 9223372036854775808"),
    "past the end": ({"x": X, "label": np.array([3, 0])}, "`label` must be from 0 to 2; example 0 has 3"),
    "beyond float32": ({"x": np.array([[0, 0], [-1e300, np.inf]]), "label": LABEL}, "example 1 has -1e+300 at [0]"),
    "unequal": ({"x": X, "label": np.zeros(3, int)}, "the fields are not equally long: `x` has 2, `label` has 3"),
    "no examples": ({"x": np.zeros((0, 2)), "label": np.zeros(0, int)}, "`numpy` finds no example"),
    "other names": ({"X": X, "label": LABEL}, "there is no array `x`; there are: `X`, `label`"),
    "none": ({}, "there is no array `x`; there are: none"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_array_is_refused(tmp_path: Path, name: str) -> None:
    arrays, message = BAD[name]
    np.savez(tmp_path / "a.npz", **arrays)
    assert message in refused(numpy(), tmp_path).message


def test_whole_types_are_not_wrapped_around(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", n=np.array([1, 2**40]), b=np.array([0, 2]))
    error = refused(numpy(fields=[SourceField("n", "i32", (2,))]), tmp_path)
    assert "from -2147483648 to 2147483647" in error.message and "example 1 has 1099511627776" in error.message
    assert (
        "`b` must be 0 or 1; example 1 has 2"
        in refused(numpy(fields=[SourceField("b", "bool", (2,))]), tmp_path).message
    )


def test_dims_in_another_order_are_not_taken_for_the_same(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=np.zeros((2, 8, 8, 3)), flat=np.zeros((2, 192)))
    assert "moveaxis" in refused(numpy(fields=[SourceField("image", "f32", (2, 3, 8, 8))]), tmp_path).help
    assert len(read(numpy(fields=[SourceField("flat", "f32", (2, 3, 8, 8))]), tmp_path)["flat"]) == 2
    assert len(read(numpy(fields=[SourceField("image", "f32", (2, 192))]), tmp_path)["image"]) == 2


class _Runs:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def test_pickled_objects_are_never_read(tmp_path: Path) -> None:
    objects = np.array([_Runs(tmp_path / "ran")] * 2, dtype=object)
    np.savez(tmp_path / "a.npz", x=objects, label=LABEL)
    np.save(tmp_path / "x.npy", objects, allow_pickle=True)
    (tmp_path / "p.npz").write_bytes(objects.dumps())
    assert "array `x` cannot be read as plain numbers: it holds Python" in refused(numpy(), tmp_path).message
    assert "it holds Python objects" in refused(numpy("x.npy", FEATURES[:1]), tmp_path).message
    assert "neither .npz nor .npy" in refused(numpy("p.npz"), tmp_path).message
    assert not (tmp_path / "ran").exists()


def test_broken_archives_are_refused(tmp_path: Path) -> None:
    """Every byte of the places that matter changed, and every length: read, or refused in words."""
    np.savez(tmp_path / "a.npz", x=np.array([[1.0, 2.0], [3.0, 4.0]]), label=LABEL)
    whole = (tmp_path / "a.npz").read_bytes()
    rng = np.random.default_rng(0)
    for trial in range(300):
        content = bytearray(whole[: rng.integers(1, len(whole))] if trial % 3 == 0 else whole)
        content[int(rng.integers(len(content)))] = int(rng.integers(256))
        (tmp_path / "b.npz").write_bytes(content)
        try:
            read(numpy("b.npz"), tmp_path)
        except RunError as error:
            assert error.code == "SH502" and error.file is not None


# --- the other sources


def idx(path: Path, array: np.ndarray, magic: int) -> None:
    content = struct.pack(f">{1 + array.ndim}I", magic, *array.shape) + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix.lower() == ".gz" else content)


def test_mnist_as_it_is_found(tmp_path: Path) -> None:
    fields = [SourceField("image", "f32", (2, 1, 28, 28)), SourceField("label", "i64", (2,), bound=10)]
    source = rt.Source("mnist", batch=2, path=".", fields=fields)
    assert "missing" in refused(source, tmp_path).message
    idx(tmp_path / "TRAIN-IMAGES-IDX3-UBYTE.GZ", np.zeros((2, 28, 28)), 2051)
    idx(tmp_path / "train-labels-idx1-ubyte", np.array([1, 9]), 2049)
    assert read(source, tmp_path)["label"] == [1, 9]
    idx(tmp_path / "train-labels-idx1-ubyte", np.array([1, 10]), 2049)
    assert "`label` must be from 0 to 9; example 1 has 10" in refused(source, tmp_path).message
    named = rt.Source("mnist", batch=2, path="train-labels-idx1-ubyte", fields=fields)
    assert refused(named, tmp_path).message == "this is a file, where a folder is due"


def test_pairs_as_they_are_found(tmp_path: Path) -> None:
    source = kinds("f")[2]
    plain = b"la vie\tlife\nun chat\ta cat\n"
    (tmp_path / "f").write_bytes(plain)
    expected = read(source, tmp_path)
    for content in (b"\xef\xbb\xbf" + plain, plain.replace(b"\n", b"\r\n"), plain[:-1], gzip.compress(plain)):
        (tmp_path / "f").write_bytes(content)
        assert read(source, tmp_path) == expected
    (tmp_path / "f").write_bytes(plain + b"\xe9t\xe9\tsummer\n")
    assert refused(source, tmp_path).line == 3
    (tmp_path / "f").write_bytes(plain)
    (tmp_path / "words").write_bytes(b"\xef\xbb\xbfchat\r\nla\r\nun\r\nvie\r\n")
    known = rt.Source("parallel_text", batch=2, path="f", source_vocab="words", fields=source.fields)
    assert read(known, tmp_path)["source"] == expected["source"]
    (tmp_path / "words").write_bytes(b"un\nch\xe2t\n")
    assert refused(known, tmp_path).line == 2


def clicks() -> list[bytes]:
    return [b"\t".join([str(i % 2).encode(), *[b"7"] * 13, *[b"0a"] * 26]) for i in range(2)]


def test_clicks_as_they_are_found(tmp_path: Path) -> None:
    source = kinds("f")[3]
    plain = b"\n".join(clicks()) + b"\n"
    (tmp_path / "f").write_bytes(plain)
    expected = read(source, tmp_path)
    for content in (b"\xef\xbb\xbf" + plain, plain.replace(b"\n", b"\r\n"), plain[:-1]):
        (tmp_path / "f").write_bytes(content)
        assert read(source, tmp_path) == expected
    (tmp_path / "f").write_bytes(gzip.compress(plain))
    assert refused(source, tmp_path).help == "gunzip --keep f"
    (tmp_path / "f").write_bytes(b"label" + plain[1:])
    error = refused(source, tmp_path)
    assert (error.line, error.message) == (1, "the label is 'label', where 0 or 1 is due")


def test_tokens_as_they_are_found(tmp_path: Path) -> None:
    source, path = kinds("*.bin")[4], tmp_path / "a.bin"
    folder = tmp_path / "[my] data"
    folder.mkdir()
    for base in (tmp_path, folder):
        np.arange(9, dtype="<u2").tofile(base / "a.bin")
        assert read(source, base)["label"] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    path.write_text("To be, or not to be, that is the question.\n")
    assert "shardc tokens a.bin -o" in refused(source, tmp_path).help
    path.write_bytes(gzip.compress(bytes(99)))
    assert "gunzip" in refused(source, tmp_path).help
    with path.open("wb") as file:
        np.save(file, np.arange(99))
    assert "tofile" in refused(source, tmp_path).help
    np.arange(4, dtype="<u2").tofile(path)
    error = refused(source, tmp_path)
    assert error.message == "an example is 4 tokens and the one after them; the longest file has 4"
    assert error.help == "a longer text, or `seq` at most 3"


def test_text_of_any_make_becomes_the_same_tokens(tmp_path: Path) -> None:
    def tokens(content: bytes) -> list[int]:
        (tmp_path / "t").write_bytes(content)
        token_files.write([tmp_path / "t"], tmp_path / "t.bin", token_files.ByteTokenizer())
        return token_files.mapped(tmp_path / "t.bin", None).tolist()

    plain = "Être, ou\nne pas être".encode()
    assert tokens(plain) == tokens(b"\xef\xbb\xbf" + plain) == tokens(gzip.compress(plain)) == list(plain)
    for content, message in ((b"a\nb\xe9\n", "0xe9"), (gzip.compress(plain)[:-9], "cut short")):
        with pytest.raises(RunError, match=message):
            tokens(content)
    assert not (tmp_path / "t.bin.part").exists()


def test_labels_that_uses_ignore_are_no_mistake(tmp_path: Path) -> None:
    label = SourceField("label", "i64", (2,), bound=3, ignored=(-100,))
    (tmp_path / "t.csv").write_text("label\n2\n-100\n")
    assert read(csv(fields=[label]), tmp_path) == {"label": [2, -100]}
    (tmp_path / "t.csv").write_text("label\n-100\n2\n-1\n")
    error = refused(csv(fields=[label]), tmp_path)
    fact = "`label` must be from 0 to 2, or -100; the line has -1 in column `label`"
    assert (error.message, error.line) == (fact, 4)
