"""`shardc lsp` over stdio, as an editor speaks to it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_lsp
from lsprotocol import types as lsp
from pytest_lsp import ClientServerConfig, LanguageClient

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = (EXAMPLES / "digits.shard").read_text("utf-8")
COMMAND = [sys.executable, "-c", "from shardlang.cli.start import main; main()", "lsp"]
WHOLE = lsp.Range(lsp.Position(0, 0), lsp.Position(10_000, 0))

NET = """\
dim batch = 4, d = 8
model Net {
  forward(x: [batch, d]) -> [batch, d] { #
    return dropout(x, p = 0.5, q = 1)
  }
}
"""


class Editor:
    """A client with one open file. hints: of the newest plan, once it is there."""

    def __init__(self, client: LanguageClient, uri: str) -> None:
        self.client, self.uri, self.version = client, uri, 0
        self.document = lsp.TextDocumentIdentifier(uri)
        self._fresh = asyncio.Event()
        client.feature(lsp.WORKSPACE_INLAY_HINT_REFRESH)(lambda params: None)
        client.feature(lsp.WORKSPACE_CODE_LENS_REFRESH)(lambda params: self._fresh.set())

    async def open(self, text: str) -> list[lsp.Diagnostic]:
        self.version += 1
        document = lsp.TextDocumentItem(self.uri, "shard", self.version, text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))
        return await self.mistakes()

    async def type(self, line: int, column: int, text: str, over: int = 0) -> list[lsp.Diagnostic]:
        """Types a text in place of `over` characters of a line; the mistakes then."""
        self.version += 1
        place = lsp.Range(lsp.Position(line, column), lsp.Position(line, column + over))
        self.send([lsp.TextDocumentContentChangePartial(place, text)], self.version)
        return await self.mistakes()

    def send(self, changes: list[lsp.TextDocumentContentChangeEvent], version: int) -> None:
        document = lsp.VersionedTextDocumentIdentifier(version, self.uri)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, changes))

    async def mistakes(self) -> list[lsp.Diagnostic]:
        """Those of the newest text."""
        while True:
            found = await self.client.wait_for_notification(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
            if found.version == self.version:
                return list(found.diagnostics)

    async def lenses(self, ready: int) -> list[str]:
        """The titles, once so many of them say what a strategy costs."""
        while True:
            found = await self.client.text_document_code_lens_async(lsp.CodeLensParams(self.document)) or []
            titles = [lens.command.title for lens in found if lens.command is not None]
            if sum(" ranks" in title for title in titles) >= ready:
                return titles
            self._fresh.clear()
            await self._fresh.wait()

    async def hints(self) -> list[tuple[int, str]]:
        found = await self.client.text_document_inlay_hint_async(lsp.InlayHintParams(self.document, WHOLE)) or []
        return [(hint.position.line, str(hint.label)) for hint in found]


@pytest_lsp.fixture(config=ClientServerConfig(server_command=COMMAND))
async def client(lsp_client: LanguageClient) -> AsyncIterator[None]:
    options = {"strategy": "both", "ranks": 8}
    capabilities = pytest_lsp.client_capabilities("visual-studio-code")
    await lsp_client.initialize_session(
        lsp.InitializeParams(capabilities=capabilities, initialization_options=options, process_id=os.getpid())
    )
    yield
    await lsp_client.shutdown_session()


@pytest.fixture
def editor(client: LanguageClient) -> Editor:
    return Editor(client, (EXAMPLES / "digits.shard").as_uri())


@pytest.mark.asyncio
async def test_a_mistake_is_shown_where_editors_count_it_and_goes(editor: Editor) -> None:
    text = NET.replace("{ #", "{ # \U0001f600").replace("p = 0.5", 'p = "\U0001f600"')
    (found,) = await editor.open(text)
    assert found.code == "SH220" and found.range.start == lsp.Position(3, 32)
    assert found.code_description is not None and found.code_description.href.startswith("file://")
    (found,) = await editor.type(3, 32, "", len("q = 1"))
    assert found.code != "SH220"


@pytest.mark.asyncio
async def test_hints_and_lenses_come_and_stay_while_a_mistake_comes_and_goes(editor: Editor) -> None:
    assert await editor.open(DIGITS) == []
    lenses = await editor.lenses(4)
    assert lenses[2] == "8 ranks (dp 4, mp 2): 81.2 kB at the peak, 29.8 kB sent a step"
    assert lenses[0].endswith("(choose)")
    hints = await editor.hints()
    assert "batch@dp, hidden@mp" in [text for _, text in hints]
    (found,) = await editor.type(1, 0, "dimm x = 3\n")
    assert found.code == "SH101" and await editor.lenses(4) == lenses
    assert await editor.hints() == [(line + 1, text) for line, text in hints]


@pytest.mark.asyncio
async def test_a_click_on_a_lens_shows_another_strategy(editor: Editor) -> None:
    await editor.open(DIGITS)
    await editor.lenses(4)
    arguments = [editor.uri, "tensor_parallel", 4]
    await editor.client.workspace_execute_command_async(lsp.ExecuteCommandParams("shard.choose", arguments))
    lenses = await editor.lenses(4)
    while not lenses[1].startswith("4 ranks (mp 4)"):
        await editor.mistakes()
        lenses = await editor.lenses(4)
    assert not lenses[1].endswith("(choose)") and lenses[2].endswith("(choose)")


@pytest.mark.asyncio
async def test_hover_tells_a_layout(editor: Editor) -> None:
    await editor.open(DIGITS)
    await editor.lenses(4)
    line = DIGITS[: DIGITS.index("h = up(image)")].count("\n")
    found = await editor.client.text_document_hover_async(lsp.HoverParams(editor.document, lsp.Position(line, 4)))
    assert found is not None and isinstance(found.contents, lsp.MarkupContent)
    assert "`f32[batch@dp, hidden@mp]`" in found.contents.value


@pytest.mark.asyncio
async def test_a_fix_is_offered_and_mends(editor: Editor) -> None:
    end = "mp\n}\n\nstrategy sharded"
    found, *_ = await editor.open(DIGITS.replace(end, end.replace("mp", "mq")))
    context = lsp.CodeActionContext([found])
    asked = lsp.CodeActionParams(editor.document, found.range, context)
    (fix, *_) = await editor.client.text_document_code_action_async(asked) or []
    assert isinstance(fix, lsp.CodeAction) and fix.title == "write `mp`" and fix.edit is not None
    assert fix.edit.changes is not None
    (edit,) = fix.edit.changes[editor.uri]
    start, end = edit.range.start, edit.range.end
    assert await editor.type(start.line, start.character, edit.new_text, end.character - start.character) == []


@pytest.mark.asyncio
async def test_a_file_and_a_part_of_it_are_formatted(editor: Editor) -> None:
    await editor.open(DIGITS.replace("dim batch = 64", "dim batch=64").replace("mp = 2", "mp=2"))
    options = lsp.FormattingOptions(2, True)
    every = await editor.client.text_document_formatting_async(lsp.DocumentFormattingParams(editor.document, options))
    assert len(every or []) == 2
    some = lsp.DocumentRangeFormattingParams(
        editor.document, lsp.Range(lsp.Position(0, 0), lsp.Position(10, 0)), options
    )
    assert len(await editor.client.text_document_range_formatting_async(some) or []) == 1


@pytest.mark.asyncio
async def test_edits_out_of_order_beyond_the_text_and_of_closed_files(editor: Editor) -> None:
    await editor.open("dim a = 1\n")
    old = lsp.TextDocumentContentChangePartial(WHOLE, "nonsense")
    editor.send([old], 0)  # older than what is there
    await editor.type(500, 70, "dim b = a\n")
    assert await editor.type(0, 4, "\U0001f600", over=900) != []
    gone = lsp.VersionedTextDocumentIdentifier(9, "file:///nowhere.shard")
    editor.client.text_document_did_change(lsp.DidChangeTextDocumentParams(gone, [old]))
    nothing = lsp.HoverParams(lsp.TextDocumentIdentifier("file:///nowhere.shard"), lsp.Position(3, 3))
    assert await editor.client.text_document_hover_async(nothing) is None
    editor.version += 1
    editor.send([lsp.TextDocumentContentChangeWholeDocument("dim a = 1\n")], editor.version)
    assert await editor.mistakes() == []
    editor.client.text_document_did_close(lsp.DidCloseTextDocumentParams(editor.document))
    await editor.client.wait_for_notification(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    assert list(editor.client.diagnostics[editor.uri]) == []


@pytest.mark.asyncio
async def test_the_page_of_a_plan(editor: Editor) -> None:
    await editor.open(DIGITS)
    asked = lsp.ExecuteCommandParams("shard.report", [editor.uri])
    found = await editor.client.workspace_execute_command_async(asked)
    assert found["html"].startswith("<!doctype html>") and "digits.shard" in found["html"]
    await editor.type(0, 0, "dimm x = 3\n")
    assert (await editor.client.workspace_execute_command_async(asked))["html"] is None
