"""Text and click logs: examples against files written by hand, vocabularies, and every mistake with its place."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.runtime.data import token_files
from shardlang.runtime.data.loader import load
from shardlang.runtime.program import Extent


def taken(dataset, source: rt.Source, examples: list[int]) -> dict[str, np.ndarray]:
    """The whole of some examples, field by field."""
    return {
        field.name: dataset.take(
            field, np.array(examples), Extent((0,) * len(field.shape), (len(examples), *field.shape[1:]))
        )
        for field in source.fields
    }


def tokens(seq: int = 4, bound: int | None = None, **arguments) -> rt.Source:
    fields = [rt.Field(name, "i64", (2, seq), bound=bound) for name in ("tokens", "label")]
    return rt.Source("tokens", batch=2, path="*.bin", fields=fields, **arguments)


def test_tokens_are_runs_of_each_file_and_labels_the_tokens_after(tmp_path: Path) -> None:
    np.arange(11, dtype="<u2").tofile(tmp_path / "a.bin")
    np.arange(100, 109, dtype="<u2").tofile(tmp_path / "b.bin")
    dataset = load(tokens(), tmp_path)
    assert dataset.length == 4  # (11 - 1) // 4 and (9 - 1) // 4
    found = taken(dataset, tokens(), [0, 1, 2, 3])
    assert found["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [100, 101, 102, 103], [104, 105, 106, 107]]
    assert found["label"].tolist() == (found["tokens"] + 1).tolist()
    assert "20 in 2 files, 4 examples of 4; 4 tokens" in dataset.notes[0]


def test_a_part_of_the_sequence(tmp_path: Path) -> None:
    np.arange(9, dtype="<u4").tofile(tmp_path / "a.bin")
    source = tokens(dtype="u32")
    dataset = load(source, tmp_path)
    half = Extent((0, 2), (1, 2))
    assert dataset.take(source.fields[0], np.array([1]), half).tolist() == [[6, 7]]
    assert dataset.take(source.fields[1], np.array([1]), half).tolist() == [[7, 8]]


def test_a_token_beyond_the_vocabulary_is_named(tmp_path: Path) -> None:
    np.array([1, 2, 9, 3, 1], "<u2").tofile(tmp_path / "a.bin")
    source = tokens(bound=9)
    with pytest.raises(RunError, match=r"token 2 is 9, and `tokens` must be below 9") as raised:
        taken(load(source, tmp_path), source, [0])
    assert raised.value.file == tmp_path / "a.bin"


def test_text_becomes_a_token_file_and_comes_back(tmp_path: Path) -> None:
    text = "To be, or not to be\nthat is — the question\r\n"
    (tmp_path / "a.txt").write_text(text, newline="")
    count = token_files.write([tmp_path / "a.txt"], tmp_path / "a.bin", token_files.ByteTokenizer())
    assert bytes(token_files.mapped(tmp_path / "a.bin", None).astype(np.uint8)) == text.encode()
    assert count == len(text.encode())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.bin", "a.txt"]


def test_nothing_is_left_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"good line\n\xff\xfe\n")
    with pytest.raises(RunError, match="no text in UTF-8"):
        token_files.write([tmp_path / "a.txt"], tmp_path / "a.bin", token_files.ByteTokenizer())
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"SHARDTOK\1\0", "ends within its header, after 10 bytes"),
        (token_files._HEADER.pack(token_files.MAGIC, 7, 2, 0), "version 7 with 2 bytes a token"),
        (token_files._HEADER.pack(token_files.MAGIC, 1, 2, 5) + b"\0\0", "says 5 tokens of 2 bytes; the file has 26"),
        (b"\1\2\3", "3 bytes are no whole number of 2-byte tokens"),
    ],
)
def test_what_is_wrong_with_a_token_file(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(RunError, match=message):
        load(tokens(), tmp_path)


def test_no_token_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no token file is there") as raised:
        load(tokens(), tmp_path)
    assert "shardc tokens" in raised.value.help


def pairs(src: int = 6, tgt: int = 6, rows: int | None = None, **arguments) -> rt.Source:
    shapes = {"source": src, "target": tgt, "label": tgt}
    fields = [rt.Field(name, "i64", (2, width), bound=rows) for name, width in shapes.items()]
    return rt.Source("parallel_text", batch=2, path="p.txt", fields=fields, **arguments)


TEXT = "le chat dort\tthe cat sleeps.\n\nle chien\tthe dog\nle chat\tthe cat\n"


def test_pairs_have_marks_and_padding(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(TEXT)
    dataset = load(pairs(), tmp_path)
    # French by frequency: le (3), chat (2), chien, dort; English: the (3), cat (2), ".", dog, sleeps.
    found = taken(dataset, pairs(), [0, 1])
    assert found["source"].tolist() == [[4, 5, 7, 2, 0, 0], [4, 6, 2, 0, 0, 0]]
    assert found["target"].tolist() == [[1, 4, 5, 8, 6, 0], [1, 4, 7, 0, 0, 0]]
    assert found["label"].tolist() == [[4, 5, 8, 6, 2, 0], [4, 7, 2, 0, 0, 0]]
    assert dataset.notes == ["p.txt: 3 pairs", "source: a vocabulary of 4 words", "target: a vocabulary of 5 words"]


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(TEXT)
    dataset = load(pairs(src=3, tgt=3, rows=6), tmp_path)
    found = taken(dataset, pairs(3, 3), [0])
    assert found["source"].tolist() == [[4, 5, 3]]
    assert found["target"].tolist() == [[1, 4, 5]]
    assert dataset.notes[1] == (
        "source: a vocabulary of 2 words; 2 of 7 words in the text are unknown; "
        "1 sentence is longer than 2 words and cut there"
    )


def test_eval_takes_the_vocabulary_of_training(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(TEXT)
    training = load(pairs(), tmp_path)
    (tmp_path / "p.txt").write_text("chat le lion\tcat the lion\n")
    found = taken(load(pairs(), tmp_path, training), pairs(), [0])
    assert found["source"].tolist() == [[5, 4, 3, 2, 0, 0]]


def test_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(TEXT)
    (tmp_path / "fr.txt").write_text("dort\nle\n")
    found = taken(load(pairs(source_vocab="fr.txt"), tmp_path), pairs(), [0])
    assert found["source"].tolist() == [[5, 3, 4, 2, 0, 0]]
    with pytest.raises(RunError, match="2 words and 4 marks need 6 numbers, and the model has 5"):
        load(pairs(source_vocab="fr.txt", rows=5), tmp_path)
    (tmp_path / "fr.txt").write_text("dort\nle\ndort\n")
    with pytest.raises(RunError, match="the word `dort` stands on line 1 too") as raised:
        load(pairs(source_vocab="fr.txt"), tmp_path)
    assert raised.value.line == 3


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a\tb\nno tab\n", 2, "it has 0 tabs"),
        ("a\tb\tc\n", 1, "it has 2 tabs"),
        ("a\tb\n\t\nc\t\n", 3, "a side is empty"),
        ("\n", None, "no pair of sentences"),
    ],
)
def test_what_is_wrong_with_a_file_of_pairs(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    (tmp_path / "p.txt").write_text(text)
    with pytest.raises(RunError, match=message) as raised:
        load(pairs(), tmp_path)
    assert raised.value.line == line


def clicks(rows: int | None = 1000, **arguments) -> rt.Source:
    fields = [
        rt.Field("ids", "i64", (2, 39), bound=rows),
        rt.Field("values", "f32", (2, 39)),
        rt.Field("label", "f32", (2, 1)),
    ]
    return rt.Source("criteo", batch=2, path="c.txt", fields=fields, **arguments)


def click(label: str = "1", numbers: dict[int, str] | None = None, categories: dict[int, str] | None = None) -> str:
    cells = [
        label,
        *((numbers or {}).get(i, "") for i in range(13)),
        *((categories or {}).get(i, "") for i in range(26)),
    ]
    return "\t".join(cells)


def test_a_line_of_clicks(tmp_path: Path) -> None:
    lines = [click("1", {0: "3", 1: "-2"}, {0: "05db9164", 25: "c0d61a5c"}), click("0", {}, {1: "05db9164"})]
    (tmp_path / "c.txt").write_text("\n".join(lines))  # the last line without an end
    dataset = load(clicks(), tmp_path)
    assert dataset.length == 2
    found = taken(dataset, clicks(), [1, 0])
    assert found["label"].tolist() == [[0.0], [1.0]]
    np.testing.assert_allclose(found["values"][1, :3], [math.log(4), -math.log(3), 0.0], rtol=1e-6)
    assert (found["values"][:, 13:] == 1).all()
    assert (found["ids"][:, :13] == np.arange(13)).all()
    assert found["ids"][:, 13:].min() >= 13 and found["ids"].max() < 1000
    # The same digits in another field are another category; an empty cell is one of its field.
    assert found["ids"][1, 13] != found["ids"][0, 14]
    assert found["ids"][0, 15] == found["ids"][1, 15]


def test_categories_by_vocabulary(tmp_path: Path) -> None:
    lines = [click(categories={0: "aa"}), click(categories={0: "aa"}), click(categories={0: "bb"})]
    (tmp_path / "c.txt").write_text("\n".join(lines) + "\n")
    source = clicks(threshold=2)
    found = taken(load(source, tmp_path), source, [0, 1, 2])
    # aa, and the empty category of the other 25 fields: seen twice or more. bb has the id of field 0's others.
    assert found["ids"][:, 13].tolist() == [39, 39, 13]
    assert found["ids"][0, 14:].tolist() == list(range(40, 65))
    with pytest.raises(RunError, match="26 categories and 39 fields need 65 ids, and the table has 64 rows"):
        load(clicks(64, threshold=2), tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1\t2\t3", "the line has 3 columns, where 40 are due"),
        (click("2"), "the label is '2', where 0 or 1 is due"),
        (click("1", {4: "1.5"}), "number 5 is '1.5', which is no whole number"),
        (click("1", {}, {3: "xyz"}), "category 4 is 'xyz', which is no hexadecimal number"),
    ],
)
def test_what_is_wrong_with_a_line_of_clicks(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "c.txt").write_text(f"{click()}\n{line}\n")
    with pytest.raises(RunError, match=message) as raised:
        taken(load(clicks(), tmp_path), clicks(), [0, 1])
    assert raised.value.line == 2
