"""The settings `checkpoint` and `log`: what they mean, and every way to get them wrong."""

from __future__ import annotations

import pytest

from tests.check.checked import TRAIN, checked


def with_setting(text: str, name: str = "checkpoint") -> str:
    net = "dim batch = 4, d = 2, out = 2\nmodel Net {\n  param w: [d, out] = ones()\n"
    net += "  forward(x: [batch, d]) -> [batch, out] {\n    return x @ w\n  }\n}\n"
    train = TRAIN.replace("label: [batch, d]", "label: [batch, out]")
    return net + train.replace("epochs = 1", f"epochs = 1\n  {name} = {text}")


def test_its_arguments() -> None:
    training = checked(with_setting('every(100, keep = 4, to = "kept")')).program.training
    assert training.checkpoint == ("every", {"steps": 100, "keep": 4, "to": "kept"})
    training = checked(with_setting("every(7)")).program.training
    assert training.checkpoint == ("every", {"steps": 7, "keep": 3, "to": "checkpoints"})
    training = checked(with_setting("every(7, keep = 0)")).program.training
    assert training.checkpoint == ("every", {"steps": 7, "keep": 0, "to": "checkpoints"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("100", "SH237: `checkpoint` is how often to write one"),
        ("every()", "SH237: `checkpoint` is how often to write one"),
        ("every(0)", "SH213: `steps` must be at least 1, and this is 0"),
        ("every(10, keep = -1)", "SH237: `keep` must be at least 0, and this is -1"),
        ("every(10, to = 3)", "SH210: `to` must be a text, and this is a number"),
        ("every(10, into = 3)", "SH220: `every` has no argument `into`"),
        ("every(10, keep = 3, keep = 4)", "SH219: `every` gets `keep` twice"),
    ],
)
def test_what_is_wrong_with_it(text: str, message: str) -> None:
    found = checked(with_setting(text)).messages
    assert found == [message]


def test_how_often_ranks_log() -> None:
    assert checked(with_setting("every(20)", "log")).program.training.log == {"steps": 20}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("20", "SH237: `log` is how often each rank writes to its log"),
        ("every(0)", "SH213: `steps` must be at least 1, and this is 0"),
        ("every(10, keep = 3)", "SH220: `every` has no argument `keep`"),
    ],
)
def test_what_is_wrong_with_that(text: str, message: str) -> None:
    assert checked(with_setting(text, "log")).messages == [message]
