"""Words of csv data: the numbers that each form gives, against Python's csv module and a Counter; files that do not
fit; a run on other ranks, resumed and used to predict."""

from __future__ import annotations

import csv
import gzip
import json
import random
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.runtime.data.csv_columns import Table
from shardlang.runtime.data.identity import identity
from shardlang.runtime.data.loader import load
from tests.cli.test_run import shardc

POOL = ["red", "green", "a, b", 'say ""', "", "blå", "two\nlines", "Red", "日本", "12", "-0.5e3", "#x"]


def words(name: str, how: rt.Words, columns: int = 1) -> rt.Field:
    return rt.Field(name, "i64", (2, columns) if columns > 1 else (2,), bound=10**6, words=how)


def source(*fields: rt.Field, **given: object) -> rt.Source:
    return rt.Source("csv", batch=2, path="t.csv", fields=fields, **given)


def read(found: rt.Source, base: Path, like: Table | None = None) -> Table:
    table = load(found, base, like)
    assert isinstance(table, Table)
    return table


def written(path: Path, seed: int, pool: list[str], rows: int = 200, delimiter: str = ",") -> list[dict[str, str]]:
    """A file with columns x, a, b, c0, c1, as its rows come back from Python's csv module."""
    drawn = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, delimiter=delimiter)
        out.writerow(["x", "a", "c1", "b", "c0"])
        for row in range(rows):
            out.writerow([row, *(drawn.choice(pool[: drawn.randint(1, len(pool))]) for _ in range(4))])
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


# Without quotes the lines are split at once, with some by the csv module.
@pytest.mark.parametrize("pool", [POOL, ["red", "green", "", "blå", "Red", "12", "日本"]])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_numbers_of_words_are_those_of_a_counter(tmp_path: Path, pool: list[str], delimiter: str) -> None:
    rows = written(tmp_path / "t.csv", 3, pool, delimiter=delimiter)
    shared = rt.Words("towns", most=3, unknown=True)
    fields = (
        rt.Field("x", "f32", (2,)), words("a", shared), words("b", rt.Words("b", hashed=7)), words("c", shared, 2),
    )  # fmt: skip
    table = read(source(*fields, delimiter=delimiter), tmp_path)
    assert table.arrays["x"].tolist() == list(range(200))
    counts = Counter(row[name] for row in rows for name in ("a", "c0", "c1"))
    first = sorted(counts, key=lambda word: (-counts[word], word))[:3]
    number = {word: at for at, word in enumerate(first)}
    assert table.arrays["a"].tolist() == [number.get(row["a"], 3) for row in rows]
    assert table.arrays["c"].tolist() == [[number.get(row[c], 3) for c in ("c0", "c1")] for row in rows]
    assert table.arrays["b"].tolist() == [zlib.crc32(row["b"].encode()) % 7 for row in rows]
    assert any("towns: a vocabulary of 3 words" in note for note in table.notes)


def test_equally_frequent_words_are_in_the_order_of_their_code_points(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,x\nz,1\né,1\nB,1\na,1\nz,1\n", encoding="utf-8")
    table = read(source(words("a", rt.Words("a", most=3, unknown=True)), rt.Field("x", "f32", (2,))), tmp_path)
    assert table.vocabularies["a"].known == ("z", "B", "a")
    assert table.arrays["a"].tolist() == [0, 3, 1, 2, 0]


def test_the_last_number_is_unknown_though_words_are_fewer(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,x\nred,1\nred,2\n")
    (tmp_path / "e.csv").write_text("a,x\nred,1\nblue,2\n")
    fields = words("a", rt.Words("a", most=5, unknown=True)), rt.Field("x", "f32", (2,))
    data = read(source(*fields), tmp_path)
    other = rt.Source("csv", batch=2, path="e.csv", fields=fields)
    assert read(other, tmp_path, data).arrays["a"].tolist() == [0, 5]
    assert read(other, tmp_path, data).notes == []


def test_eval_has_the_words_of_the_training_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,x\nred,1\nred,2\nblue,3\n")
    (tmp_path / "e.csv").write_text("a,x\nblue,1\nblue,2\ngreen,3\nred,4\n")
    fields = words("a", rt.Words("a", most=2, unknown=True)), rt.Field("x", "f32", (2,))
    test = rt.Source("csv", batch=2, path="e.csv", fields=fields)
    assert read(test, tmp_path, read(source(*fields), tmp_path)).arrays["a"].tolist() == [1, 1, 2, 0]


def test_listed_words_and_blanks_around_them(tmp_path: Path) -> None:
    text = 'x,a\n1, red \n2,"green"\n3,"gre""en"\n4,\n5,blue\n'
    (tmp_path / "t.csv").write_bytes(gzip.compress(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()))
    listed = rt.Words("a", ("green", "red", "", 'gre"en'), unknown=True)
    table = read(source(rt.Field("x", "f32", (2,)), words("a", listed)), tmp_path)
    assert table.arrays["a"].tolist() == [1, 0, 3, 2, 4]


@pytest.mark.parametrize("quoted", [False, True])
@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
def test_a_line_of_empty_cells_is_an_example_however_the_file_is_written(
    tmp_path: Path, delimiter: str, quoted: bool
) -> None:
    """One that is read at once, and one with a quote in it, cell by cell."""
    text = 'a,b\nred,red\n,\n  \n"red",\n'.replace(",", delimiter)
    (tmp_path / "t.csv").write_text(text if quoted else text.replace('"', ""))
    listed = rt.Words("w", ("", "red"))
    given = source(words("a", listed), words("b", listed), header=True, delimiter=delimiter)
    assert {name: each.ravel().tolist() for name, each in read(given, tmp_path).arrays.items()} == {
        "a": [1, 0, 1], "b": [1, 0, 0],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "line", "fact"),
    [
        ("x,a\n1,red\n\n2,grün\n", 4, "column `a` is 'grün', which is none of the words of `a`: 'red', 'blue'"),
        ("x,a\n1,red\n2,\n", 3, "column `a` is empty, which is none of the words of `a`: 'red', 'blue'"),
        ('x,a\n1,"red\nred"\n2,red\n', 2, "column `a` is 'red\\nred', which is none of the words of `a`: "),
        ("1,red\n2,Red\n", 2, "column 2 is 'Red', which is none of the words of `a`: 'red', 'blue'"),
        ("x,a\n1,red\n2\n", 3, "the line has 1 values, where 2 are due"),
        ("x,a\nred,1\n", 2, "value 1 is 'red', which is no number"),
        ("x,b\n1,red\n", 1, "field `a` needs 1 column; the header names 0 of it"),
    ],
)
def test_words_that_are_none_are_told(tmp_path: Path, text: str, line: int, fact: str) -> None:
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(RunError) as caught:
        read(source(rt.Field("x", "f32", (2,)), words("a", rt.Words("a", ("red", "blue")))), tmp_path)
    assert (caught.value.code, caught.value.file, caught.value.line) == ("SH502", tmp_path / "t.csv", line)
    assert caught.value.message.startswith(fact), caught.value.message


def test_a_word_to_list_is_written_as_a_program_has_it(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('x,a\n1,"say ""hi"""\n')
    with pytest.raises(RunError) as caught:
        read(source(rt.Field("x", "f32", (2,)), words("a", rt.Words("a", ("red",)))), tmp_path)
    assert 'list "say \\"hi\\"" in `categories(..)`' in caught.value.help


def test_too_many_words_without_a_number_for_others(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,a\n1,u\n2,v\n3,u\n4,w\n")
    fields = rt.Field("x", "f32", (2,)), words("a", rt.Words("a", most=3))
    assert read(source(*fields), tmp_path).arrays["a"].tolist() == [0, 1, 0, 2]
    with pytest.raises(RunError) as caught:
        read(source(fields[0], words("a", rt.Words("a", most=2))), tmp_path)
    fact = "column `a` is 'w', which is none of the words of `a`: 'u', 'v'"
    assert (caught.value.line, caught.value.message) == (5, fact)
    assert "a greater `most`" in caught.value.help


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("a,b\nu,v\n", {}, ["u"]),
        ("b,other,a\nv,1,u\n", {}, ["u"]),
        ("u,v\na,b\n", {"header": False}, ["u", "a"]),
        ("u,v\na,b\n", {}, None),
    ],
)
def test_a_header_of_words_alone(tmp_path: Path, text: str, given: dict[str, bool], expected: list[str] | None) -> None:
    (tmp_path / "t.csv").write_text(text)
    fields = words("a", rt.Words("a", most=9, unknown=True)), words("b", rt.Words("b", hashed=9))
    if expected is None:
        with pytest.raises(RunError, match="nothing says whether the first line names the columns"):
            read(source(*fields), tmp_path)
        return
    table = read(source(*fields, **given), tmp_path)
    known = table.vocabularies["a"].known
    assert [known[number] for number in table.arrays["a"]] == expected


def test_a_wrong_number_is_told_with_its_column(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y1,z,y0\n1,0,2\n1,0,2\n7,0,2\n")
    with pytest.raises(RunError) as caught:
        load(source(rt.Field("y", "i64", (2, 2), bound=5)), tmp_path)
    assert (caught.value.line, caught.value.message) == (4, "`y` must be from 0 to 4; the line has 7 in column `y1`")


@pytest.mark.parametrize(("dtype", "bound"), [("i64", 1), ("i64", 2**53), ("i64", 2**62), ("i32", 2**31), ("i64", 10)])
def test_fields_of_any_bound(tmp_path: Path, dtype: str, bound: int) -> None:
    largest = min(bound, 2**53) - 1
    (tmp_path / "t.csv").write_text(f"a,b\n0,0\n{largest},0\n")
    table = load(source(rt.Field("a", dtype, (2,), bound=bound)), tmp_path)
    assert isinstance(table, Table) and table.arrays["a"].tolist() == [0, largest]
    (tmp_path / "t.csv").write_text(f"a,b\n0,0\n{largest + 1},0\n")
    with pytest.raises(RunError, match=r"; the line has \d+ in column `a`"):
        load(source(rt.Field("a", dtype, (2,), bound=bound)), tmp_path)


def test_what_decides_the_numbers_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,a\n1,red\n2,blue\n")

    def recorded(how: rt.Words) -> object:
        found = source(rt.Field("x", "f32", (2,)), words("a", how))
        return identity(found, read(found, tmp_path).length).get("categories")

    forms = [
        rt.Words("a", ("red", "blue")), rt.Words("a", ("blue", "red")), rt.Words("a", ("blue", "red"), unknown=True),
        rt.Words("a", most=1, unknown=True), rt.Words("a", hashed=8), rt.Words("a", hashed=9),
    ]  # fmt: skip
    facts = [str(recorded(how)) for how in forms]
    assert len(set(facts)) == len(forms), facts
    assert recorded(rt.Words("a", ("red", "blue"))) == recorded(rt.Words("named", ("red", "blue")))
    plain = source(rt.Field("x", "f32", (2,)))
    assert "categories" not in identity(plain, load(plain, tmp_path).length)


TEXT = """\
dim batch = 8, d = 4, classes = 2, pair = 2
dim colors = categories("red", "a, b", unknown = true)
dim towns = categories(most = 4)
dim yes = categories("n", "y")

model Net {
  param color: [colors, d] = normal(0.5)
  param town: [towns, d] = normal(0.5)
  param out: [d, classes] = normal(0.5)

  forward(c: i64[batch], a: i64[batch, pair]) -> [batch, classes] {
    return (embedding(c, color) + sum(embedding(a, town), over = pair)) @ out
  }
}

strategy dp {
  mesh dp = auto
  split batch over dp
}

train {
  model = Net()
  data = csv("t.csv", a: i64[batch] < colors, c: i64[batch, pair] < towns, b: i64[batch] < yes)
  eval = csv("e.csv", a: i64[batch] < colors, c: i64[batch, pair] < towns, b: i64[batch] < yes)
  scores = model(a, c)
  loss = cross_entropy(scores, b)
  optimizer = sgd(lr = 0.1)
  epochs = 2
  checkpoint = every(4)
}
"""


def data(path: Path, seed: int, rows: int) -> None:
    drawn = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["a", "c0", "c1", "b"])
        out.writerows([*(drawn.choice(POOL[:n]) for n in (5, 9, 7)), drawn.choice("ny")] for _ in range(rows))


def losses(file: Path) -> list[float]:
    """Of the steps, and of the evaluations."""
    lines = map(json.loads, file.read_text().splitlines())
    return [line[name] for line in lines for name in ("loss", "eval.loss") if name in line]


@pytest.mark.slow
def test_runs_of_other_ranks_have_the_same_numbers(tmp_path: Path) -> None:
    """Losses of two ranks are those of one; a run goes on with other ranks, and predicts; with other words it does
    neither."""
    (tmp_path / "net.shard").write_text(TEXT)
    data(tmp_path / "t.csv", 1, 64)
    data(tmp_path / "e.csv", 2, 20)
    run = ("run", "net.shard", "--device", "cpu", "--metrics")
    for ranks in ("2", "1"):
        words = ("--ranks", ranks, "--save-weights", f"w{ranks}.safetensors", "--overwrite")
        done = shardc(*run, f"m{ranks}.jsonl", *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    one, two = losses(tmp_path / "m1.jsonl"), losses(tmp_path / "m2.jsonl")
    assert len(one) == 18 and one == pytest.approx(two, rel=1e-5)
    more = ("--set", "train.epochs=3", "--resume")
    done = shardc(*run, "r.jsonl", "--ranks", "2", *more, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    again = ("predict", "net.shard", "--device", "cpu", "--value", "scores", "--ranks")
    for ranks in ("2", "1"):
        words = ("--weights", "w1.safetensors", "--out", f"s{ranks}.npz")
        done = shardc(*again, ranks, *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "s1.npz") as first, np.load(tmp_path / "s2.npz") as second:
        assert first["scores"].shape == (20, 2)
        np.testing.assert_allclose(first["scores"], second["scores"], rtol=1e-5)
    # the same words in another order
    (tmp_path / "net.shard").write_text(TEXT.replace('"red", "a, b"', '"a, b", "red"'))
    fact = "error[SH508]: the words of `a` have other numbers than in training: it is read as 2 words and unknown"
    for words in (
        (*run, "r.jsonl", "--ranks", "1", *more), (*run, "r.jsonl", "--ranks", "1", *more, "--resume-anyway"),
        (*again, "1", "--weights", "w1.safetensors", "--out", "s1.npz"),
        (*again, "1", "--checkpoint", "checkpoints", "--out", "s1.npz"),
    ):  # fmt: skip
        done = shardc(*words, folder=tmp_path)
        assert done.returncode == 3 and fact in done.stderr, (words, done.stderr)
    # weights with a record may be written over
    (tmp_path / "net.shard").write_text(TEXT)
    words = ("--ranks", "1", "--save-weights", "w1.safetensors", "--overwrite")
    done = shardc(*run, "m1.jsonl", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
