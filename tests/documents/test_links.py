"""What the README and the pages of specs/ point to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.bless import SPECS

ROOT = SPECS.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(SPECS.glob("**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text("utf-8")
    linked = re.findall(r"\]\(([^)#:]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    assert [link for link in linked if not (page.parent / link).exists()] == []
    named = re.findall(r"`([\w-]+\.md)`", text) if page.parent == SPECS else []
    assert [name for name in named if not (SPECS / name).exists()] == []


def test_files_and_folders_that_contributors_are_sent_to_are_there() -> None:
    text = PAGES[1].read_text("utf-8").replace("SHnnn-what-it-is.md", "")
    named = re.findall(r"`([\w.-]+(?:/[\w.-]*)+)(?::\w+)?`", text)
    assert len([path for path in named if path.endswith(".py")]) >= 10
    within = [ROOT, ROOT / "shardlang", *(ROOT / "shardlang").iterdir()]
    assert [path for path in named if not any((folder / path).exists() for folder in within)] == []
    inside = re.findall(r"`([\w/]+\.py):(\w+)`", text)
    assert [
        name for path, name in inside if not re.search(rf"(class|def) {name}\b", (within[1] / path).read_text())
    ] == []


def test_the_readme_leads_to_what_a_new_user_needs() -> None:
    linked = re.findall(r"\]\(specs/(\w+\.md)\)", PAGES[0].read_text("utf-8"))
    assert {"reference.md", "recipes.md", "pytorch.md", "schedules.md"} <= set(linked)


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_pages_for_users_name_no_tests(page: Path) -> None:
    assert (
        re.findall(r"\btests/\S+|\btest_\w+", re.sub(r"(?m)^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL))
        == []
    )


def test_the_readme_installs_what_is_small_first() -> None:
    commands = re.findall(r"^pip install .*", PAGES[0].read_text("utf-8"), re.MULTILINE)
    assert commands == ["pip install .", 'pip install ".[train]"', 'pip install -e ".[dev]"']


def test_what_needs_a_library_of_the_oracle_is_run_with_it() -> None:
    """`.ci/run` has these libraries beside the oldest torch alone: what it does not name there is never run."""
    second = (ROOT / ".ci" / "run").read_text("utf-8").partition("# How torch differentiates")[2]
    named = set(re.findall(r"[\w/]+", second))
    needs = [p for p in ROOT.glob("tests/*/**/test_*.py") if "importorskip(" in p.read_text("utf-8")]
    places = [p.relative_to(ROOT).with_suffix("") for p in needs if p.name != "test_links.py"]
    assert places
    assert [p for p in places if named.isdisjoint({str(p), str(p.parent), p.name.removeprefix("test_")})] == []
