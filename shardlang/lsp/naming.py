"""Requests of an editor that go by names -> the answers: where they are declared and used, what may
be written, how a call is written, other names, the outline, and roles for colours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcInvalidParams

from shardlang.editor.open_file import OpenFile
from shardlang.editor.renamed import broken
from shardlang.editor.words import rename as names
from shardlang.editor.words.complete import complete
from shardlang.editor.words.cursor import place_at
from shardlang.editor.words.names import NameTable
from shardlang.editor.words.outline import OutlineEntry, folded, outline
from shardlang.editor.words.signatures import signature
from shardlang.editor.workspace import TooManyFiles
from shardlang.lsp import converted, roles
from shardlang.lsp.server import ShardServer
from shardlang.sources.source import Source

_TRIGGERS = [".", "@", "(", ",", " ", '"']


def register(server: ShardServer) -> None:
    server.feature(lsp.TEXT_DOCUMENT_DEFINITION)(definition)
    server.feature(lsp.TEXT_DOCUMENT_REFERENCES)(references)
    server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)(highlights)
    server.feature(lsp.TEXT_DOCUMENT_PREPARE_RENAME)(prepare_rename)
    server.feature(lsp.TEXT_DOCUMENT_RENAME, lsp.RenameOptions(prepare_provider=True))(rename)
    server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(_TRIGGERS))(completion)
    server.feature(lsp.TEXT_DOCUMENT_SIGNATURE_HELP, lsp.SignatureHelpOptions(["(", ","]))(signature_help)
    server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)(symbols)
    server.feature(lsp.TEXT_DOCUMENT_FOLDING_RANGE)(folding)
    server.feature(lsp.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, roles.LEGEND)(semantic_tokens)


class _AtPlace(Protocol):
    """A request about a place in a file."""

    text_document: lsp.TextDocumentIdentifier
    position: lsp.Position


def _named(ls: ShardServer, params: _AtPlace) -> tuple[OpenFile, NameTable, int] | tuple[None, None, int]:
    """The file that is asked for, its names, and the place in it."""
    file = ls.file(params.text_document.uri)
    if file is None:
        return None, None, 0
    return file, ls.names(file), converted.offset(file.text, params.position)


def _others(ls: ShardServer, file: OpenFile, table: NameTable, at: int) -> list[NameTable]:
    """The names of further files that may have the name at a place."""
    use = table.at(at)
    try:
        return ls.others(file, use.span.text) if use is not None else []
    except TooManyFiles as reason:
        raise JsonRpcInvalidParams(str(reason)) from reason


def definition(ls: ShardServer, params: lsp.DefinitionParams) -> lsp.Location | None:
    """A file of the library is then shown as the layer that one came from runs it."""
    file, table, at = _named(ls, params)
    found = names.definition(table, at) if table is not None else None
    if file is None or table is None or found is None:
        return None
    layer = names.layer_at(table, at)
    if found.source.library and layer is not None:
        ls.called(params.text_document.uri, converted.uri_of(found.source.name, True), layer)
    return converted.location(found)


def references(ls: ShardServer, params: lsp.ReferenceParams) -> list[lsp.Location]:
    file, table, at = _named(ls, params)
    if file is None or table is None:
        return []
    found = names.references(table, at, _others(ls, file, table, at))
    use = table.at(at)
    own = None if params.context.include_declaration or use is None else use.declared
    return [converted.location(span) for span in found if own is None or span != own]


def highlights(ls: ShardServer, params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
    """The other places of a name; of a selector all that it covers too."""
    file, table, at = _named(ls, params)
    if file is None or table is None:
        return []
    found = dict.fromkeys([*names.references(table, at), *names.covered(table, at)])
    here = (span for span in found if span.source.name == file.name)
    return [lsp.DocumentHighlight(converted.span_range(span)) for span in here]


def prepare_rename(ls: ShardServer, params: lsp.PrepareRenameParams) -> lsp.PrepareRenamePlaceholder | None:
    _, table, at = _named(ls, params)
    use = table.at(at) if table is not None else None
    if table is None or use is None:
        return None
    refused = names.fixed(use, table)
    if refused:
        raise JsonRpcInvalidParams(refused)
    return lsp.PrepareRenamePlaceholder(converted.span_range(use.span), use.span.text)


def rename(ls: ShardServer, params: lsp.RenameParams) -> lsp.WorkspaceEdit | None:
    """The edits of every open file and of those beside it; a refusal is an error with its
    reason."""
    file, table, at = _named(ls, params)
    if file is None or table is None:
        return None
    found = names.rename(table, at, params.new_name, _others(ls, file, table, at))
    refused = found if isinstance(found, str) else broken(file, found, params.new_name, ls.files())
    if isinstance(found, str) or refused:
        raise JsonRpcInvalidParams(refused)
    changes: dict[str, list[lsp.TextEdit | lsp.AnnotatedTextEdit | lsp.SnippetTextEdit]] = {}
    for span in found:
        edit = lsp.TextEdit(converted.span_range(span), params.new_name)
        changes.setdefault(converted.uri_of(span.source.name, span.source.library), []).append(edit)
    ids = {uri: ls.version_of(uri) for uri in changes}
    edits = [
        lsp.TextDocumentEdit(lsp.OptionalVersionedTextDocumentIdentifier(uri, ids[uri]), made)
        for uri, made in changes.items()
    ]
    return lsp.WorkspaceEdit(document_changes=edits)


def completion(ls: ShardServer, params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
    file, table, at = _named(ls, params)
    if file is None or table is None:
        return []
    place, snippets = place_at(table.source, at), ls.snippets
    if place is None:
        return []
    found = complete(table, at, ls.files().load)
    return [converted.completion(file.text, place.word, each, rank, snippets) for rank, each in enumerate(found)]


def signature_help(ls: ShardServer, params: lsp.SignatureHelpParams) -> lsp.SignatureHelp | None:
    _, table, at = _named(ls, params)
    found = signature(table, at) if table is not None else None
    if found is None:
        return None
    arguments = [lsp.ParameterInformation(each) for each in found.parameters]
    shown = lsp.SignatureInformation(found.label, converted.markdown(found.doc), arguments)
    # Beyond all of them none is marked.
    active = found.active if found.active is not None else len(arguments)
    return lsp.SignatureHelp([shown], 0, active)


def symbols(ls: ShardServer, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
    file = ls.file(params.text_document.uri)
    return _symbols(outline(file.checked.tree)) if file is not None and file.checked is not None else []


def _symbols(entries: Iterable[OutlineEntry]) -> list[lsp.DocumentSymbol]:
    return [
        lsp.DocumentSymbol(
            each.name, roles.SYMBOLS[each.role], converted.span_range(each.span), converted.span_range(each.place),
            detail=each.detail, children=_symbols(each.inner),
        )
        for each in entries
    ]  # fmt: skip


def folding(ls: ShardServer, params: lsp.FoldingRangeParams) -> list[lsp.FoldingRange]:
    file = ls.file(params.text_document.uri)
    found = folded(Source(file.name, file.text)) if file is not None else ()
    kinds = {True: lsp.FoldingRangeKind.Comment, False: lsp.FoldingRangeKind.Region}
    return [lsp.FoldingRange(each.first - 1, each.last - 1, kind=kinds[each.comment]) for each in found]


def semantic_tokens(ls: ShardServer, params: lsp.SemanticTokensParams) -> lsp.SemanticTokens:
    file = ls.file(params.text_document.uri)
    return lsp.SemanticTokens(roles.numbers(ls.names(file)) if file is not None else [])
