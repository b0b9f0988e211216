"""The search modes: what operators choose, against all that they could; what each mode finds for one pinned product."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from shardlang.cli.main import run
from shardlang.search import tune
from shardlang.search.request import MODES
from tests.search.exhaustive import PROGRAM
from tests.search.graphs import wrong
from tests.warm import ROOT

QUICKSTART = ROOT / "examples" / "quickstart.shard"
ASKED = ["--ranks", "8", "--cluster", "std.clusters.h100_pod", "--strategy", "propagated"]


def tuned(file: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    assert run(["tune", str(file), *ASKED, "--json", *more]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_one_pinned_product_has_the_rest_found(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pin holds, and `why` says of each value what decided."""
    file = tmp_path / "quickstart.shard"
    file.write_text(QUICKSTART.read_text())
    found = tuned(file, capsys, "--search-mode", mode, "--write")
    assert "at h: shard ((2, 4), (4, 1))" in str(found["text"])
    decided = {}
    for value in ("w", "w2", "x", "label", "h", "a", "return", "loss"):
        assert run(["why", str(file), value, "--ranks", "8", "--strategy", "propagated_8", "--json"]) == 0
        decided[value] = json.loads(capsys.readouterr().out)["decided"]["by"]
    assert decided["h"] == "shard" and decided["a"] == ("propagated" if mode == "sharding_propagation" else "pin")
    assert all(decided.values())


def test_seconds_decide_where_bytes_did(capsys: pytest.CaptureFixture[str]) -> None:
    """Two collectives less, of a few bytes more."""
    times = {m: tuned(QUICKSTART, capsys, "--search-mode", m)["best"][0]["predicted"]["step_s"] for m in MODES}  # type: ignore[index]
    assert times["exact"] == times["dynamic_programming"] == times["recursive_programming"]
    assert times["exact"] < 0.9 * times["sharding_propagation"]


def test_with_little_time_exact_is_no_slower_than_other_modes(capsys: pytest.CaptureFixture[str]) -> None:
    """More points than the budget is for: those that dynamic programming looks at come first."""
    asked, times = ["--ranks", "2", "--cluster", "std.clusters.h100_pod", "--budget", "2", "--json"], list[float]()
    for mode in ("exact", "dynamic_programming"):
        assert run(["tune", str(QUICKSTART), *asked, "--search-mode", mode]) == 0
        times.append(json.loads(capsys.readouterr().out)["best"][0]["predicted"]["step_s"])
    assert times[0] <= times[1]


def test_without_the_solver_it_says_what_to_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "is_there", lambda: False)
    assert run(["tune", str(QUICKSTART), *ASKED]) == 1
    said = capsys.readouterr().err
    assert "error[SH517]" in said and 'pip install "shardlang[tune]"' in said
    assert run(["tune", str(QUICKSTART), *ASKED, "--search-mode", "dynamic_programming"]) == 0


def test_an_axis_that_a_rule_gives_an_operator_is_not_open_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`dp` splits the batch of all that has one; only what has none chooses."""
    rules = "  mesh dp = auto, tp = 2\n  split batch over dp\n  split classes over tp"
    file = tmp_path / "net.shard"
    file.write_text(PROGRAM.format(batch=16, d=8, layers=2, rules=rules))
    asked = ["--ranks", "4", "--cluster", "std.clusters.h100_pod", "--strategy", "s"]
    assert run(["tune", str(file), *asked]) == 0
    assert "split batch over dp\n  split classes over tp\n" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(4))
def test_no_options_of_a_small_graph_take_less(seed: int) -> None:
    assert wrong(random.Random(seed)) is None
