"""Requests of an editor that do not go by names -> the answers: texts as they change, mistakes and
their fixes, hints, lenses, texts for where one points, form, and the commands."""

from __future__ import annotations

from functools import partial
from typing import Any

from lsprotocol import types as lsp
from pygls.uris import to_fs_path

from shardlang.editor.formatted import format_edits
from shardlang.editor.hovered import hovered
from shardlang.editor.open_file import OpenFile
from shardlang.lsp import converted
from shardlang.lsp.server import ShardServer, page_of
from shardlang.lsp.session import Session
from shardlang.sources.source import Source


def register(server: ShardServer) -> None:
    server.feature(lsp.INITIALIZE)(initialized)
    server.feature(lsp.INITIALIZED)(watching)
    server.feature(lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES)(changed_on_disk)
    server.feature(lsp.SHUTDOWN)(shut_down)
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


def shut_down(ls: ShardServer, params: None) -> None:
    for session in ls.sessions.values():
        session.close()


def opened(ls: ShardServer, params: lsp.DidOpenTextDocumentParams) -> None:
    it = params.text_document
    ls.close(it.uri)
    ls.forget(it.uri)
    file = OpenFile(to_fs_path(it.uri) or it.uri, it.text, ls.strategy, ls.ranks)
    ls.sessions[it.uri] = Session(file, it.version, ls.files, partial(ls.tell, it.uri))
    ls.show(it.uri)


def changed(ls: ShardServer, params: lsp.DidChangeTextDocumentParams) -> None:
    it = params.text_document
    session = ls.sessions.get(it.uri)
    if session is not None and it.version > session.version:
        ls.changed(session)
        session.change(it.version, params.content_changes)


def closed(ls: ShardServer, params: lsp.DidCloseTextDocumentParams) -> None:
    ls.close(params.text_document.uri)
    ls.forget()


async def watching(ls: ShardServer, params: lsp.InitializedParams) -> None:
    """Has the editor tell of programs that change on the disk."""
    files = ls.client_capabilities.workspace and ls.client_capabilities.workspace.did_change_watched_files
    if files and files.dynamic_registration:
        options = lsp.DidChangeWatchedFilesRegistrationOptions([lsp.FileSystemWatcher("**/*.shard")])
        wanted = lsp.Registration("programs", lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
        await ls.client_register_capability_async(lsp.RegistrationParams([wanted]))


def changed_on_disk(ls: ShardServer, params: lsp.DidChangeWatchedFilesParams) -> None:
    ls.forget()


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
    if file is None:
        return None
    found = hovered(file, ls.names(file), converted.offset(file.text, params.position), ls.pages)
    return lsp.Hover(converted.markdown(found[1]), converted.text_range(file.text, *found[0])) if found else None


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
            shown = converted.diagnostic(file.text, each, page_of(each.code))
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
