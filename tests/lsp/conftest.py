"""A client of the server, over stdio, as an editor speaks to it."""

from __future__ import annotations

import asyncio
import copy
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_lsp
from lsprotocol import types as lsp
from pytest_lsp import ClientServerConfig, LanguageClient

Answer = TypeVar("Answer")
EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = [sys.executable, "-c", "from shardlang.cli.start import main; main()", "lsp"]
WHOLE = lsp.Range(lsp.Position(0, 0), lsp.Position(10_000, 0))


class Editor:
    """A client with one open file. hints: of the newest plan, once it is there."""

    def __init__(self, client: LanguageClient, uri: str) -> None:
        self.client, self.uri, self.version = client, uri, 0
        self.document = lsp.TextDocumentIdentifier(uri)
        self._fresh, self._told = asyncio.Event(), dict[str, lsp.PublishDiagnosticsParams]()
        # (To wait for one notification would miss one of two that come at once.)
        features = client.protocol.fm.features
        features[lsp.WORKSPACE_INLAY_HINT_REFRESH] = lambda params: self._fresh.set()
        features[lsp.WORKSPACE_CODE_LENS_REFRESH] = lambda params: self._fresh.set()
        features[lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS] = self._take

    def _take(self, params: lsp.PublishDiagnosticsParams) -> None:
        self._told[params.uri] = params
        self._fresh.set()

    def beside(self, uri: str) -> Editor:
        """Another file of the same editor."""
        other = copy.copy(self)
        other.uri, other.version, other.document = uri, 0, lsp.TextDocumentIdentifier(uri)
        return other

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
        return list((await self.told(lambda found: found.version == self.version)).diagnostics)

    async def told(self, ready: Callable[[lsp.PublishDiagnosticsParams], bool]) -> lsp.PublishDiagnosticsParams:
        """What was told last of the file, once that is ready."""
        while self.uri not in self._told or not ready(self._told[self.uri]):
            self._fresh.clear()
            await self._fresh.wait()
        return self._told[self.uri]

    async def lenses(self, ready: int) -> list[str]:
        """The titles, once so many of them say what a strategy costs."""

        async def titles() -> list[str]:
            found = await self.client.text_document_code_lens_async(lsp.CodeLensParams(self.document)) or []
            return [lens.command.title for lens in found if lens.command is not None]

        return await self.once(titles, lambda found: sum(" ranks" in title for title in found) >= ready)

    async def once(self, ask: Callable[[], Awaitable[Answer]], ready: Callable[[Answer], bool]) -> Answer:
        """An answer, asked for anew each time that the server has something new, until it is ready."""
        while True:
            self._fresh.clear()
            found = await ask()
            if ready(found):
                return found
            await self._fresh.wait()

    async def hints(self) -> list[tuple[int, str]]:
        found = await self.client.text_document_inlay_hint_async(lsp.InlayHintParams(self.document, WHOLE)) or []
        return [(hint.position.line, str(hint.label)) for hint in found]


@pytest_lsp.fixture(config=ClientServerConfig(server_command=COMMAND))
async def client(lsp_client: LanguageClient) -> AsyncIterator[None]:
    lsp_client.feature(lsp.CLIENT_REGISTER_CAPABILITY)(lambda params: None)
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
