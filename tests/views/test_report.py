"""The page of `shardc report`: its numbers are the plan's, it needs nothing else, and nothing of a program becomes a
script in it."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from shardlang.cli.main import run
from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import page_of_plans
from shardlang.folds.peak.step import peaks_by_action, step_peaks
from shardlang.folds.report import report
from shardlang.folds.traffic import sent
from shardlang.views.report import TEMPLATE
from tests.cli.process import NET
from tests.cli.test_plan_text import plan_of
from tests.emit.sources import planned

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LARGE = ("llama.shard", "large", 512)


def page(*which: tuple[str, str | None, int]) -> str:
    sink = Sink()
    made = page_of_plans([plan_of(*each) for each in which], sink)
    assert not sink.failed
    return made


def data(of: str) -> dict[str, Any]:
    found = re.search(r"^const DATA = (.*);$", of, re.MULTILINE)
    assert found is not None
    return json.loads(found[1])


def test_the_first_sentences_name_the_step_the_bottleneck_and_the_memory() -> None:
    (plan,) = data(page(LARGE))["plans"]
    said = " ".join(plan["sentences"])
    assert re.search(r"A step is predicted to take [\d.]+ s, .* an MFU of [\d.]+%\.", said)
    assert re.search(
        r"Products and attention take 56% of the step\. Of the rest most goes to waiting for collectives over tp: ",
        said,
    )
    assert re.search(r"A rank holds at most 7\.07 GB of the 85\.0 GB of h100; \d+% of it are temporaries", said)


def test_without_speeds_it_says_what_is_sent_most() -> None:
    (plan,) = data(page(("transformer.shard", "three_d", 8)))["plans"]
    said = " ".join(plan["sentences"])
    assert "no time is predicted" in said and "of it over mp" in said and not plan["seconds"]
    assert sum(part["value"] for part in plan["parts"]) == 202864648


def test_parts_and_layers_add_up_to_the_step() -> None:
    (plan,) = data(page(LARGE))["plans"]
    sums = sum(part["value"] for part in plan["parts"])
    idle = sum(part["value"] for part in plan["parts"] if part["kind"] == "idle")
    assert sums == pytest.approx(plan["timeline"]["end"], rel=1e-3)
    assert sum(sum(layer["parts"].values()) for layer in plan["layers"]) + idle == pytest.approx(sums, rel=1e-9)


def test_the_memory_of_actions_has_the_peak_of_the_plan() -> None:
    for which in (LARGE, ("transformer.shard", "three_d", 8), ("digits.shard", "both", 4)):
        peaks = step_peaks(plan_of(*which))
        most = max(range(len(peaks)), key=lambda at: peaks[at].bytes)
        assert max(peak.bytes for peak in peaks_by_action(plan_of(*which), most)) == peaks[most].bytes
        (plan,) = data(page(which))["plans"]
        held = plan["memory"]
        assert held["actions"][-1] == "update" and held["coordinate"] == most
        assert sum(kind["bytes"][held["most"]] for kind in held["kinds"]) == peaks[most].bytes


def test_spans_of_a_lane_follow_each_other() -> None:
    for which in (LARGE, ("transformer.shard", "three_d", 8)):
        (plan,) = data(page(which))["plans"]
        course = plan["timeline"]
        assert len(course["lines"]) == len(plan_of(*which).pipeline.coordinates) // (2 if which is LARGE else 1)  # type: ignore[union-attr]
        for line in course["lines"]:
            for lane in line["lanes"]:
                ends = [0, *(end for _, end, _ in lane["spans"])]
                assert all(begin >= before - 1 for (begin, _, _), before in zip(lane["spans"], ends, strict=False))
                assert ends[-1] <= course["grid"]


def test_bytes_of_layers_are_those_of_each_collective() -> None:
    """Also of what is sent once, for the layers of an array together."""
    which = ("transformer.shard", "model_parallel", 8)
    (plan,) = data(page(which))["plans"]
    each = (c for o in report(plan_of(*which), each=True)["operators"] for c in o["collectives"])
    whole = sum(c["forward_bytes"] + c["backward_bytes"] for c in each)
    apart = sum(part["value"] for part in plan["apart"])
    assert sum(sum(layer["parts"].values()) for layer in plan["layers"]) == whole + apart
    assert sum(sum(layer["sent"].values()) for layer in plan["layers"]) == whole + apart
    assert sum(size for _, size in of_lines(plan)) == whole
    assert whole + apart == sum(part["value"] for part in plan["parts"])


def of_lines(plan: dict[str, Any], file: int = 0) -> list[tuple[str, int]]:
    """By what something is sent for the lines of a file, and how many bytes."""
    rows = list(plan["text"].values())[file]
    return [(by, forward + backward) for row in rows for by, forward, backward in row["sent"]]


@pytest.mark.parametrize(
    "which",
    [
        LARGE, ("llama.shard", "fsdp", 512), ("transformer.shard", "three_d", 8), ("unet.shard", "tensor_parallel", 8),
        ("gru.shard", "tensor_parallel", 8), ("gan.shard", "pipeline", 8), ("lora.shard", "tensor_parallel", 8),
        ("wide_deep.shard", "split_tables", 8), ("contrastive.shard", "tensor_parallel", 8),
    ],
)  # fmt: skip
def test_bytes_of_lines_are_those_of_the_plan(which: tuple[str, str, int]) -> None:
    """Also of what is sent in bf16, after a cast that no line writes, and of data and parameters."""
    (plan,) = data(page(which))["plans"]
    found: dict[str, int] = {}
    for by, size in of_lines(plan):
        found[by] = found.get(by, 0) + size
    whole: dict[str, int] = {}
    for each in sent(plan_of(*which)):
        for kind, size in zip(each.collectives, (each.forward_bytes, each.backward_bytes), strict=True):
            if each.what == "values" and size:
                by = f"{kind.replace('_', '-')} over {', '.join(each.axes)}"
                whole[by] = whole.get(by, 0) + size
    assert found == whole


def test_seconds_of_lines_are_those_of_operators() -> None:
    which = ("llama.shard", "fsdp", 512)
    (plan,) = data(page(which))["plans"]
    parts = {part["name"]: part["value"] for part in plan["parts"]}
    update = sum(value for layer in plan["layers"] for kind, value in layer["parts"].items() if kind == "update")
    lines = sum(row["seconds"] for row in next(iter(plan["text"].values())))
    kinds = sum(parts[kind] for kind in ("products", "attention", "memory-bound operators"))
    assert lines == pytest.approx(kinds, rel=0.05) and lines <= kinds + update


def test_lines_are_statements_with_the_layout_of_their_result() -> None:
    found = data(page(LARGE))
    (plan,) = found["plans"]
    (own, rows), *_ = plan["text"].items()
    text = found["sources"][own]["lines"]
    assert {text[row["lines"][0] - 1].strip(): [tensor["type"] for tensor in row["tensors"]] for row in rows} == {
        "logits = model(tokens)": ["bf16[batch@dp, seq@cp, vocab@tp]"],
        "loss = cross_entropy(logits, label)": ["f32[] +(dp, cp)"],
    }
    assert rows[0]["tensors"][0]["shape"] == [8, 4096, 16032] and rows[0]["stages"] == [[0, 7]]
    assert [rows[at]["tensors"][0]["stages"] for at in (0, 1)] == [[[7, 7]], [[7, 7]]]
    every = [row for rows in plan["text"].values() for row in rows]
    assert all(at in every[other]["with"] for at, row in enumerate(every) for other in row["with"])


def test_tensors_are_cut_as_ranks_hold_them() -> None:
    """What the page draws of a tensor multiplies to the bytes that the plan has."""
    (plan,) = data(page(("transformer.shard", "three_d", 8)))["plans"]
    sizes = {axis["name"]: axis["size"] for axis in plan["meshes"][0]}
    whole = {"batch": 8, "src": 64, "tgt": 64, "d": 512, "vocab": 32000}  # of one of four microbatches
    for row in next(iter(plan["text"].values()))[:3]:
        (tensor,) = row["tensors"]
        names = [dim.partition("@")[0] for dim in tensor["type"].partition("[")[2].rstrip("]").split(", ")]
        cut = [
            whole[name] // math.prod(sizes[axis] for axis in over)
            for name, over in zip(names, tensor["axes"], strict=True)
        ]
        assert tensor["shape"] == cut and tensor["bytes"] == 4 * math.prod(cut)


def test_it_is_small_and_asks_for_nothing() -> None:
    made = page(LARGE, ("llama.shard", "fsdp", 512))
    assert len(made) < 200_000
    assert "default-src 'none'" in made
    template = TEMPLATE.read_text("utf-8")
    assert re.findall(r"(?:src|href)=\"(?!data:)[^\"]*\"|@import|url\(|fetch\(|XMLHttp|innerHTML", template) == []
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", template) == []
    assert data(made)["diff"]["equal"] is False


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 defines it."""
    lights = []
    for colour in (one, other):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        lights.append(0.05 + sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True)))
    return max(lights) / min(lights)


def test_colours_hold_their_contrast_in_light_and_dark() -> None:
    """4.5 for texts, 3 for what is drawn, as AA asks for; names of spans stand on what is drawn."""
    style = TEMPLATE.read_text("utf-8").partition("* {")[0].split("@media")
    light, dark = (dict(re.findall(r"--([\w-]+): (#\w{6})", part)) for part in style)
    assert len(light) > 40 and light.keys() == dark.keys()
    for of in (light, dark):
        texts = {name: of[name] for name in ("text", "soft", "link", "word", "number", "note")}
        drawn = {name: of[name] for name in of.keys() - texts.keys() - {"back", "card", "mark", "line"}}
        low = [(name, on) for name in texts for on in ("back", "card", "mark") if contrast(of[name], of[on]) < 4.5]
        low += [(name, "back") for name in drawn if contrast(of[name], of["back"]) < 3]
        spans = [name for name in drawn if not re.match(r"[cm]\d", name)]
        low += [(name, "name") for name in spans if max(contrast(of[name], of[on]) for on in ("back", "text")) < 4.5]
        assert low == []


def test_nothing_of_a_program_becomes_a_script() -> None:
    text = "# </script><script>alert(1)</script> <!-- \u2028 ]]> &lt;\n" + NET
    made = page_of_plans([planned(text, 2, name="a</script><b>.shard")], Sink())
    assert made.count("</script>") == TEMPLATE.read_text("utf-8").count("</script>")
    assert "<script>alert" not in made and "<!--" not in made.replace("<!doctype", "") and "\u2028" not in made
    assert data(made)["sources"]["a</script><b>.shard"]["lines"] == text.split("\n")
    assert "a</script><b>.shard" in data(made)["plans"][0]["title"]


def test_the_command_writes_a_page_and_refuses_three_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "page.html"
    words = ["report", str(EXAMPLES / "digits.shard"), "--ranks", "4", "-o", str(target)]
    assert run([*words, "--strategy", "both", "--strategy", "sharded"]) == 0
    assert f"wrote {target}" in capsys.readouterr().out and len(data(target.read_text())["plans"]) == 2
    assert run([*words, *["--strategy", "both"] * 3]) == 2
    assert run([*words[:4], "-o", str(tmp_path / "none" / "page.html")]) == 2
    assert run([*words, "--strategy", "boht"]) == 1


def test_a_pipe_is_written_to_and_a_folder_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Renaming a new file onto a pipe, or onto /dev/null, would take it away from all who use it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = Thread(target=lambda: read.append(pipe.read_text("utf-8")))
    reader.start()
    words = ["report", str(EXAMPLES / "digits.shard"), "--ranks", "4", "-o"]
    assert run([*words, str(pipe)]) == 0
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)
    reader.join()
    assert len(read) == 1 and data(read[0])["plans"]
    assert run([*words, str(tmp_path)]) == 2 and "is a directory" in capsys.readouterr().err


@pytest.mark.slow
def test_a_browser_draws_all_parts(tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    target = tmp_path / "page.html"
    target.write_text(page(LARGE), "utf-8")
    words = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--virtual-time-budget=2000"]
    drawn = subprocess.run(
        [chromium, *words, "--dump-dom", target.as_uri()], capture_output=True, text=True, check=True
    )
    parts = re.findall(r"<h2>([^<]*)</h2>", drawn.stdout)
    assert parts == [
        "The program", "By layer", "A step over time", "Memory over time", "The mesh on the cluster", "Assumptions",
    ]  # fmt: skip
    assert "waiting for collectives over tp" in drawn.stdout and "most: 7.07 GB in 7F4" in drawn.stdout


def test_a_page_or_a_course_replaces_its_own_kind_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, page, course = tmp_path / "net.shard", tmp_path / "r.html", tmp_path / "t.json"
    text = (EXAMPLES / "digits.shard").read_text()
    program.write_text(text)
    words = [str(program), "--ranks", "4", "--strategy", "both", "--cluster", "std.clusters.h100_pod"]
    for _ in range(2):
        assert run(["report", *words, "-o", str(page)]) == 0
        assert run(["plan", *words, "--trace", str(course)]) == 0
    for wrong in (program, course, page):
        ways = (["report", *words, "-o", str(wrong)], ["plan", *words, "--trace", str(wrong)])
        for way in ways[wrong == page : 1 + (wrong != course)]:
            assert run(way) == 2
            assert "error[SH512]" in (said := capsys.readouterr().err) and "holds something else" in said
    assert program.read_text() == text
    assert run(["report", *words, "-o", str(tmp_path / "no" / "r.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


def test_more_ranks_than_there_can_be_are_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(EXAMPLES / "digits.shard"), "--ranks", "100000000", "--cluster", "std.clusters.h100_pod"]
    for command in (["tune"], ["plan"], ["report", "-o", "r.html"], ["why", "mesh"]):
        assert run([command[0], words[0], *command[1:], *words[1:]]) == 1
        assert "SH303" in capsys.readouterr().err
