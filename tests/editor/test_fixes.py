"""Each edit that a mistake offers makes it go: on every example of the pages of codes."""

from __future__ import annotations

import re

import pytest

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.diagnostics.explain_pages import pages
from shardlang.editor.mistakes import ShownMistake, mistakes
from shardlang.editor.text import edited
from shardlang.paths.patterns import Cuts
from shardlang.sources.source import Source

EXAMPLE = re.compile(r"^```shard(?P<attributes>[^\n]*)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


def found(text: str, ranks: int | None) -> tuple[list[Diagnostic], list[ShownMistake]]:
    source, sink = Source("a.shard", text), Sink()

    def checked(runs: Cuts | None, sink: Sink) -> CheckedProgram | None:
        program = driver.check_source(source, sink, runs=runs)
        if program is not None:
            driver.check_strategies(program, None, ranks, sink)
        return program

    driver.in_runs(checked, sink)
    return sink.found, mistakes(sink.found, driver.parse_source(source, Sink()))


def examples() -> list[tuple[str, str, int | None]]:
    made = []
    for code, page in pages().items():
        for example in EXAMPLE.finditer(page.read_text("utf-8")):
            ranks = re.search(r"ranks=(\d+)", example["attributes"])
            made.append((code, example["text"], int(ranks[1]) if ranks else None))
    return made


@pytest.fixture(scope="module")
def tried() -> list[tuple[str, str, bool]]:
    """Code, title and whether the mistake has gone, of each fix of each example that names one in its help."""
    results = []
    for code, text, ranks in examples():
        if code >= "SH5":
            continue
        before, shown = found(text, ranks)
        for diagnostic, mistake in zip(before, shown, strict=True):
            for fix in mistake.fixes:
                after = text
                for edit in sorted(fix.edits, key=lambda edit: -edit.start):
                    after = edited(after, edit)
                same = [
                    d for d in found(after, ranks)[0] if (d.code, d.message) == (diagnostic.code, diagnostic.message)
                ]
                results.append((diagnostic.code, fix.title, not same))
    return results


def test_a_fix_makes_its_mistake_go(tried: list[tuple[str, str, bool]]) -> None:
    assert [(code, title) for code, title, gone in tried if not gone] == []


def test_fixes_are_of_each_kind(tried: list[tuple[str, str, bool]]) -> None:
    """Nearest names, what to write, sizes that divide."""
    offered = {(code, title) for code, title, _ in tried}
    assert len(tried) > 30
    assert {("SH304", "make `mp` 2"), ("SH110", "write `==`"), ("SH306", "write `dp`")} <= offered


def test_a_rule_that_fits_becomes_the_last_line_of_its_strategy() -> None:
    text = "strategy s {\n  mesh dp = 2\n  split batch over dp\n}\n"
    source = Source("a.shard", text)
    tree = driver.parse_source(source, Sink())
    sink = Sink()
    sink.report("SH450", "a rank needs more than there is", None, help="`at blocks[*]: recompute` fits")
    (mistake,) = mistakes(sink.found, tree, "s")
    (fix,) = mistake.fixes
    assert fix.title == "add `at blocks[*]: recompute`"
    assert edited(text, fix.edits[0]) == text.replace("over dp\n", "over dp\n  at blocks[*]: recompute\n")
