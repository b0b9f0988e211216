"""`shardc lsp` over stdio: files that import others, open ones and others."""

from __future__ import annotations

from pathlib import Path

import pytest
from lsprotocol import types as lsp
from pytest_lsp import LanguageClient

from tests.lsp.conftest import Editor

LAYERS = """\
model Double {
  forward(x: [..., d]) -> [..., d] {
    return x + x
  }
}
"""
PROGRAM = """\
use "./layers.shard": Double

dim batch = 4, d = 8

model Net {
  layer twice = Double()

  forward(x: [batch, d]) -> [batch, d] {
    return twice(x)
  }
}
"""


class Both:
    """A program in a folder, and the file that it imports, which is not open yet."""

    def __init__(self, client: LanguageClient, folder: Path) -> None:
        self.file = folder / "layers.shard"
        self.file.write_text(LAYERS)
        self.program = Editor(client, (folder / "program.shard").as_uri())
        self.layers = self.program.beside(self.file.as_uri())


@pytest.fixture
def both(client: LanguageClient, tmp_path: Path) -> Both:
    return Both(client, tmp_path)


def codes(found: lsp.PublishDiagnosticsParams) -> list[object]:
    return [each.code for each in found.diagnostics]


@pytest.mark.asyncio
async def test_what_is_typed_in_an_open_import_counts_until_it_is_closed(both: Both) -> None:
    assert await both.program.open(PROGRAM) == []
    assert await both.layers.open(LAYERS) == []
    await both.layers.type(0, len("model "), "Twice", over=len("Double"))
    assert codes(await both.program.told(lambda found: bool(found.diagnostics))) == ["SH202"]
    both.program.client.text_document_did_close(lsp.DidCloseTextDocumentParams(both.layers.document))
    await both.program.told(lambda found: not found.diagnostics)


@pytest.mark.asyncio
async def test_an_import_that_changes_or_vanishes_on_the_disk(both: Both) -> None:
    assert await both.program.open(PROGRAM) == []

    async def seen() -> list[object]:
        change = lsp.FileEvent(both.layers.uri, lsp.FileChangeType.Changed)
        both.program.client.workspace_did_change_watched_files(lsp.DidChangeWatchedFilesParams([change]))
        both.program._told.clear()
        return codes(await both.program.told(lambda found: True))

    both.file.write_text(LAYERS.replace("x + x", "x + y"))
    assert await seen() == ["SH200"]
    both.file.unlink()
    assert await seen() == ["SH203"]
    both.file.write_text('use "./program.shard": Net\n' + LAYERS)
    assert await seen() == ["SH204"]
    both.file.write_text(LAYERS)
    assert await seen() == []


@pytest.mark.asyncio
async def test_another_name_goes_into_files_that_are_not_open(both: Both) -> None:
    await both.program.open(PROGRAM)
    at = lsp.Position(5, len("  layer twice = D"))
    found = await both.program.client.text_document_rename_async(lsp.RenameParams(both.program.document, at, "Twice"))
    assert found is not None and found.document_changes is not None
    changes = [each for each in found.document_changes if isinstance(each, lsp.TextDocumentEdit)]
    edits = {each.text_document.uri: (each.text_document.version, len(each.edits)) for each in changes}
    assert edits == {both.program.uri: (1, 2), both.layers.uri: (None, 1)}


@pytest.mark.asyncio
async def test_a_file_that_is_too_large_is_refused(both: Both) -> None:
    (found,) = await both.program.open("#" * 4_000_001)
    assert found.message.startswith("`program.shard` is larger than 4 MB")
    assert await both.program.type(0, 0, "", over=4_000_001) == []
