"""Roles of names -> the protocol's kinds of symbols and of offers, and its tokens for colours."""

from __future__ import annotations

from collections.abc import Mapping

from lsprotocol import types as lsp

from shardlang.editor.text import place_of
from shardlang.editor.words.names import NameTable
from shardlang.editor.words.scopes import NameRole

_S, _C = lsp.SymbolKind, lsp.CompletionItemKind

# A role -> its kind of symbol, of offer, and of token.
_KINDS: Mapping[NameRole, tuple[lsp.SymbolKind, lsp.CompletionItemKind, str]] = {
    NameRole.MODEL: (_S.Class, _C.Class, "class"),
    NameRole.FUNCTION: (_S.Function, _C.Function, "function"),
    NameRole.OPERATOR: (_S.Function, _C.Function, "function"),
    NameRole.SOURCE: (_S.Function, _C.Function, "function"),
    NameRole.SCHEDULE: (_S.Function, _C.Function, "function"),
    NameRole.OPTIMIZER: (_S.Function, _C.Function, "function"),
    NameRole.DEVICE: (_S.Struct, _C.Struct, "struct"),
    NameRole.CLUSTER: (_S.Struct, _C.Struct, "struct"),
    NameRole.LEVEL: (_S.Struct, _C.Struct, "struct"),
    NameRole.LIBRARY: (_S.Module, _C.Module, "namespace"),
    NameRole.DIM: (_S.Constant, _C.Constant, "typeParameter"),
    NameRole.FORMAL: (_S.Variable, _C.Variable, "parameter"),
    NameRole.ARGUMENT: (_S.Variable, _C.Property, "parameter"),
    NameRole.LAYER: (_S.Field, _C.Field, "method"),
    NameRole.PARAMETER: (_S.Field, _C.Field, "property"),
    NameRole.STATE: (_S.Field, _C.Field, "property"),
    NameRole.VALUE: (_S.Variable, _C.Variable, "variable"),
    NameRole.FIELD: (_S.Variable, _C.Variable, "variable"),
    NameRole.METRIC: (_S.Variable, _C.Variable, "variable"),
    NameRole.STRATEGY: (_S.Namespace, _C.Module, "namespace"),
    NameRole.AXIS: (_S.EnumMember, _C.EnumMember, "enumMember"),
    NameRole.SELECTOR: (_S.Field, _C.Field, "property"),
    NameRole.SETTING: (_S.Property, _C.Property, "keyword"),
    NameRole.FIGURE: (_S.Variable, _C.Variable, "variable"),
    NameRole.START: (_S.Function, _C.Function, "function"),
    NameRole.TYPE: (_S.TypeParameter, _C.TypeParameter, "type"),
    NameRole.WORD: (_S.Constant, _C.EnumMember, "keyword"),
}
SYMBOLS = {role: symbol for role, (symbol, _, _) in _KINDS.items()}
# An offer's kind is a role, or one of these.
OFFERS = {
    **{role.value: offer for role, (_, offer, _) in _KINDS.items()},
    "keyword": _C.Keyword, "unit": _C.Unit, "schedule": _C.Function, "snippet": _C.Snippet,
}  # fmt: skip
_TYPES = sorted({token for _, _, token in _KINDS.values()})
_MODIFIERS = ["declaration", "defaultLibrary"]
LEGEND = lsp.SemanticTokensLegend(_TYPES, _MODIFIERS)
_TOKENS = {role: _TYPES.index(token) for role, (_, _, token) in _KINDS.items()}


def numbers(table: NameTable) -> list[int]:
    """The names of a file as the protocol packs them: five numbers each, places counted from the
    name before."""
    found, line, column = list[int](), 0, 0
    for use in table.uses:
        start, end = (place_of(table.source.text, at) for at in (use.span.start, use.span.end))
        if start.line != end.line or start == end:
            continue  # a path of several parts over lines
        library = use.declared is None or use.declared.source.library
        modifiers = use.declares + 2 * library
        found += [start.line - line, start.column - (column if start.line == line else 0)]
        found += [end.column - start.column, _TOKENS[use.role], modifiers]
        line, column = start.line, start.column
    return found
