"""Data sources: the fields they declare, and what is told of what cannot be."""

from __future__ import annotations

import pytest

from tests.check.checked import Checked, checked

TEXT = """\
dim batch = 8, d = 16, other = 8, classes = 3, half = 4

model Net {
  param w: [d] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    return x * w
  }
}

train {
  model = Net()
  data = DATA
  loss = mean(square(model(x)))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def sourced(data: str, more: str = "") -> Checked:
    return checked(TEXT.replace("DATA", data).replace("  epochs = 1\n", f"  epochs = 1\n{more}"))


def test_fields_and_arguments() -> None:
    source = "random(x: [batch, d], label: i64[batch] < classes, batches = 2 * 3, seed = 5)"
    found = sourced(source, "  metric ones = mean(label == 1)\n")
    assert found.program is not None and found.program.training is not None, found.messages
    data = found.program.training.data
    assert (data.kind, data.batch, data.arguments["batches"], data.arguments["seed"]) == ("random", 8, 6, 5)
    assert found.value("train.label").bound == 3
    assert found.value("train.label").type.dtype == "i64"


def test_random_has_a_default_for_its_batches() -> None:
    found = sourced("random(x: [batch, d], label: i64[batch] < classes)", "  metric ones = mean(label == 1)\n")
    assert found.program is not None, found.messages


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("3", "SH235: no data source is called here"),
        ("randon(x: [batch, d])", "SH235: "),
        ("random(batches = 1)", "SH235: `random` needs its fields"),
        ("random(3, x: [batch, d], batches = 1)", "SH218: `random` takes "),
        ("random(x: [batch, d], batches = 1, batches = 2)", "SH219: `random` gets `batches` twice"),
        ("random(x: [batch, d], batch = 1, batches = 1)", "SH220: `random` has no argument `batch`"),
        ("random(x: [batch, d], batches = 0)", "SH"),
        ('random(x: [batch, d], batches = "two")', "SH210: `batches` must be a whole number"),
        ("random(x: [batch, d], batches = 5 / 2)", "SH212: "),
        ("random(x: [batch, d], batches = nowhere)", "SH200: "),
        ("random(x: [batch, d], label: [other, d], batches = 1)", "SH235: fields of one source share their first dim"),
        ("random(x: [batch, d], label: [], batches = 1)", "SH235: field `label` needs the batch as its first dim"),
        ("random(x: [batch, d], label: [batch] < classes, batches = 1)", "SH235: `label` is f32, and a bound "),
        ("random(x: [batch, d], label: i64[batch] < 0, batches = 1)", "SH213: a bound is at least 1, and this is 0"),
        ("random(x: [batch, d], label: i32[batch] < 2 ** 31 + 1, batches = 1)", "SH237: the numbers of i32 stay below"),
        ("random(x: [batch, d], label: i64[batch] < 10 ** 20, batches = 1)", "SH211: "),
        ("random(x: [batch, d], label: bool[batch] < 3, batches = 1)", "SH237: the numbers of bool stay below 2"),
        ('csv("a.csv", x: [batch, d], delimiter = "\\n")', "SH237: `delimiter` must be one character that no "),
        ('csv("a.csv", x: [batch, d], delimiter = "\\"")', "SH237: `delimiter` must be one character that no "),
        ('csv("a.csv", x: [batch, d], delimiter = ".")', "SH237: `delimiter` must be one character that no "),
        ("random(x: [batch, d], label: i64[batch] < nowhere, batches = 1)", "SH200: "),
        ("digits(batch = batch, x: [batch, d])", "SH235: `digits` declares its fields itself"),
        ('digits(split = "train")', "SH221: `digits` needs `batch`"),
        ('digits(split = 3, batch = batch)', "SH210: `split` must be a text"),
        ('mnist("data", batch = batch, shuffle = 1)', "SH210: `shuffle` must be true or false"),
        ("digits(batch = 2.5)", "SH210: `batch` must be a whole number"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories())', "SH235: `categories` has no words"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories("a", "b", "a"))', 'SH235: "a" is listed twice'),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories("a", " b"))', 'SH235: no cell is " b": blanks'),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories("a", 3))', "SH210: a word must be a text"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories("a", most = 3))', "SH235: `categories` lists words, "),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories(most = 0))', "SH213: `most` must be at least 1"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories(most = 2.5))', "SH210: `most` must be a whole"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories(many = 2))', "SH220: `categories` has no argument"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories("a", unknown = 1))', "SH210: `unknown` must be true"),
        ('csv("a.csv", x: [batch, d], c: [batch] < categories("a"))', "SH235: `c` is f32, and a bound is for whole"),
        ('csv("a.csv", x: [batch, d], c: bool[batch] < categories("a", "b", "c"))', "SH237: the numbers of bool stay"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < hashed())', "SH221: `hashed` needs a number"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < hashed(0))', "SH213: `hashed` gives 1 to 2**32 numbers"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < hashed(2 ** 32 + 1))', "SH213: `hashed` gives 1 to 2**32"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < hashed(1, 2))', "SH218: `hashed` takes 1 argument"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < hashed("a"))', "SH210: what `hashed` counts to must be a whole"),
        ('csv("a.csv", x: [batch, d], c: i64[batch, d] < words())', "SH221: `words` needs `most`"),
        ('csv("a.csv", x: [batch, d], c: i64[batch, d] < words(most = 0))', "SH213: `most` must be at least 1"),
        ('csv("a.csv", x: [batch, d], c: i64[batch, d] < words("a", most = 2))', "SH218: `words` takes 0 arguments"),
        ('csv("a.csv", x: [batch, d], c: i64[batch, d] < tokenizer("t.json"))', "SH221: `tokenizer` needs `size`"),
        ('csv("a.csv", x: [batch, d], c: i64[batch, d] < tokenizer("t.json", 0))', "SH213: `size` must be at least 1"),
        ('csv("a.csv", x: [batch, d], c: i64[batch, d] < tokenizer(8, 8))', "SH210: `path` must be a text"),
        (
            'csv("a.csv", x: [batch, d], c: i64[batch, d] < tokenizer("t.json", 8, pad = 8))',
            "SH237: `pad` is 8, and the numbers of these texts are below 8",
        ),
        ('csv("a.csv", x: [batch, d], c: i64[batch, d] < bytes(pad = -1))', "SH237: `pad` must be at least 0"),
        ('csv("a.csv", x: [batch, d], c: i64[batch, d] < bytes(pad = 257))', "SH237: `pad` is 257, and the numbers"),
        (
            'csv("a.csv", x: [batch, d], c: i64[batch] < words(most = 3))',
            "SH235: `c` reads text, so its dims are two, the batch and the length of a text; i64[batch] has other",
        ),
        ('csv("a.csv", x: [batch, d], c: [batch, d] < words(most = 3))', "SH235: `c` is f32, and a bound is for whole"),
        ('csv("a.csv", x: [batch, d], c: bool[batch, d] < bytes())', "SH237: the numbers of bool stay"),
        ('csv("a.csv", x: [batch, d], c: i64[batch, d] < bytes() + 1)', "SH210: `+` needs numbers, and this is text"),
        ('random(x: [batch, d], c: i64[batch, d] < bytes())', "SH235: `random` reads no text, and `c` is"),
        ('csv("a.csv", x: [batch, d], c: i64[batch] < categories("a") + 1)', "SH210: `+` needs numbers, and this is "),
        ('random(x: [batch, d], c: i64[batch] < categories("a"))', "SH235: `random` reads no words, and `c` is"),
    ],
)  # fmt: skip
def test_slips(data: str, message: str) -> None:
    found = [m for m in sourced(data).messages if not m.startswith("SH200: there is no `x`")]
    assert found and found[0].startswith(message), found


def test_a_batch_by_number_is_a_dim_of_its_own() -> None:
    text = (
        TEXT.replace("DATA", "digits(batch = 4)").replace("[batch, d]", "[..., d]").replace("model(x)", "model(image)")
    )
    found = checked(text.replace("d = 16", "d = 64"))
    assert found.value("train.image").type.shape == (4, 64), found.messages


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("eval = random(y: [batch, d], batches = 1)", "SH235: `eval` has the fields y, and `data` has x"),
        ("eval = random(x: [half, d], batches = 1)", "SH235: `eval` has batches of 4, and `data` of 8"),
        ("eval = 3", "SH235: no data source is called here"),
    ],
)
def test_eval_is_like_data(line: str, message: str) -> None:
    found = sourced("random(x: [batch, d], batches = 1)", f"  {line}\n").messages
    assert found and found[0].startswith(message), found


LABELS = """\
dim batch = 8, d = 16, seq = 4, classes = 3

model Net {
  param w: [d, classes] = normal(0.1)

  forward(x: [batch, d]) -> [batch, classes] {
    return x @ w
  }
}

train {
  model = Net()
  data = random(x: [batch, d], label: LABEL, batches = 2)
  scores = model(x)
  loss = LOSS
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""
ENTROPY = "cross_entropy(scores, label, ignore_index = -100)"


@pytest.mark.parametrize(
    ("label", "loss", "expected"),
    [
        ("i64[batch] < classes", ENTROPY, (3, (-100,))),
        ("i64[batch] < 2", ENTROPY, (2, (-100,))),
        ("i64[batch] < classes", ENTROPY.replace("-100", "255"), (3, (255,))),
        ("i64[batch] < classes", ENTROPY.replace("-100", "0"), (3, ())),
        ("i64[batch] < classes", "cross_entropy(scores, label)", (3, ())),
        ("i64[batch] < classes", f"{ENTROPY} + mean(label != -100)", (3, (-100,))),
        ("i64[batch] < classes", f"nll_loss(log_softmax(scores, over = classes), label, ignore_index = -1) + {ENTROPY}",
         (3, ())),
        ("i64[batch] < classes", f"{ENTROPY} + cross_entropy(scores, label)", (3, ())),
        ("i64[batch] < classes", f"{ENTROPY} + mean(embedding(label, model.w))", (3, ())),
        ("i64[batch] < classes", f"{ENTROPY} + mean(one_hot(label, classes) * scores)", (3, ())),
        ("i64[batch, seq] < 20", ENTROPY.replace("label,", "rearrange(slice(label, seq = 1..2) -> [batch]),"),
         (20, (-100,))),
        ("i64[batch] < 20", "mean(scores) + mean(cast(label, f32))", (20, ())),
    ],
)  # fmt: skip
def test_labels_are_indices_or_what_all_uses_ignore(
    label: str, loss: str, expected: tuple[int, tuple[int, ...]]
) -> None:
    found = checked(LABELS.replace("LABEL", label).replace("LOSS", loss))
    assert not [m for m in found.messages if not m.startswith("SH223")], found.messages
    value = found.value("train.label")
    assert (value.bound, value.ignored) == expected


@pytest.mark.parametrize(
    "use",
    ["cross_entropy(scores, label)", "nll_loss(scores, label)",
     "mean(embedding(label, rearrange(model.w -> [classes, d])))", "mean(gather(scores, label, over = classes))",
     "mean(one_hot(label, classes) * scores)"],
)  # fmt: skip
def test_no_index_points_past_the_end(use: str) -> None:
    found = checked(LABELS.replace("LABEL", "i64[batch] < 20").replace("LOSS", f"mean(scores) + {use}"))
    (message,) = [d.message for d in found.found if d.code == "SH289"]
    assert message == f"`label` goes up to 19, and `{use.removeprefix('mean(').partition('(')[0]}` has 3 `classes`"


def test_a_dim_without_a_name_is_called_by_its_size_once() -> None:
    use = "mean(embedding(label, model.table))"
    text = LABELS.replace("LABEL", "i64[batch] < 20").replace("LOSS", f"mean(scores) + {use}")
    found = checked(text.replace("  param w:", "  param table: [3, 5] = ones()\n  param w:"))
    (message,) = [d for d in found.found if d.code == "SH289"]
    assert message.message == "`label` goes up to 19, and `embedding` has only 3"
    assert message.help[0].startswith("make that at least 20, ")


def test_a_bound_that_counts_the_ignored_label_is_told_how() -> None:
    found = checked(LABELS.replace("LABEL", "i64[batch] < 256").replace("LOSS", ENTROPY.replace("-100", "255")))
    (message,) = [d for d in found.found if d.code == "SH289"]
    assert "the bound at most 3; 255, which is ignored, may be in the data all the same" in message.help[0]


WORDS = LABELS.replace("dim batch = 8, ", "dim names = categories(NAMES)\ndim batch = 8, ").replace(
    "random(x: [batch, d], label: LABEL, batches = 2)", 'csv("a.csv", x: [batch, d], label: LABEL)'
)


def test_words_are_numbered_by_a_dim_of_the_file_alone() -> None:
    text = WORDS.replace("NAMES", '"a", "b"').replace("LABEL", "i64[batch] < names").replace("LOSS", "mean(scores)")
    found = checked(text.replace("model Net {", "model Net {\n  dim n = categories(most = 3)"))
    (wrong,) = [each for each in found.found if each.code == "SH210"]
    assert wrong.message == "the size of dim `n` must be a whole number, and this is words of csv data"
    help = (
        "words are numbered by a dim of the file: write `dim words = categories(..)` above the models, and `words` here"
    )
    assert wrong.help == (help,)
    found = checked(text.replace("model Net {", "model Net {\n  dim n = bytes()"))
    (wrong,) = [each for each in found.found if each.code == "SH210"]
    assert wrong.message == "the size of dim `n` must be a whole number, and this is text of csv data"
    help = "texts are numbered by a dim of the file: write `dim vocab = words(..)` above the models, and `vocab` here"
    assert wrong.help == (help,)


@pytest.mark.parametrize(
    ("names", "label", "bound"),
    [
        ('"a", "b"', "i64[batch] < names", 2),
        ('"a", "b", unknown = true', "i64[batch] < names", 3),
        ('"a", "b", unknown = true', "i32[batch] < names", 3),
        ("most = 2", "i64[batch] < names", 3),
        ("most = classes, unknown = false", "i64[batch] < names", 3),
        ('"x"', 'i64[batch] < categories("", "a", "b")', 3),
        ('"x"', "i64[batch] < hashed(classes)", 3),
        ('"x"', "i64[batch] < classes - 1", 2),
        ('"x"', "i64[batch] < 1", 1),
    ],
)
def test_words_are_as_many_as_their_numbers(names: str, label: str, bound: int) -> None:
    text = WORDS.replace("NAMES", names).replace("LABEL", label).replace("LOSS", "cross_entropy(scores, label)")
    dims = text.splitlines()[:2]
    found = checked(text.replace("\n".join(dims), "\n".join(reversed(dims))))
    assert not [m for m in found.messages if not m.startswith("SH223")], found.messages
    assert found.value("train.label").bound == bound


def test_words_beyond_the_end_of_a_table_are_told() -> None:
    text = WORDS.replace("NAMES", "most = 3").replace("LABEL", "i64[batch] < names")
    found = checked(text.replace("LOSS", "cross_entropy(scores, label)"))
    assert "SH289: `label` goes up to 3, and `cross_entropy` has 3 `classes`" in found.messages


def test_a_dim_of_words_is_as_large_and_is_set_to_others() -> None:
    text = WORDS.replace("NAMES", '"a", "b"').replace("LABEL", "i64[batch] < names")
    text = text.replace("LOSS", "cross_entropy(scores, label)").replace("classes", "names").replace(", names = 3", "")
    assert checked(text).value("w").type.shape == (16, 2)
    assert checked(text, {"names": "categories(most = 4)"}).value("w").type.shape == (16, 5)
    found = checked(text, {"names": "4"}).messages
    assert found[0] == "SH224: `names` numbers words, and `--set` gives it `4`", found


TEXTS = WORDS.replace("categories(NAMES)", "NAMES").replace("LABEL", "i64[batch] < classes")
TEXTS = TEXTS.replace('"a.csv", x', '"a.csv", text: i64[batch, d] < names, x')


@pytest.mark.parametrize(
    ("names", "count"),
    [
        ("words(most = 3)", 7), ('tokenizer("t.json", 30522)', 30522), ('tokenizer("t.json", 9, pad = 8)', 9),
        ("bytes()", 257), ("bytes(pad = 255)", 256),
    ],
)  # fmt: skip
def test_a_dim_of_text_has_as_many_numbers(names: str, count: int) -> None:
    text = TEXTS.replace("NAMES", names).replace("LOSS", "cross_entropy(scores, label) + mean(one_hot(text, names))")
    found = checked(text)
    assert not found.messages, found.messages
    assert found.value("train.text").bound == count
    other = checked(text, {"names": "bytes()"})
    assert not other.messages and other.value("train.text").bound == 257
    found = checked(text, {"names": "4"})
    (wrong,) = found.found
    assert wrong.message == "`names` numbers texts, and `--set` gives it `4`"
    assert wrong.help == ("say which: `--set 'names=words(most = 100)'`",)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('csv("b.csv", text: i64[batch, d] < names, x: [batch, d], label: i64[batch] < classes)', ""),
        (
            'csv("b.csv", text: i64[batch, d] < words(most = 3), x: [batch, d], label: i64[batch] < classes)',
            "SH235: `eval` numbers the words of `text` in another way than `data`",
        ),
        ("random(text: i64[batch, d] < names, x: [batch, d], label: i64[batch] < classes)", ""),
    ],
)
def test_eval_has_the_texts_of_data(line: str, message: str) -> None:
    text = TEXTS.replace("NAMES", "words(most = 3)")
    found = checked(text.replace("LOSS", f"cross_entropy(scores, label)\n  eval = {line}"))
    wrong = [each for each in found.found if each.code != "SH223"]
    assert [f"{each.code}: {each.message}" for each in wrong] == ([message] if message else [])
    if wrong:
        assert wrong[0].help == ("bound `text` by one dim in both: `dim vocab = words(most = 1000)`, say",)


def test_texts_to_be_counted_need_a_file_to_train_on() -> None:
    text = TEXTS.replace("NAMES", "words(most = 3)").replace('csv("a.csv", ', "random(")
    line = 'csv("b.csv", text: i64[batch, d] < names, x: [batch, d], label: i64[batch] < classes)'
    (wrong,) = [
        each for each in checked(text.replace("LOSS", f"cross_entropy(scores, label)\n  eval = {line}")).found
        if each.code != "SH223"
    ]  # fmt: skip
    assert wrong.message == "the vocabulary of `text` is made from the training data, and `data` is `random`"
    assert wrong.help == ('take the tokens of a file for `names`: `tokenizer("tokenizer.json", 30522)`',)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('csv("b.csv", x: [batch, d], label: i64[batch] < categories("b", "a"))', "SH235: `eval` numbers the words of"),
        ('csv("b.csv", x: [batch, d], label: i64[batch] < 2)', "SH235: `eval` numbers the words of `label` in another"),
        ('csv("b.csv", x: [batch, d], label: i64[batch] < categories("a", "b"))', ""),
        ("random(x: [batch, d], label: i64[batch] < 2)", ""),
    ],
)
def test_eval_has_the_words_of_data(line: str, message: str) -> None:
    text = WORDS.replace("NAMES", '"x"').replace("LABEL", 'i64[batch] < categories("a", "b")')
    found = checked(text.replace("LOSS", f"cross_entropy(scores, label)\n  eval = {line}")).messages
    found = [m for m in found if not m.startswith("SH223")]
    assert (found[0] if found else "").startswith(message) and bool(found) == bool(message), found


def test_words_to_be_counted_need_a_file_to_train_on() -> None:
    text = LABELS.replace("LABEL", "i64[batch] < classes")
    line = 'csv("b.csv", x: [batch, d], label: i64[batch] < categories(most = 2))'
    found = checked(text.replace("LOSS", f"cross_entropy(scores, label)\n  eval = {line}")).messages
    assert found[0].startswith("SH235: the vocabulary of `label` is made from the training data, and `data` is"), found
