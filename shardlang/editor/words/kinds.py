"""A place in a table of names -> the names of each kind that may stand there, the nearest first:
values, sizes, dims, types, what is called, and what is used and not declared yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from shardlang.check.context import Loader
from shardlang.check.declared import TEXTS, WORDS
from shardlang.check.model.operators import operator_names
from shardlang.check.model.scan import SCAN
from shardlang.editor.words.cursor import CursorPlace
from shardlang.editor.words.names import NameTable
from shardlang.editor.words.paths import PATHS
from shardlang.editor.words.scopes import NameDecl, NameRole, Names, members
from shardlang.editor.words.signatures import Offer, of_decl, of_kind, of_operator, plain
from shardlang.editor.words.uses import CALLED
from shardlang.facts.dtypes import DTYPES
from shardlang.ops.declaration import REGISTRY
from shardlang.syntax import ast

_R = NameRole
_VALUES = (
    _R.VALUE, _R.FIELD, _R.PARAMETER, _R.STATE, _R.LAYER, _R.DIM, _R.FORMAL, _R.FUNCTION, _R.OPERATOR, _R.SETTING,
)  # fmt: skip
_STATIC = (_R.DIM, _R.FORMAL)
_PIPED = (_R.LAYER, _R.FUNCTION, _R.OPERATOR)
NAMES = re.compile(r"[A-Za-z_]\w*")


class PlaceNames:
    """The kinds of names at one place."""

    def __init__(self, table: NameTable, place: CursorPlace, load: Loader, offset: int) -> None:
        self.table, self.place, self.load = table, place, load
        self.before, self.block = place.before, place.block
        self.first = place.before[0] if place.before else ""
        self.visible = table.scope(offset).visible()
        self.root: Names = members(table.root) if table.root is not None else {}

    def undeclared(self, *roles: NameRole) -> Iterator[Offer]:
        """Names that are used in the file and not declared yet. roles: of these alone."""
        for use in self.table.uses:
            if use.missing and (not roles or use.role in roles) and use.span != self.place.word:
                names = NAMES.findall(use.span.text)
                yield from (plain(name, use.role.value, detail="not declared yet") for name in names)
        missing = {decl.text: decl for decl in self.table.file.names.values() if isinstance(decl.node, ast.Use)}
        yield from (plain(name, _R.VALUE.value, detail="not found where it is imported from") for name in missing)

    def fresh(self) -> Iterator[Offer]:
        """The kinds that a declaration may be of: what is used already, and what the other branch
        has."""
        yield from self.undeclared()
        if {"if", "else"}.intersection(self.place.blocks):
            yield from self.decls(self.table.file.around(self.place.word), PATHS)

    def before_sign(self, *signs: str) -> list[str]:
        """The names of the statement that these texts follow: what it declares itself."""
        texts, count = self.before, len(signs)
        return [
            text for at, text in enumerate(texts) if text.isidentifier() and texts[at + 1 : at + 1 + count] == signs
        ]

    def types(self) -> Iterator[Offer]:
        yield from (plain(name, "type") for name in DTYPES)

    def dims(self) -> Iterator[Offer]:
        """Dims in a type: also those of the same statement, which may declare them there."""
        depth, written = 0, list[str]()
        for text in self.before:
            depth += (text == "[") - (text == "]")
            written += [text] * (depth > 0 and text.isidentifier())
        written += self.before_sign(":", "dim")
        yield from (plain(name, "dim") for name in written)
        yield from self.decls(self.visible, (_R.DIM,))
        yield from self.decls(self.root if self.block == "train" else {}, (_R.DIM,))
        yield from self.undeclared(_R.DIM)

    def decls(self, names: Mapping[str, NameDecl], roles: Sequence[NameRole] = ()) -> Iterator[Offer]:
        late = self.place.word.start
        for name, decl in names.items():
            ahead = decl.role is _R.VALUE and decl.span.source is self.table.source and decl.span.start > late
            if (not roles or decl.role in roles) and (not ahead or roles is PATHS):
                yield of_decl(name, decl)

    def static(self) -> Iterator[Offer]:
        yield from self.decls(self.visible, _STATIC)
        if self.first == "dim" and not self.place.blocks:
            yield from (of_kind(name, kind, "function") for name, kind in {**WORDS, **TEXTS}.items())

    def operators(self) -> Iterator[Offer]:
        yield from (of_operator(REGISTRY[name]) for name in operator_names())

    def expression(self) -> Iterator[Offer]:
        if self.place.previous == "|>":
            yield from self.decls(self.visible, _PIPED)
        else:
            latest = {name: decl for name, decl in reversed(self.visible.items()) if decl.role is _R.VALUE}
            yield from self.decls({**latest, **self.visible}, _VALUES)
            yield from self.undeclared()
            yield plain(SCAN, "operator")
        yield from self.operators()

    def called(self, place: str) -> Iterator[Offer]:
        """All that the language and the files have to be called there."""
        role, table = CALLED[place]
        yield from (of_kind(name, kind, role.value) for name, kind in table.items())
        yield from self.decls(self.visible, (role,))
