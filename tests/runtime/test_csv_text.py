"""Texts of csv data: their numbers against a Counter and against the libraries `tokenizers` and `transformers`; files
that do not fit; a run on other ranks, resumed and used to predict."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shardlang
from shardlang import runtime as rt
from shardlang.errors import RunError
from shardlang.runtime.data.csv_columns import Table
from shardlang.runtime.data.identity import identity
from shardlang.runtime.program import Extent
from shardlang.torch import bind, launch
from tests.cli.test_run import shardc
from tests.end_to_end.curves import ROOT
from tests.mdtest import blocks
from tests.runtime.test_csv_words import losses, read, source

POOL = [
    "Good", "good", "bad", "naïve", "café", "it's", "a_b", "x2", "日本語", "猫", "fine,", '"so"', "two\nlines", "!",
    "...",
]  # fmt: skip


def text(name: str, how: rt.Text, length: int = 6) -> rt.Field:
    return rt.Field(name, "i64", (2, length), bound=how.size, words=how)


def words(most: int, name: str = "vocab") -> rt.Text:
    return rt.Text(name, "words", most + 4)


def written(path: Path, seed: int, rows: int = 60, pool: Sequence[str] = POOL) -> list[dict[str, str]]:
    """A file with columns n, title, body, some of them empty, as its rows come back from Python's csv module."""
    drawn = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["n", "title", "body"])
        for row in range(rows):
            out.writerow([row, *(" ".join(drawn.choices(pool, k=drawn.randint(0, most))) for most in (4, 12))])
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


NUMBER = rt.Field("n", "f32", (2,))


def all_of(table: Table, field: rt.Field) -> list[list[int]]:
    whole = Extent((0,) * len(field.shape), (table.length, *field.shape[1:]))
    found: list[list[int]] = table.take(field, np.arange(table.length), whole).tolist()
    return found


# Without quotes the lines are split at once, with some by the csv module.
@pytest.mark.parametrize("pool", [POOL, ["Good", "good", "naïve", "日本語", "it's", "a_b", "..."]])
def test_words_are_those_of_a_counter_over_the_columns_of_a_dim(tmp_path: Path, pool: list[str]) -> None:
    rows = written(tmp_path / "t.csv", 1, pool=pool)
    fields = text("title", words(5), 3), text("body", words(5), 8)
    table = read(source(NUMBER, *fields), tmp_path)
    cut = {name: [re.findall(r"\w+|[^\w\s]", row[name]) for row in rows] for name in ("title", "body")}
    counts = Counter(word for column in cut.values() for found in column for word in found)
    first = sorted(counts, key=lambda word: (-counts[word], word))[:5]
    number = {word: at for at, word in enumerate(first, 4)}
    for field in fields:
        length = field.shape[1]
        due = [[number.get(word, 3) for word in found][:length] for found in cut[field.name]]
        assert all_of(table, field) == [found + [0] * (length - len(found)) for found in due]
        long = sum(len(found) > length for found in cut[field.name])
        unknown, total = sum(found.count(3) for found in due), sum(map(len, due))
        assert 0 < long < len(rows) and 0 < unknown < total
        assert (
            f"{field.name}: {long} of 60 texts are longer than {length} words and cut there; "
            f"{unknown} of {total} words in them are unknown"
        ) in table.notes
    assert f"vocab: a vocabulary of 5 words: {', '.join(map(repr, first[:4]))}, ..." in table.notes
    assert len(table.notes) == 3


def test_eval_has_the_words_of_the_training_file(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,body\n1,a a b\n2,b a c\n")
    (tmp_path / "e.csv").write_text("n,body\n1,c c c c\n2,b\n3,\n4,d e f g h i j\n")
    field = text("body", words(2))
    data = read(source(NUMBER, field), tmp_path)
    assert data.notes[1] == "body: 2 texts, none longer than 6 words; 1 of 6 words in them are unknown"
    test = read(rt.Source("csv", batch=2, path="e.csv", fields=(NUMBER, field)), tmp_path, data)
    assert all_of(test, field) == [[3, 3, 3, 3, 0, 0], [5, 0, 0, 0, 0, 0], [0] * 6, [3] * 6]
    assert test.notes == [
        "body: 1 of 4 texts is longer than 6 words and cut there; 10 of 11 words in them are unknown"
    ]  # fmt: skip


def test_a_text_that_occurs_twice_is_cut_twice(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,body\n1,a b c d\n2,e\n3,a b c d\n")
    field = text("body", words(1), 3)
    table = read(source(NUMBER, field), tmp_path)
    assert all_of(table, field) == [[4, 3, 3], [3, 0, 0], [4, 3, 3]]
    assert (
        table.notes[1] == "body: 2 of 3 texts are longer than 3 words and cut there; 5 of 7 words in them are unknown"
    )


@pytest.mark.parametrize("pad", [0, 256])
def test_bytes_are_those_of_utf8(tmp_path: Path, pad: int) -> None:
    rows = written(tmp_path / "t.csv", 2)
    field = text("body", rt.Text("b", "bytes", max(256, pad + 1), pad=pad), 20)
    table = read(source(NUMBER, field), tmp_path)
    due = [list(row["body"].strip().encode())[:20] for row in rows]
    assert all_of(table, field) == [found + [pad] * (20 - len(found)) for found in due]


def test_a_rank_takes_its_part_of_a_text_and_only_text_needs_no_other_field(tmp_path: Path) -> None:
    written(tmp_path / "t.csv", 3)
    field = text("body", words(9), 8)
    table = read(source(field), tmp_path)
    assert table.length == 60
    some = np.array([5, 2, 40, 2])
    parts = [table.take(field, some, Extent((0, start), (4, 4))) for start in (0, 4)]
    assert np.concatenate(parts, 1).tolist() == [all_of(table, field)[at] for at in some]


def tokenizer(folder: Path, *, pad: str | None = "[PAD]", marks: bool = True) -> Any:
    """A tokenizer of pieces of words as BERT's, in the folder's tokenizer.json."""
    made = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    found = made.Tokenizer(made.models.WordPiece(unk_token="[UNK]"))
    found.normalizer = made.normalizers.BertNormalizer(lowercase=True)
    found.pre_tokenizer = made.pre_tokenizers.BertPreTokenizer()
    special = [*([pad] if pad else []), "[UNK]", "[CLS]", "[SEP]"]
    trainer = made.trainers.WordPieceTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    found.train_from_iterator([" ".join(POOL)] * 3, trainer)
    if marks:
        numbers = [(mark, found.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
        found.post_processor = made.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=numbers)
    found.save(str(folder / "tokenizer.json"))
    return found


def tokens(size: int, pad: int | None = None) -> rt.Text:
    return rt.Text("vocab", "tokenizer", size, path="tokenizer.json", pad=pad)


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("side", ["right", "left"])
def test_tokens_are_those_of_the_library(tmp_path: Path, marks: bool, side: str) -> None:
    """The file may have lengths of its own, which are not the field's."""
    rows = written(tmp_path / "t.csv", 4)
    made = tokenizer(tmp_path, marks=marks)
    if side == "left":
        made.enable_truncation(5, direction="left")
        made.enable_padding(direction="left", pad_id=made.token_to_id("[PAD]"), length=30)
        made.save(str(tmp_path / "tokenizer.json"))
    size = made.get_vocab_size()
    field = text("body", tokens(size), 12)
    table = read(source(NUMBER, field), tmp_path)
    texts = [row["body"].strip() for row in rows]
    made.no_truncation()
    made.no_padding()
    long = sum(len(made.encode(each).ids) > 12 for each in texts)
    made.enable_truncation(12, direction=side)
    made.enable_padding(direction=side, pad_id=made.token_to_id("[PAD]"), length=12)
    assert all_of(table, field) == [made.encode(each).ids for each in texts]
    assert 0 < long < 60
    assert table.notes == [f"body: {long} of 60 texts are longer than 12 tokens and cut there"]


def test_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the library transformers is not installed")
    rows = written(tmp_path / "t.csv", 5)
    size = tokenizer(tmp_path).get_vocab_size()
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), pad_token="[PAD]", unk_token="[UNK]"
    )
    texts = [row["body"].strip() for row in rows]
    due = theirs(texts, truncation=True, max_length=10, padding="max_length")["input_ids"]
    # The tokenizer has fewer tokens than the model has rows.
    field = text("body", tokens(size + 7), 10)
    assert all_of(read(source(NUMBER, field), tmp_path), field) == due


@pytest.mark.parametrize("name", ["[PAD]", "<pad>", "<|pad|>", None])
def test_the_padding_of_a_tokenizer(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "t.csv").write_text("n,body\n1,good\n2,\n")
    made = tokenizer(tmp_path, pad=name, marks=False)
    size = made.get_vocab_size()
    for pad in (None, 2, size):
        field = text("body", tokens(size + 1, pad), 4)
        if pad is None and name is None:
            with pytest.raises(RunError, match="the tokenizer has no padding token"):
                read(source(NUMBER, field), tmp_path)
            continue
        due = pad if pad is not None else made.token_to_id(name)
        assert all_of(read(source(NUMBER, field), tmp_path), field)[1] == [due] * 4


def refused(folder: Path, how: rt.Text, length: int = 6, name: str = "t.csv") -> RunError:
    with pytest.raises(RunError) as caught:
        read(rt.Source("csv", batch=2, path=name, fields=(NUMBER, text("body", how, length))), folder)
    assert caught.value.code == "SH502"
    return caught.value


def test_a_tokenizer_that_does_not_fit_is_told_with_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "t.csv", 6)
    missing = refused(tmp_path, tokens(50))
    assert (missing.message, missing.file) == ("no tokenizer file is there", tmp_path / "tokenizer.json")
    size = tokenizer(tmp_path).get_vocab_size()
    many = refused(tmp_path, tokens(size - 1))
    assert many.message == f"the tokenizer has {size} tokens, and `vocab` has {size - 1} numbers"
    assert many.help == f'write `tokenizer("tokenizer.json", {size})`'
    short = refused(tmp_path, tokens(size), 2)
    assert short.message == "a text of `body` is cut to 2 tokens, and the tokenizer's own marks are 2 of them"
    assert short.help == "a length of 3 or more"
    tokenizer(tmp_path, pad=None)
    unpadded = refused(tmp_path, tokens(size))
    assert unpadded.message == "the tokenizer has no padding token"
    assert f'`tokenizer("tokenizer.json", {size + 1}, pad = {size})`' in unpadded.help
    made = tokenizer(tmp_path)
    made.model = type(made.model)(made.get_vocab(), unk_token="[NONE]")
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "s.csv").write_text("n,body\n1,good\n2,qqq bad\n3,bad\n")
    broken = refused(tmp_path, tokens(size), 9, "s.csv")
    assert broken.message.startswith("the tokenizer fails at the text 'qqq bad': ")
    assert broken.file == tmp_path / "tokenizer.json"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "the tokenizer cannot be read" in refused(tmp_path, tokens(size)).message
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    absent = refused(tmp_path, tokens(size))
    assert (absent.message, absent.help) == ("a tokenizer file needs the library tokenizers", "pip install tokenizers")


def test_the_padding_of_a_file_may_be_none_of_the_numbers(tmp_path: Path) -> None:
    written(tmp_path / "t.csv", 6)
    made = tokenizer(tmp_path)
    made.enable_padding(pad_id=99)
    made.save(str(tmp_path / "tokenizer.json"))
    size = made.get_vocab_size()
    assert refused(tmp_path, tokens(size)).message == (
        f"the tokenizer fills texts up with 99, and `vocab` has {size} numbers"
    )
    assert all_of(read(source(NUMBER, text("body", tokens(100), 3)), tmp_path), text("body", tokens(100), 3))


@pytest.mark.parametrize(
    ("content", "given", "due"),
    [
        ("body,n\nhi there,1\n", {}, [4, 5, 0]),
        ("hi there,1\n", {}, [4, 5, 0]),
        ("n,body\n1,there\n2,hi hi\n", {}, [5, 0, 0]),
        ('1," hi there \n"\n', {"delimiter": ","}, None),
        ("n,body0\n1,hi\n", {}, "field `body` needs 1 column; the header names 0 of it"),
        ("hi there,you,1\n", {"header": False}, "the line has 3 values, where the fields need 2"),
    ],
)
def test_the_column_of_a_text(tmp_path: Path, content: str, given: dict[str, Any], due: list[int] | str | None) -> None:
    (tmp_path / "t.csv").write_text(content)
    field = text("body", words(9), 3)
    fields = (NUMBER, field) if due is None else (field, NUMBER)
    if isinstance(due, str):
        with pytest.raises(RunError, match=due):
            read(source(*fields, **given), tmp_path)
    else:
        assert all_of(read(source(*fields, **given), tmp_path), field)[0] == (due or [4, 5, 0])


def test_a_text_without_its_bound_is_told_how(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,body\n1,hi there\n")
    with pytest.raises(RunError, match="field `body` needs 6 columns; the header names 1 of it") as caught:
        read(source(NUMBER, rt.Field("body", "i64", (2, 6), bound=9)), tmp_path)
    assert caught.value.help == "one column of text is bounded by `words(most = 20000)`, or by a `tokenizer(..)`"


def test_what_decides_the_numbers_is_recorded(tmp_path: Path) -> None:
    written(tmp_path / "t.csv", 7)
    made = tokenizer(tmp_path)
    size = made.get_vocab_size()

    def recorded(how: rt.Text) -> object:
        found = source(NUMBER, text("body", how))
        facts = identity(found, read(found, tmp_path).length)
        assert [file[0] for file in facts["files"]] == ["t.csv"]
        return facts["categories"]

    forms = [
        words(3), words(4), rt.Text("b", "bytes", 256, pad=0), rt.Text("b", "bytes", 256, pad=1), tokens(size),
        tokens(size, 1),
    ]  # fmt: skip
    facts = [str(recorded(how)) for how in forms]
    assert len(set(facts)) == len(forms), facts
    assert recorded(words(3)) == recorded(words(3, "named"))
    # More rows, a file written in another way or with other lengths: the same numbers.
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(dict(reversed(content.items())), indent=1))
    assert str(recorded(tokens(size + 5))) == facts[4]
    content["normalizer"]["lowercase"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert str(recorded(tokens(size))) != facts[4]
    # Other texts of as many words.
    (tmp_path / "t.csv").write_text("n,body\n1,a b c\n")
    one = recorded(words(3))
    (tmp_path / "t.csv").write_text("n,body\n1,a b d\n")
    assert one != recorded(words(3))


@pytest.mark.slow
def test_a_bound_program_has_the_losses_and_the_notes_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "net.shard").write_text(TEXT.replace("FORM", "words(most = 10)"))
    labelled(tmp_path / "t.csv", 1, 64)
    labelled(tmp_path / "e.csv", 2, 20)
    words = ("--ranks", "2", "--strategy", "dp", "--device", "cpu", "--metrics", "m.jsonl", "--set", "train.epochs=1")
    done = shardc("run", "net.shard", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    program = shardlang.compile(tmp_path / "net.shard", ranks=2, strategy="dp")

    def train() -> tuple[list[float], list[str]]:
        net = bind(program, base=tmp_path)
        optimizer, found = net.optimizer(torch.optim.SGD, lr=0.1), []
        for batch in net.batches(1):
            found.append(net.step(batch))
            optimizer.step()
            net.stepped()
        return [each["loss"] for each in found] + [net.evaluate()["loss"]], net.notes()

    found, notes = launch(train, ranks=2, device="cpu")[0]
    assert found == losses(tmp_path / "m.jsonl")
    assert len(notes) == 5 and all(note in done.stdout.splitlines() for note in notes)


@pytest.mark.slow
def test_the_program_of_the_page_learns(tmp_path: Path) -> None:
    """From the rows that the page shows, 16 times over."""
    page = (ROOT / "specs" / "data.md").read_text("utf-8")
    program = next(block for block in blocks(page) if "reviews.csv" in block.text)
    header, *rows = page.partition("```text\nreview,")[2].partition("```")[0].splitlines(keepends=True)
    assert header == "label\n" and len(rows) == 2
    strategy = "strategy dp {\n  mesh dp = auto\n  split batch over dp\n}\n"
    (tmp_path / "net.shard").write_text(f"{program.text}\n{strategy}")
    (tmp_path / "reviews.csv").write_text(f"review,{header}" + "".join(rows * 16))
    found = []
    for way in (("--ranks", "1"), ("--ranks", "2", "--simulate")):
        words = ("--metrics", "m.jsonl", "--set", "train.epochs=20", "--set", "train.optimizer.lr=0.05")
        done = shardc("run", "net.shard", *way, *words, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "review: 32 texts, none longer than 64 words" in done.stdout
        found.append(losses(tmp_path / "m.jsonl"))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert len(found[0]) == 40 and found[0][0] > 0.5 and found[0][-1] < 0.1


TEXT = """\
dim batch = 8, d = 4, classes = 2, seq = 6, short = 3
dim vocab = FORM
dim yes = categories("n", "y")

model Net {
  param table: [vocab, d] = normal(0.5)
  param out: [d, classes] = normal(0.5)

  forward(body: i64[batch, seq], title: i64[batch, short]) -> [batch, classes] {
    there = cast(body != 0, f32)
    return (einsum(embedding(body, table), there -> [batch, d]) + sum(embedding(title, table), over = short)) @ out
  }
}

strategy dp {
  mesh dp = auto
  split batch over dp
}

strategy both {
  mesh dp = auto, sp = 2
  split batch over dp
  split seq, vocab over sp
}

train {
  model = Net()
  data = csv("t.csv", body: i64[batch, seq] < vocab, title: i64[batch, short] < vocab, b: i64[batch] < yes)
  eval = csv("e.csv", body: i64[batch, seq] < vocab, title: i64[batch, short] < vocab, b: i64[batch] < yes)
  scores = model(body, title)
  loss = cross_entropy(scores, b)
  optimizer = sgd(lr = 0.1)
  epochs = 2
  checkpoint = every(4, keep = 0)
}
"""


def labelled(path: Path, seed: int, rows: int) -> None:
    drawn = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["b", "title", "body"])
        for _ in range(rows):
            out.writerow([drawn.choice("ny"), *(" ".join(drawn.choices(POOL, k=drawn.randint(0, n))) for n in (4, 9))])


@pytest.mark.slow
@pytest.mark.parametrize("form", ["words(most = 10)", 'tokenizer("tokenizer.json", 64)'])
def test_runs_of_other_ranks_have_the_same_numbers(tmp_path: Path, form: str) -> None:
    """Losses of two and four ranks are those of one; a run goes on with other ranks where it ended, and predicts; with
    other words it does neither."""
    assert tokenizer(tmp_path).get_vocab_size() <= 64
    (tmp_path / "net.shard").write_text(TEXT.replace("FORM", form))
    labelled(tmp_path / "t.csv", 1, 64)
    labelled(tmp_path / "e.csv", 2, 20)
    run = ("run", "net.shard", "--device", "cpu", "--metrics")
    for name, ranks, strategy in (("4", "4", "both"), ("2", "2", "dp"), ("1", "1", "dp")):
        more = ("--ranks", ranks, "--strategy", strategy, "--save-weights", f"w{ranks}.safetensors", "--overwrite")
        done = shardc(*run, f"m{name}.jsonl", *more, "--set", "train.epochs=3", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("and cut there") == 4
    one, two, four = (losses(tmp_path / f"m{name}.jsonl") for name in "124")
    assert len(one) == 27 and one == pytest.approx(two, rel=1e-5) and one == pytest.approx(four, rel=1e-5)
    # 12 steps on one rank, which is one epoch and a half, and the others on four: no example is repeated or skipped.
    for step in (16, 20, 24):
        shutil.rmtree(tmp_path / "checkpoints" / f"step-{step}")
    more = ("--strategy", "both", "--set", "train.epochs=3", "--resume")
    done = shardc(*run, "r.jsonl", "--ranks", "4", *more, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    rest = losses(tmp_path / "r.jsonl")
    assert len(rest) == 14 and rest == pytest.approx(one[-14:], rel=1e-5)
    again = ("predict", "net.shard", "--device", "cpu", "--value", "scores", "--strategy", "dp", "--ranks")
    for ranks in ("2", "1"):
        done = shardc(*again, ranks, "--weights", "w1.safetensors", "--out", f"s{ranks}.npz", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(" of 20 texts are longer than ") == 2
    with np.load(tmp_path / "s1.npz") as first, np.load(tmp_path / "s2.npz") as second:
        assert first["scores"].shape == (20, 2)
        np.testing.assert_allclose(first["scores"], second["scores"], rtol=1e-5)
    # Other words of the same number.
    if form.startswith("words"):
        labelled(tmp_path / "t.csv", 3, 64)
    else:
        content = json.loads((tmp_path / "tokenizer.json").read_text())
        content["normalizer"]["lowercase"] = False
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    fact = "error[SH508]: the words of `body` have other numbers than in training: it is read as text "
    for more in (
        (*run, "r.jsonl", "--ranks", "1", "--strategy", "dp", "--set", "train.epochs=3", "--resume-anyway"),
        (*again, "1", "--weights", "w1.safetensors", "--out", "s1.npz"),
        (*again, "1", "--checkpoint", "checkpoints", "--out", "s1.npz"),
    ):
        done = shardc(*more, folder=tmp_path)
        assert done.returncode == 3 and fact in done.stderr, (more, done.stderr)
