"""The server of an editor: its open files, and what it sends of itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lsprotocol import types as lsp
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from shardlang import __version__
from shardlang.diagnostics.diagnostic import Sink
from shardlang.diagnostics.explain_pages import pages
from shardlang.editor.hovered import Pages
from shardlang.editor.open_file import OpenFile
from shardlang.editor.shown import LayerName
from shardlang.editor.words.names import NameTable, names_of
from shardlang.editor.workspace import program_files
from shardlang.lsp import converted
from shardlang.lsp.protocol import OwnTexts
from shardlang.lsp.session import Session
from shardlang.sources.files import Files
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse


class ShardServer(LanguageServer):
    """pages: what the language has under a name. sessions: of the open files, by their addresses;
    kinds: of the hints that are shown."""

    def __init__(self, pages: Pages) -> None:
        super().__init__("shardc", __version__, protocol_cls=OwnTexts)
        self.pages = pages
        self.sessions: dict[str, Session] = {}
        self.ranks: int | None = None
        self.strategy: str | None = None
        self.kinds: Sequence[str] = ("layouts", "sent")
        self._shown: dict[str, object] = {}
        self._called: dict[str, tuple[Session, LayerName]] = {}
        self._names: dict[str, NameTable] = {}

    def file(self, uri: str) -> OpenFile | None:
        """The open file, as it is checked now."""
        if uri not in self.sessions:
            return None
        self.sessions[uri].now()
        return self.sessions[uri].file

    @property
    def snippets(self) -> bool:
        """Whether the editor has places to fill in."""
        document = self.client_capabilities.text_document
        item = document.completion.completion_item if document is not None and document.completion is not None else None
        return bool(item is not None and item.snippet_support)

    def files(self) -> Files:
        """The files that imports find: open ones as they stand in the editor."""
        found = Files()
        for session in self.sessions.values():
            found.add(Source(session.file.name, session.file.text))
        return found

    def names(self, file: OpenFile) -> NameTable:
        """The names of an open file, as it is checked now."""
        assert file.checked is not None
        if file.name not in self._names:
            self._names[file.name] = names_of(file.checked.tree, self.files().load)
        return self._names[file.name]

    def others(self, file: OpenFile, word: str) -> list[NameTable]:
        """The names of the other files of the workspace, or of the folder, that have a word."""
        files, roots = self.files(), [Path(to_fs_path(uri) or "") for uri in self.workspace.folders]
        found = []
        for path in program_files(roots or [Path(file.name).parent]):
            source = files.load(file.name, str(path), True)
            if isinstance(source, Source) and source.name != file.name and word in source.text:
                found.append(names_of(parse(source, Sink()), files.load))
        return found

    def version_of(self, uri: str) -> int | None:
        """That of an open file."""
        return self.sessions[uri].version if uri in self.sessions else None

    def called(self, uri: str, library: str, layer: LayerName) -> None:
        """Notes the layer for which one goes from a file into the library."""
        session = self.sessions.get(uri)
        caller = session.program if session is not None else None
        if caller is not None:
            self._called[library] = caller, layer
            self.show(library)

    def show(self, uri: str) -> None:
        """Shows an open file of the library for the layer that one came from."""
        if uri in self.sessions and uri in self._called and not self._called[uri][0].closed:
            self.sessions[uri].show_for(*self._called[uri])

    def forget(self, uri: str = "") -> None:
        """Files came or went, which others may import: all that import something are checked."""
        self._names.clear()
        for other, session in self.sessions.items():
            if other != uri and session.file.imports:
                session.soon()

    def changed(self, session: Session) -> None:
        """The text of an open file has changed: those that read it are checked again."""
        self._names.clear()
        for other in self.sessions.values():
            if other is not session and other.file.kept.reads(session.file.name):
                other.soon()

    def tell(self, uri: str) -> None:
        """Sends the mistakes of a file; has the editor ask for hints and lenses, if they differ."""
        session = self.sessions[uri]
        file = session.file
        found = [converted.diagnostic(file.text, each, page_of(each.code)) for each in file.mistakes]
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


def page_of(code: str) -> str:
    """The address of a code's page, which every installation has."""
    return pages()[code].as_uri() if code in pages() else ""
