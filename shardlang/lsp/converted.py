"""Plain values of `shardlang/editor/` -> those of the protocol, and places back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from lsprotocol import types as lsp
from pygls.uris import from_fs_path

from shardlang.editor.mistakes import FilePlace, Fix, ShownMistake
from shardlang.editor.open_file import Lens
from shardlang.editor.shown import Hint
from shardlang.editor.text import TextEdit, TextPlace, offset_of, place_of
from shardlang.editor.words.signatures import Offer
from shardlang.lsp import roles
from shardlang.sources.resources import folder
from shardlang.sources.source import Span

_PLACE = re.compile(r"\$\{\d+:([^}]*)\}")  # of a snippet
SEVERITIES = {
    "error": lsp.DiagnosticSeverity.Error, "warning": lsp.DiagnosticSeverity.Warning,
    "note": lsp.DiagnosticSeverity.Information,
}  # fmt: skip


def position(text: str, offset: int) -> lsp.Position:
    return _position(place_of(text, offset))


def _position(place: TextPlace) -> lsp.Position:
    return lsp.Position(place.line, place.column)


def offset(text: str, at: lsp.Position) -> int:
    return offset_of(text, TextPlace(at.line, at.character))


def offsets(text: str, of: lsp.Range) -> tuple[int, int]:
    """The ends of a range, in order."""
    start, end = sorted((offset(text, of.start), offset(text, of.end)))
    return start, end


def text_range(text: str, start: int, end: int) -> lsp.Range:
    return lsp.Range(position(text, start), position(text, end))


def span_range(span: Span) -> lsp.Range:
    return text_range(span.source.text, span.start, span.end)


def location(span: Span) -> lsp.Location:
    return lsp.Location(uri_of(span.source.name, span.source.library), span_range(span))


def markdown(text: str) -> lsp.MarkupContent:
    return lsp.MarkupContent(lsp.MarkupKind.Markdown, text)


def uri_of(file: str, library: bool) -> str:
    """The file of a source, which is in `std` or has a path."""
    if not library:
        return from_fs_path(str(Path(file).absolute())) or file
    path = folder("stdlib").joinpath(*file.removeprefix("std.").split("."))
    return path.with_suffix(".shard").as_uri()


def diagnostic(text: str, found: ShownMistake, page: str) -> lsp.Diagnostic:
    """page: the address of the code's page."""
    related = [lsp.DiagnosticRelatedInformation(_location(place), said) for place, said in found.related]
    return lsp.Diagnostic(
        text_range(text, found.start, found.end), found.text, SEVERITIES[found.severity], found.code or None,
        source="shardc", related_information=related, code_description=lsp.CodeDescription(page) if page else None,
    )  # fmt: skip


def _location(place: FilePlace) -> lsp.Location:
    return lsp.Location(uri_of(place.file, place.library), lsp.Range(_position(place.start), _position(place.end)))


def hint(text: str, found: Hint) -> lsp.InlayHint:
    kind = lsp.InlayHintKind.Type if found.kind == "layouts" else None
    return lsp.InlayHint(position(text, found.at), found.text, kind, padding_left=True)


def code_lens(text: str, uri: str, found: Lens) -> lsp.CodeLens:
    """A click on one that is not chosen chooses it."""
    title = found.text if found.chosen else f"{found.text} (choose)"
    command = lsp.Command(title, "shard.choose", arguments=[uri, found.strategy, None])
    return lsp.CodeLens(text_range(text, found.at, found.at + len(found.strategy)), command)


def action(text: str, uri: str, fix: Fix, of: lsp.Diagnostic, alone: bool) -> lsp.CodeAction:
    """alone: whether the mistake has no other fix."""
    changes = {uri: edits(text, fix.edits)}
    return lsp.CodeAction(
        fix.title, lsp.CodeActionKind.QuickFix, [of], is_preferred=alone, edit=lsp.WorkspaceEdit(changes)
    )


def edits(text: str, made: Iterable[TextEdit]) -> list[lsp.TextEdit]:
    return [lsp.TextEdit(text_range(text, each.start, each.end), each.text) for each in made]


def completion(text: str, word: Span, found: Offer, rank: int, snippets: bool) -> lsp.CompletionItem:
    """word: what stands there already. rank: among the offers. snippets: whether the editor has
    places to fill in."""
    edit = lsp.TextEdit(
        text_range(text, word.start, word.end), found.insert if snippets else _PLACE.sub(r"\1", found.insert)
    )
    form = lsp.InsertTextFormat.Snippet if found.snippet and snippets else lsp.InsertTextFormat.PlainText
    return lsp.CompletionItem(
        found.label, kind=roles.OFFERS[found.kind], detail=found.detail or None,
        documentation=markdown(found.doc) if found.doc else None, sort_text=f"{rank:04}", insert_text_format=form,
        text_edit=edit,
    )  # fmt: skip
