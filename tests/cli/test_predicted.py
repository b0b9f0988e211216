"""`shardc plan` with the time of a step: on its first screen, as JSON, as a trace; nothing of it without speeds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from shardlang.terminal.display import duration
from tests.cli.process import shardc

ROOT = Path(__file__).resolve().parents[2]
LLAMA = str(ROOT / "examples" / "llama.shard")
LARGE = ("--ranks", "512", "--strategy", "large")


@pytest.fixture(scope="module")
def without_speeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same program, on devices of which only the memory is said."""
    text = Path(LLAMA).read_text()
    text = re.sub(r"cluster pod \{.*?\n\}", "device card {\n  memory = 80GB\n}", text, flags=re.S)
    path = tmp_path_factory.mktemp("plain") / "llama.shard"
    path.write_text(text.replace("use std.clusters: h100\n", ""))
    return path


def test_json_adds_up_and_is_nothing_without_speeds(without_speeds: Path, tmp_path: Path) -> None:
    trace = tmp_path / "step.json"
    result = shardc("plan", LLAMA, *LARGE, "--json", "--trace", str(trace))
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    step = found.pop("predicted")
    schema = json.loads((ROOT / "specs" / "plan.schema.json").read_text())["$defs"]["predicted"]
    assert set(step) == set(schema["required"]) == set(schema["properties"])
    for key in ("exposed_s", "by_layer", "by_operator", "assumptions"):
        assert all(set(each) == set(schema["properties"][key]["items"]["required"]) for each in step[key]), key
    layers = sum(each["compute_s"] + each["exposed_s"] for each in step["by_layer"])
    assert layers + step["idle_s"] == pytest.approx(step["step_s"], rel=1e-9)
    assert step["mfu_causal"] < step["mfu"] < 1 and 0 < step["bubble"] < 0.5
    assert step["tokens_per_s"] == pytest.approx(1024 * 8192 / step["step_s"])
    events = json.loads(trace.read_text())["traceEvents"]
    done = [event for event in events if event["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in done) == pytest.approx(step["step_s"] * 1e6, rel=2e-3)
    assert {event["pid"] for event in done} == {0, 1, 2, 3}

    plain = json.loads(shardc("plan", str(without_speeds), *LARGE, "--json").stdout)
    assert set(plain) == set(found)
    assert all(plain[key] == found[key] for key in ("sent", "parameters", "gradient_reductions"))


def test_the_first_screen_says_how_long_and_on_what_it_rests(without_speeds: Path) -> None:
    shown = shardc("plan", LLAMA, *LARGE).stdout
    begin = shown.index("\npredicted: ")
    screen = shown[begin : shown.index("\nmemory of")]
    title = r"\npredicted: [\d.]+ s a step, [\d,]+ tokens/s, MFU [\d.]+% \([\d.]+% without masked pairs\)\n"
    assert re.match(title, screen)
    for part in ("compute", "waiting for all-gather over tp", "idle", "data sheets", "about 20 %"):
        assert part in " ".join(screen.split()), part
    shown = shardc("plan", str(without_speeds), *LARGE).stdout
    assert "predicted" not in shown and "\nmemory of" in shown


def test_a_trace_without_speeds_says_which_are_missing(without_speeds: Path, tmp_path: Path) -> None:
    result = shardc("plan", str(without_speeds), *LARGE, "--trace", str(tmp_path / "t.json"))
    assert result.returncode == 1 and "SH241" in result.stderr and not (tmp_path / "t.json").exists()


def test_durations_have_three_digits() -> None:
    assert [duration(s) for s in (1234.5, 123.456, 4.3585, 0.99951, 0.0123, 0.00085, 2e-6)] == [
        "1,234 s", "123 s", "4.36 s", "1.00 s", "12.3 ms", "850 us", "2.00 us",
    ]  # fmt: skip
