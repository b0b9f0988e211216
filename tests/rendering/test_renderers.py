"""What each renderer writes for the same diagnostics."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlang.diagnostics.diagnostic import Diagnostic, Severity, Sink
from shardlang.diagnostics.full import full
from shardlang.diagnostics.lines import concise, jsonlines
from shardlang.diagnostics.rendered import OUTPUTS, SHOWN, rendered
from shardlang.diagnostics.sarif import sarif
from shardlang.hints.nearest import distance, nearest
from shardlang.sources.source import Source, Span
from shardlang.terminal.display import laid_out, safe, width

SPECS = Path(__file__).resolve().parents[2] / "specs"
TEXT = "a\n  mesh pp = 2, mp = 3\n\n  split heads, ffn over mp\n"


def at(text: str, source: Source) -> Span:
    start = source.text.index(text)
    return Span(source, start, start + len(text))


def divides() -> list[Diagnostic]:
    source, sink = Source("three_d.shard", TEXT), Sink()
    sink.report(
        "SH304", "dim `heads` does not divide over axis `mp`", at("heads", source), "`heads` is 8",
        labels=[(at("mp = 3", source), "`mp` has 3 ranks")], help="`mp` could be 1, 2, 4 or 8",
    )  # fmt: skip
    return sink.found


def test_full() -> None:
    assert (
        full(divides())
        == """\
error[SH304]: dim `heads` does not divide over axis `mp`
 --> three_d.shard:4:9
  |
2 |   mesh pp = 2, mp = 3
  |                ------ `mp` has 3 ranks
4 |   split heads, ffn over mp
  |         ^^^^^ `heads` is 8
  |
help: `mp` could be 1, 2, 4 or 8

"""
    )


def test_full_puts_several_labels_of_a_line_below_one_another() -> None:
    source, sink = Source("x.shard", "alpha beta gamma\n"), Sink()
    others = [(at("beta", source), "second"), (at("gamma", source), "third")]
    sink.report("SH200", "three", at("alpha", source), "first", labels=others)
    assert full(sink.found).splitlines()[3:] == [
        "1 | alpha beta gamma",
        "  | ^^^^^ ---- ----- third",
        "  | |     second",
        "  | first",
        "",
    ]


def test_full_shows_labels_in_another_file() -> None:
    one, two, sink = Source("one.shard", "use x\n"), Source("two.shard", "\ndim x\n"), Sink()
    sink.report("SH200", "twice", at("x", one), labels=[(at("x", two), "first here")])
    assert full(sink.found).splitlines()[5:] == [" ::: two.shard:2:5", "  |", "2 | dim x", "  |     - first here", ""]


@pytest.mark.parametrize("before", ["\t", "漢字", "e\u0301 ", "\u202e", "\x1b[31m", "\t漢\te\u0301"])
def test_full_aligns_what_is_not_one_cell_wide(before: str) -> None:
    source, sink = Source("x.shard", f"{before}here\n"), Sink()
    sink.report("SH200", "m", at("here", source))
    line, marks = full(sink.found).splitlines()[3:5]
    assert width(line[: line.index("here")]) == marks.index("^")


def test_full_is_coloured_only_when_asked() -> None:
    assert "\x1b[" not in full(divides())
    assert re.sub(r"\x1b\[[\d;]*m", "", full(divides(), colour=True)) == full(divides())


def test_a_long_line_is_shown_in_part() -> None:
    source, sink = Source("x.shard", "a " * 50_000 + "here" + " b" * 50_000), Sink()
    sink.report("SH200", "m", at("here", source), "this")
    line, marks = full(sink.found).splitlines()[3:5]
    assert len(line) < 300
    assert line.index("here") == marks.index("^")


def test_concise() -> None:
    assert concise(divides()) == "three_d.shard:4:9: error[SH304]: dim `heads` does not divide over axis `mp`\n"
    assert concise([Diagnostic("SH210", "no dim `x`")]) == "shardc: error[SH210]: no dim `x`\n"


def test_json_follows_its_schema() -> None:
    schema = json.loads((SPECS / "diagnostic.schema.json").read_text("utf-8"))
    lines = jsonlines([*divides(), Diagnostic("SH210", "no dim `\u202e`")]).splitlines()
    for line in lines:
        jsonschema.validate(json.loads(line), schema)
    assert lines[1].isascii()
    assert json.loads(lines[0])["primary"] | {"text": ""} == {
        "file": "three_d.shard", "line": 4, "column": 9, "end_line": 4, "end_column": 14,
        "start": 33, "end": 38, "text": "",
    }  # fmt: skip


def test_sarif_has_what_the_standard_requires() -> None:
    log = json.loads(sarif(divides()))
    (run,) = log["runs"]
    (result,) = run["results"]
    assert log["version"] == "2.1.0"
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"] == "SH304"
    assert result["level"] == "error"
    assert result["locations"][0]["physicalLocation"]["region"] == {
        "startLine": 4, "startColumn": 9, "endLine": 4, "endColumn": 14,
    }  # fmt: skip
    assert json.loads(sarif([]))["runs"][0]["results"] == []


@settings(deadline=None)
@given(st.text())
def test_any_text_is_shown_without_controls(text: str) -> None:
    shown, cells = laid_out(text)
    assert all(c.isprintable() or not c.isascii() for c in shown)
    assert not set("\u202a\u202e\u2066\u2069\x1b\x9b") & set(shown + safe(text))
    assert cells[-1] == width(shown)
    assert len(cells) == len(text) + 1


@settings(deadline=None)
@given(st.text(max_size=60), st.data())
def test_any_place_in_any_text_is_rendered(text: str, data: st.DataObject) -> None:
    source, sink = Source("x.shard", text), Sink()
    for _ in range(3):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, len(text)))
        sink.report("SH200", "m", Span(source, start, end), "here", labels=[(Span(source, 0, end), "\u202eother")])
    assert "\u202e" not in full(sink.found) + concise(sink.found)
    assert sarif(sink.found) + jsonlines(sink.found)


@pytest.mark.parametrize(
    ("name", "candidates", "expected"),
    [
        ("hiden", ["hidden", "heads"], "hidden"),
        ("rleu", ["relu", "gelu"], "relu"),
        ("Linaer", ["Linear", "LayerNorm"], "Linear"),
        ("x", ["y", "loss"], None),
        ("banana", ["hidden", "loss"], None),
        ("dim_head", ["head_dim", "heads"], "head_dim"),
        ("headDim", ["head_dim", "heads"], "head_dim"),
        ("accu", ["accuracy", "loss"], "accuracy"),
        ("SOFTMAX", ["softmax"], "softmax"),
        ("xencoder", ["Encoder", "encoder"], "encoder"),
        ("Encodr", ["Encoder", "encoder"], "Encoder"),
        ("loss", ["loss"], None),
        ("batch", [], None),
    ],
)
def test_nearest(name: str, candidates: list[str], expected: str | None) -> None:
    assert nearest(name, candidates) == nearest(name, reversed(candidates)) == expected


@settings(deadline=None)
@given(st.text("abc", max_size=6), st.text("abc", max_size=6))
def test_distance_is_symmetric_and_zero_only_for_equals(left: str, right: str) -> None:
    assert distance(left, right, 9) == distance(right, left, 9)
    assert (distance(left, right, 9) == 0) == (left == right)


def test_a_warning_hides_no_error_of_its_words() -> None:
    sink = Sink()
    sink.report("SH611", "one", None, severity=Severity.WARNING)
    sink.report("SH611", "other", None, severity=Severity.WARNING)
    assert not sink.failed
    sink.report("SH611", "one", None)
    sink.report("SH611", "one", None, severity=Severity.WARNING)
    assert [(d.message, d.severity) for d in sink.found] == [("other", Severity.WARNING), ("one", Severity.ERROR)]
    assert sink.failed


def test_of_very_many_the_first_are_shown_and_the_rest_is_counted() -> None:
    """Errors before warnings, in their order."""
    warnings = [Diagnostic("SH601", f"warning {at}", severity=Severity.WARNING) for at in range(150)]
    errors = [Diagnostic("SH240", f"line {at}") for at in range(60)]
    found = [*warnings[:75], *errors, *warnings[75:]]
    texts = {form: rendered(found, form) for form in OUTPUTS}
    told = [line.rpartition(": ")[2] for line in texts["concise"].splitlines()]
    assert told[:SHOWN] == [d.message for d in (*warnings[:40], *errors)]
    for form, text in texts.items():
        assert all(each.message in text for each in (*errors, *warnings[:40])), form
        assert not any(f"{each.message}\n" in text or f'{each.message}"' in text for each in warnings[40:]), form
    assert texts["full"].endswith("\nand 110 more, which are not shown: 110 of SH601\n\n")
    assert texts["concise"].endswith("\nshardc: note: and 110 more, which are not shown: 110 of SH601\n")
    schema = json.loads((SPECS / "diagnostic.schema.json").read_text("utf-8"))
    lines = list(map(json.loads, texts["json"].splitlines()))
    for line in lines:
        jsonschema.validate(line, schema)
    assert len(lines) == SHOWN + 1 and lines[-1] == {"more": 110, "codes": {"SH601": 110}}
    (run,) = json.loads(texts["sarif"])["runs"]
    assert len(run["results"]) == SHOWN and run["properties"] == {"notShown": {"SH601": 110}}
    assert rendered(found[:SHOWN], "concise").count("\n") == SHOWN
