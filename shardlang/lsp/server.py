"""`shardc lsp`: the language server over stdio. Its answers are made by
`shardlang/editor/`."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sequence
from functools import partial
from threading import Event
from typing import Any

from lsprotocol import types as lsp
from pygls.io_ import StdoutWriter, run_async
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from shardlang import __version__
from shardlang.diagnostics.explain_pages import pages
from shardlang.editor.formatted import format_edits
from shardlang.editor.open_file import OpenFile
from shardlang.lsp import converted
from shardlang.lsp.protocol import OwnTexts
from shardlang.lsp.session import Session
from shardlang.sources.source import Source


class ShardServer(LanguageServer):
    """sessions: of the open files, by their addresses; kinds: of the hints that are shown."""

    def __init__(self) -> None:
        super().__init__("shardc", __version__, protocol_cls=OwnTexts)
        self.sessions: dict[str, Session] = {}
        self.ranks: int | None = None
        self.strategy: str | None = None
        self.kinds: Sequence[str] = ("layouts", "sent")
        self._shown: dict[str, object] = {}

    def file(self, uri: str) -> OpenFile | None:
        """The open file, as it is checked now."""
        if uri not in self.sessions:
            return None
        self.sessions[uri].now()
        return self.sessions[uri].file

    def tell(self, uri: str) -> None:
        """Sends the mistakes of a file; has the editor ask for hints and lenses, if they differ."""
        session = self.sessions[uri]
        file = session.file
        found = [converted.diagnostic(file.text, each, _page(each.code)) for each in file.mistakes]
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, found, session.version))
        shown = tuple(file.hints), tuple(file.lenses)
        if shown != self._shown.get(uri):
            self._shown[uri] = shown
            self._refresh()

    def _refresh(self) -> None:
        workspace = self.client_capabilities.workspace
        for kind, what in (
            ("inlay_hint", lsp.WORKSPACE_INLAY_HINT_REFRESH),
            ("code_lens", lsp.WORKSPACE_CODE_LENS_REFRESH),
        ):
            can = getattr(workspace, kind, None)
            if can is not None and can.refresh_support:
                self.protocol.send_request(what, None)

    def close(self, uri: str) -> None:
        if uri in self.sessions:
            self.sessions.pop(uri).close()
            self._shown.pop(uri, None)
            self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, []))


def _page(code: str) -> str:
    """The address of a code's page, which every installation has."""
    return pages()[code].as_uri() if code in pages() else ""


def serve() -> None:
    """Speaks the protocol over standard input and output until the editor ends it, or itself."""
    server = ShardServer()
    _register(server)
    gc.freeze()
    asyncio.run(_serve(server))


async def _serve(server: ShardServer) -> None:
    """Without threads: a fork of this process has to be whole."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    server.protocol.set_writer(StdoutWriter(sys.stdout.buffer))
    try:
        await run_async(Event(), reader, server.protocol)
    finally:
        for uri in list(server.sessions):
            server.sessions.pop(uri).close()


def _register(server: ShardServer) -> None:
    server.feature(lsp.INITIALIZE)(initialized)
    server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)(opened)
    server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)(changed)
    server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)(closed)
    server.feature(lsp.TEXT_DOCUMENT_INLAY_HINT)(inlay_hints)
    server.feature(lsp.TEXT_DOCUMENT_CODE_LENS)(lenses)
    server.feature(lsp.TEXT_DOCUMENT_HOVER)(hover)
    kinds = lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix])
    server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, kinds)(actions)
    server.feature(lsp.TEXT_DOCUMENT_FORMATTING)(formatting)
    server.feature(lsp.TEXT_DOCUMENT_RANGE_FORMATTING)(range_formatting)
    server.command("shard.choose")(choose)
    server.command("shard.strategies")(strategies)
    server.command("shard.report")(report)


def initialized(ls: ShardServer, params: lsp.InitializeParams) -> None:
    given = params.initialization_options
    options: dict[str, Any] = given if isinstance(given, dict) else {}
    ranks, strategy, hints = (options.get(name) for name in ("ranks", "strategy", "hints"))
    ls.ranks = ranks if isinstance(ranks, int) and ranks > 0 else None
    ls.strategy = strategy if isinstance(strategy, str) else None
    if isinstance(hints, dict):
        ls.kinds = [kind for kind in ls.kinds if hints.get(kind, True)]


def opened(ls: ShardServer, params: lsp.DidOpenTextDocumentParams) -> None:
    it = params.text_document
    ls.close(it.uri)
    file = OpenFile(to_fs_path(it.uri) or it.uri, it.text, ls.strategy, ls.ranks)
    ls.sessions[it.uri] = Session(file, it.version, partial(ls.tell, it.uri))


def changed(ls: ShardServer, params: lsp.DidChangeTextDocumentParams) -> None:
    it = params.text_document
    session = ls.sessions.get(it.uri)
    if session is not None and it.version > session.version:
        session.change(it.version, params.content_changes)


def closed(ls: ShardServer, params: lsp.DidCloseTextDocumentParams) -> None:
    ls.close(params.text_document.uri)


def inlay_hints(ls: ShardServer, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
    file = ls.file(params.text_document.uri)
    if file is None:
        return []
    found = (converted.hint(file.text, each) for each in file.hints if each.kind in ls.kinds)
    return [each for each in found if params.range.start.line <= each.position.line <= params.range.end.line]


def lenses(ls: ShardServer, params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
    uri = params.text_document.uri
    file = ls.file(uri)
    return [converted.code_lens(file.text, uri, each) for each in file.lenses] if file is not None else []


def hover(ls: ShardServer, params: lsp.HoverParams) -> lsp.Hover | None:
    file = ls.file(params.text_document.uri)
    found = file.planned_text(converted.offset(file.text, params.position)) if file is not None else None
    if file is None or found is None:
        return None
    place, text = found
    content = lsp.MarkupContent(lsp.MarkupKind.Markdown, text)
    return lsp.Hover(content, converted.text_range(file.text, *place))


def actions(ls: ShardServer, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    """The fixes of the mistakes that touch a range."""
    uri = params.text_document.uri
    file = ls.file(uri)
    if file is None:
        return []
    start, end = converted.offsets(file.text, params.range)
    found = []
    for each in file.mistakes:
        if each.start <= end and start <= each.end:
            shown = converted.diagnostic(file.text, each, _page(each.code))
            alone = len(each.fixes) == 1
            found += [converted.action(file.text, uri, fix, shown, alone) for fix in each.fixes]
    return found


def formatting(ls: ShardServer, params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
    file = ls.file(params.text_document.uri)
    return converted.edits(file.text, format_edits(Source(file.name, file.text))) if file is not None else []


def range_formatting(ls: ShardServer, params: lsp.DocumentRangeFormattingParams) -> list[lsp.TextEdit]:
    file = ls.file(params.text_document.uri)
    if file is None:
        return []
    start, end = converted.offsets(file.text, params.range)
    return converted.edits(file.text, format_edits(Source(file.name, file.text), start, end))


def choose(ls: ShardServer, uri: str, strategy: str | None = None, ranks: int | None = None) -> None:
    """Shows another strategy, or other ranks."""
    session = ls.sessions.get(uri)
    if session is not None:
        session.file.strategy, session.file.ranks = strategy, ranks or session.file.ranks
        session.soon()


def strategies(ls: ShardServer, uri: str) -> list[dict[str, Any]]:
    file = ls.file(uri)
    return [{"name": each.strategy, "chosen": each.chosen} for each in file.lenses] if file is not None else []


async def report(ls: ShardServer, uri: str) -> dict[str, str | None]:
    session = ls.sessions.get(uri)
    return {"html": await session.page() if session is not None else None}
