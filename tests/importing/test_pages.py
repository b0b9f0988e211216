"""Importing the modules of `specs/import.md` gives what that page shows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardlang.importing.example import load
from shardlang.importing.imported import Wanted, import_module
from tests.mdtest import fences

ROOT = Path(__file__).resolve().parents[2]


def test_the_example_of_the_page_is_what_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = fences((ROOT / "specs" / "import.md").read_text("utf-8"))
    blocks = {language: text for _, language, words, text in page if not words}
    (tmp_path / "net.py").write_text(blocks["python"], "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "net", raising=False)
    found = import_module(load("net.py:build"), Wanted("net.py:build", {}))
    sys.modules.pop("net", None)
    assert (found.text, found.names) == (blocks["shard"], blocks["text"])


def test_the_operators_of_the_page_are_what_comes_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = fences((ROOT / "specs" / "import.md").read_text("utf-8"))
    files = {words[0].removeprefix("file="): text for _, _, words, text in page if words}
    (tmp_path / "summing.py").write_text(files["summing.py"], "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "summing", raising=False)
    found = import_module(load("summing.py:build"), Wanted("summing.py:build", {}, opaque="net_ops"))
    sys.modules.pop("summing", None)
    assert (found.declared, found.python) == (files["net_ops.shard"], files["net_ops.py"])
