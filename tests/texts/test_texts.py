"""Every code has a test that holds the whole of what its user sees, and the pages show real messages alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.diagnostics import explain_pages
from tests.mdtest import blocks
from tests.texts.cases import CASES, made, shown


@pytest.mark.parametrize("code", sorted(CASES))
def test_a_page_shows_what_its_user_sees(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\n\n".join(made(code, tmp_path, monkeypatch)) == "\n\n".join(shown(code))


def test_the_texts_of_every_code_are_held() -> None:
    """By the `diagnostics` block of its page, or by a case here."""
    pages = explain_pages.pages()
    checked = {code for code in pages if any(f"[{code}]: " in b.expected for b in blocks(explain_pages.page(code)))}
    assert sorted({*pages} - checked - {*CASES}) == []
    assert sorted({code for code in {*pages} - checked if not shown(code)}) == []
