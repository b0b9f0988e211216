"""pygls's protocol, but for texts: the server keeps its own, in lines as editors count them.
(pygls ends a line at each character that Python does.)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lsprotocol import types as lsp
from pygls.protocol import LanguageServerProtocol, lsp_method

Answer = Iterator[tuple[Any, tuple[Any, ...], None]]


class OwnTexts(LanguageServerProtocol):
    """Columns are units of UTF-16, which each client must know."""

    @lsp_method(lsp.INITIALIZE)
    def lsp_initialize(self, params: lsp.InitializeParams) -> Any:
        if params.capabilities.general is not None:
            params.capabilities.general.position_encodings = None
        return (yield from super().lsp_initialize(params))

    @lsp_method(lsp.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: lsp.DidOpenTextDocumentParams) -> Answer:
        yield self.fm.features[lsp.TEXT_DOCUMENT_DID_OPEN], (params,), None

    @lsp_method(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: lsp.DidChangeTextDocumentParams) -> Answer:
        yield self.fm.features[lsp.TEXT_DOCUMENT_DID_CHANGE], (params,), None

    @lsp_method(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: lsp.DidCloseTextDocumentParams) -> Answer:
        yield self.fm.features[lsp.TEXT_DOCUMENT_DID_CLOSE], (params,), None
