"""The reference is what the declarations say, and tells of all of them; `shardc explain` prints its parts."""

from __future__ import annotations

import pytest

from shardlang.cli import reference
from shardlang.cli.main import run
from shardlang.ops.declaration import REGISTRY
from tests.documents.bless import REFERENCE, page


def test_the_page_is_up_to_date() -> None:
    assert REFERENCE.read_text("utf-8") == page(), "run `python -m tests.documents.bless`"


def test_the_page_has_all_that_can_be_called() -> None:
    headings = [line[4:] for line in REFERENCE.read_text("utf-8").splitlines() if line.startswith("### ")]
    assert headings == reference.names()
    assert {name for name, operator in REGISTRY.items() if not operator.internal} < set(headings)


@pytest.mark.parametrize(("word", "said"), [
    ("matmul", "- `k` may be split: each rank then has a part of a sum, and the result is pending."),
    ("matmul", "left @ right, or matmul(left, right)"),
    ("softmax", "- `d` may be split: the ranks then exchange statistics, not the values."),
    ("cumsum", "- `seq` may not be split."),
    ("relu", "- Pending operands are summed first."),
    ("conv2d", "conv2d(x, weight, bias = none, stride = (1, 1), padding = (0, 0), dilation = (1, 1), groups = 1)"),
    ("adamw", "adamw(lr: number, betas = (0.9, 0.999), eps = 1e-8, weight_decay = 0.01)"),
    ("csv", 'csv(field: type, ..., path: str, header: bool = none, delimiter = ",", shuffle = true,'),
    ("digits", "Fields: `image: [batch, 64]`, `label: i64[batch] < 10`."),
    ("warmup_cosine", "(1 + cos(pi (s - k) / (n - k))) / 2"),
    ("normal", "normal(std = 1)"),
    ("constant", "Every element is `value`."),
])  # fmt: skip
def test_explain_tells_of_a_name(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", word]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(("word", "said"), [
    ("matmull", "there is nothing called `matmull` to explain; did you mean `matmul`?"),
    ("adamW", "did you mean `adamw`?"),
    ("SHOW", "there is nothing called `SHOW`"),
    ("transfer", "there is nothing called `transfer`"),
    ("zzzzzz", "`shardc explain` lists all"),
])  # fmt: skip
def test_an_unknown_name_gets_the_nearest(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", word]) == 2
    assert said in capsys.readouterr().err


def test_the_list_has_all_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain"]) == 0
    listed = [line.partition("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert len(listed) == len(set(listed))
    assert set(reference.names()) < set(listed)
