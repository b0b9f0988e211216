"""What pages of specs/ say that commands print is what they print."""

from __future__ import annotations

import pytest

from tests.views.pages import PAGES, commands, shown


@pytest.mark.parametrize(("line", "said"), [
    pytest.param(*command, id=command[0]) for page in PAGES for command in commands(page)
])  # fmt: skip
def test_commands_print_what_the_page_says(line: str, said: str) -> None:
    assert shown(line) == said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_page_shows_a_command(page: object) -> None:
    assert commands(page)  # type: ignore[arg-type]
