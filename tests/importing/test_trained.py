"""Fourteen models come in as programs that a person could have written, which are kept beside this, and train on four
ranks as their modules do; `python -m tests.importing.trained` does all strategies."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers", reason="the library transformers is not installed")

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source
from tests.importing.fourteen.cases import CASES
from tests.importing.trained import CLOSE, EXACT, STRATEGIES, imported, losses, prepared

COLUMNS = 120

# Each model under one strategy, each strategy with several models.
PAIRS = [(name, STRATEGIES[at % len(STRATEGIES)]) for at, name in enumerate(CASES)]


GOLDEN = Path(__file__).parent / "golden" / "fourteen"


@pytest.mark.parametrize(("name", "strategy"), PAIRS, ids=map(":".join, PAIRS))
def test_a_model_is_the_golden_one_and_trains_as_its_module_does(name: str, strategy: str, tmp_path: Path) -> None:
    found, expected = prepared(name, tmp_path)
    assert found.report["largest difference"] <= EXACT
    assert found.text == (GOLDEN / f"{name}.shard").read_text("utf-8")
    assert found.names == (GOLDEN / f"{name}.map").read_text("utf-8")
    assert len(set(expected)) == len(expected)
    assert losses(tmp_path, strategy) == pytest.approx(expected, abs=CLOSE, rel=0)


@pytest.mark.parametrize("name", CASES)
def test_its_text_reads_as_one_of_a_person(name: str) -> None:
    """In its one form, without mistakes, shorter than the module, and no dim has a name that says nothing."""
    text, sink = (GOLDEN / f"{name}.shard").read_text("utf-8"), Sink()
    assert driver.format_source(Source("m.shard", text), sink) == text
    assert driver.check_source(Source("m.shard", text), sink) is not None and not sink.found
    assert re.findall(r"\bd\d+\b", text) == []
    assert max(map(len, text.splitlines())) <= COLUMNS
    torch.manual_seed(1)
    net = CASES[name].still()[0]
    kinds = {type(each) for each in net.modules() if not type(each).__module__.startswith("torch.")}
    sources = [inspect.getmodule(type(net))] if type(net).__module__.startswith("tests.") else kinds
    assert text.count("\n") < sum(len(inspect.getsource(each).splitlines()) for each in sources)


def test_a_second_time_gives_the_same_bytes() -> None:
    assert imported("bert").text == (GOLDEN / "bert.shard").read_text("utf-8")
