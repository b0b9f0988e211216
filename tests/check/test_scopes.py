"""Files that import, and names that are known too late or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests.check.checked import checked, net


def test_a_file_that_imports_its_own_model_is_one_mistake() -> None:
    text = 'use "./program.shard": Net\n' + net("return x * w")
    (found,) = checked(text).found
    assert (found.code, found.message) == ("SH204", "imports form a circle: `program.shard` -> `program.shard`")
    assert found.help == ("leave the line out: a file's own names need no import",)


def test_what_it_declares_twice_besides_is_another_mistake() -> None:
    text = 'use "./program.shard": Net\n' + net("return x * w") + "\nmodel Net {\n}\n"
    assert [d.code for d in checked(text).found][:2] == ["SH204", "SH201"]


@pytest.mark.parametrize(
    ("text", "message", "late"),
    [
        ("dim a = b\ndim b = 2\n", "SH200: there is no `b` here", "b"),
        ("dim a = 2 * b, b = 2\n", "SH200: there is no `b` here", "b"),
        ("model M {\n  param w: [n] = ones()\n  dim n = 2\n}\n", "SH250: there is no dim `n` here", "n"),
        ("model M {\n  dim m = n\n  dim n = 2\n}\n", "SH200: there is no `n` here", "n"),
        (net("y = h * w\nh = x\nreturn y + h"), "SH200: there is no `h` here", "h"),
    ],
)
def test_a_name_that_is_declared_below_is_shown(text: str, message: str, late: str) -> None:
    found = checked(text).found[0]
    assert found.primary is not None
    assert f"{found.code}: {found.message}" in (message, message.replace("dim ", ""))
    ((label),) = found.labels
    assert label.span.text == late and label.span.start > found.primary.span.start
    assert label.text == "declared only here"
    assert found.help == (f"declare `{late}` first: a name is known from its declaration on",)


def test_an_import_that_cannot_be_read_says_why_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "latin.shard").write_bytes(b"\xe9")
    os.mkfifo(tmp_path / "pipe.shard")
    uses = 'use "./folder": A\nuse "./latin.shard": B\nuse "./pipe.shard": C\n'
    sink = Sink()
    driver.check_source(Source(str(tmp_path / "main.shard"), uses), sink)
    assert [(d.code, d.primary.text, d.help) for d in sink.found if d.primary] == [
        ("SH401", "a directory", ('name a file in it: `use "./folder/layers.shard": Block`',)),
        ("SH401", "not UTF-8", ("save the file as UTF-8",)),
        ("SH401", "not a plain file", ("name a plain file, not a pipe or a device",)),
    ]
