"""A table of names and an offset in its text -> what may be written there, each with what it is, what
is said of it, and the text to insert.

`cursor` says where it is; here each place has its kinds of names. Nothing is left out by what is
typed already: editors do that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from shardlang.check.context import Loader
from shardlang.check.declared import TEXTS, WORDS
from shardlang.check.files.imports import LIBRARIES
from shardlang.check.model.formals import KINDS
from shardlang.check.model.operators import operator_names
from shardlang.check.model.scan import SCAN
from shardlang.check.own import NEEDS
from shardlang.check.train.frozen import FREEZE
from shardlang.check.train.hardware import SETTINGS as HARDWARE
from shardlang.check.train.late import FIGURES
from shardlang.check.train.settings import CHOICES, SETTINGS
from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.words.cursor import CursorPlace, OpenBracket, place_at
from shardlang.editor.words.names import NameTable, names_of
from shardlang.editor.words.paths import PATHS, dim_paths, selectors
from shardlang.editor.words.scopes import NameDecl, NameRole, Names, file_names, formals_of, members, model_of
from shardlang.editor.words.signatures import (
    SNIPPETS,
    Offer,
    active,
    of_decl,
    of_formal,
    of_kind,
    of_operator,
    of_param,
    of_word,
    plain,
    resolved,
    target_of,
    words_of,
)
from shardlang.editor.words.uses import CALLED
from shardlang.facts.dtypes import DTYPES
from shardlang.ops.declaration import REGISTRY
from shardlang.plan.pipeline.schedules import SCHEDULES as STAGE_SCHEDULES
from shardlang.plan.rewrite.recompute_rules import GATHERS, NO_PRODUCTS
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.literals import UNITS
from shardlang.syntax.parse import parse
from shardlang.syntax.tokens import ITEM
from shardlang.syntax.words import CLAUSES, ITEMS, MEMBERS, RULES

_R = NameRole
_VALUES = (
    _R.VALUE, _R.FIELD, _R.PARAMETER, _R.STATE, _R.LAYER, _R.DIM, _R.FORMAL, _R.FUNCTION, _R.OPERATOR, _R.SETTING,
)  # fmt: skip
_STATIC = (_R.DIM, _R.FORMAL)
_PIPED = (_R.LAYER, _R.FUNCTION, _R.OPERATOR)
# The words that may follow a word of a rule.
_AFTER = {
    "recompute": (GATHERS, NO_PRODUCTS), "attend": ("evenly", "in a ring"), "on": ("host", "device"),
    "needs": tuple(NEEDS), "like": ("parameter",),
}  # fmt: skip
_DECLARING = ("layer", "param", "state", "dim", "mesh", "model", "fn", "strategy", "operator", "metric", "level")
_NAMES, _ITEM = re.compile(r"[A-Za-z_]\w*"), re.compile(rf"^{ITEM.pattern}", re.MULTILINE)


def complete(table: NameTable, offset: int, load: Loader) -> tuple[Offer, ...]:
    """What may be written at an offset; nothing in comments. load: finds the texts of imports."""
    place = place_at(table.source, offset)
    if place is None:
        return ()
    lost = not any(span.start <= offset <= span.end for span, _ in table.places)
    if lost and place.blocks and place.block not in HARDWARE:
        table = names_of(parse(_closed(place, offset), Sink()), load)
    found = _Offers(table, place, load, offset)
    return tuple({(offer.label, offer.snippet): offer for offer in found.all()}.values())


def _closed(place: CursorPlace, offset: int) -> Source:
    """The text with an end of the item around an offset, which a mistake keeps out of the tree: its
    blocks are closed there, without the statement that goes on."""
    source, text = place.word.source, place.word.source.text
    rest = next((found.start() for found in _ITEM.finditer(text, offset)), len(text))
    blank = " " * (offset - place.start) + "\n" + "}\n" * len(place.blocks)
    return Source(source.name, text[: place.start] + blank + text[rest:])


class _Offers:
    """What may be written at one place."""

    def __init__(self, table: NameTable, place: CursorPlace, load: Loader, offset: int) -> None:
        self.table, self.place, self.load = table, place, load
        self.before, self.block = place.before, place.block
        self.first = place.before[0] if place.before else ""
        self.visible = table.scope(offset).visible()
        self.root: Names = members(table.root) if table.root is not None else {}

    def all(self) -> Iterator[Offer]:
        place = self.place
        if place.quoted:
            yield from self._strings()
            return
        if place.unit:
            if place.word.text or self.block in HARDWARE or self.first == "bucket":
                yield from (plain(unit, "unit", f"{place.unit}{unit}") for unit in UNITS)
            return
        names = self._names() if place.name or place.previous == "." else iter(())
        # Where a statement begins, its words are what one looks for, and elsewhere names are.
        for offers in (names, self._words()) if self.before else (self._words(), names):
            yield from offers

    def _words(self) -> Iterator[Offer]:
        """Words of the language, as the grammar has them here."""
        docs = {**MEMBERS, **RULES, **CLAUSES} if self.place.blocks else {**RULES, **ITEMS}
        start = not self.before
        for word in self.place.allowed:
            yield of_word(word, docs.get(word))
            if start and not self.place.blocks and word in SNIPPETS:
                yield plain(word, "snippet", ITEMS[word].doc, insert=SNIPPETS[word], snippet=True)

    def _strings(self) -> Iterator[Offer]:
        if self.first == "schedule" and self.block == "strategy":
            yield from (plain(f'"{name}"', "schedule", RULES["schedule"].doc) for name in STAGE_SCHEDULES)
        if self.before[-2:] == ("split", "="):
            yield from (plain(f'"{name}"', "word") for name in ("train", "test"))

    # --- by place ---

    def _names(self) -> Iterator[Offer]:
        if self.first == "use" and not self.place.blocks:
            return self._imports()
        if not self.before:
            return self._start()
        if self.block in ("strategy", "at", "stages"):
            return self._rule(self.before)
        if self.block in HARDWARE:
            return self._decls(self.visible, (_R.DEVICE,))
        if self._in_type():
            return self._in_brackets()
        if self.block == "train" and "=" not in self.before:
            return selectors(self.table, self.before) if "at" in self.before else self._undeclared()
        if self.place.previous == ".":
            return self._members()
        return self._setting() if self.block == "train" else self._statement()

    def _imports(self) -> Iterator[Offer]:
        """Libraries, or names of the file that a `use` names."""
        if ":" not in self.before:
            lead = "".join(self.before[1:])
            for library in (name for name in LIBRARIES if name.startswith(lead)):
                yield plain(library.removeprefix(lead), "library", library)
            return
        written = "".join(self.before[1 : self.before.index(":")])
        source = self.load(self.table.source.name, written.strip('"'), written.startswith('"'))
        if isinstance(source, Source):
            yield from self._decls(file_names(parse(source, Sink()), self.load).names)

    def _start(self) -> Iterator[Offer]:
        """The start of a statement: settings, and names that are used and not declared."""
        if self.block == "train":
            for name, word in {**SETTINGS, **FREEZE}.items():
                if name != "metric":
                    yield of_word(name, word, "setting", f"{name} at " if name in FREEZE else f"{name} = ")
        for name, quantity in HARDWARE.get(self.block, {}).items():
            yield plain(name, "setting", quantity.doc, detail=quantity.example, insert=f"{name} = ")
        if self.block not in ("strategy", "at", "stages", *HARDWARE):
            yield from self._undeclared()
        if self.block == "stages":
            yield from self._sizes()

    def _undeclared(self) -> Iterator[Offer]:
        known = (_R.ARGUMENT, _R.SETTING, _R.WORD, _R.TYPE, _R.FIGURE, _R.LIBRARY)
        for use in self.table.uses:
            if use.declared is None and use.role not in known and use.span != self.place.word:
                names = _NAMES.findall(use.span.text)
                yield from (plain(name, use.role.value, detail="not declared yet") for name in names)
        missing = {decl.text: decl for decl in self.table.file.names.values() if isinstance(decl.node, ast.Use)}
        yield from (plain(name, _R.VALUE.value, detail="not found where it is imported from") for name in missing)
        if {"if", "else"}.intersection(self.place.blocks):  # one branch often has the names of the other
            yield from self._decls(self.table.around(self.place.word), PATHS)

    def _statement(self) -> Iterator[Offer]:
        """A statement of a file, a model or a body."""
        since = self._since_comma() if self.first == "dim" else self.before
        header = not self.place.blocks and self.first != "dim"
        if self.block in ("operator", "source", "schedule", "optimizer") and self.first != "dim":
            yield from self._clause()
        elif self.place.brackets:
            yield from self._in_brackets(header or self.first == "forward")
        elif self.first in _DECLARING and len(since) < 2 + (self.first in since):
            yield from self._undeclared()
        elif self.place.previous in (":", "->") or (self.place.previous == "," and "->" in self.before):
            yield from self._types()
        elif self.first == "layer":
            yield from self._decls(self.visible, (_R.MODEL,))
        elif self.first in ("param", "state"):
            yield from self._called(self.first)
        elif self.first in ("dim", "if"):
            yield from self._static()
            ends = zip(self.before, self.before[1:], strict=False)
            yield from (plain(name, "dim") for name, sign in ends if sign == "=" and self.first == "dim")
        elif self.first == "return" or "=" in self.before:
            yield from self._expression()
        else:
            yield from self._undeclared()

    def _clause(self) -> Iterator[Offer]:
        yield from (plain(word, "word") for word in self._phrases(self.first if self.first != "state" else "like"))
        yield from self._decls(self.visible, (_R.DIM, _R.FORMAL, _R.VALUE))
        yield from (plain("result", "word") for _ in range(self.first == "keeps"))

    def _since_comma(self) -> tuple[str, ...]:
        """The texts of the entry of a list that the offset is in."""
        depth, found = 0, list(self.before)
        for at in range(len(found) - 1, -1, -1):
            depth += (found[at] in (")", "]")) - (found[at] in ("(", "["))
            if found[at] == "," and depth == 0:
                return tuple(found[at + 1 :])
        return self.before

    # --- types and calls ---

    def _in_type(self) -> bool:
        inner = self.place.brackets[-1] if self.place.brackets else None
        return inner is not None and inner.shape == "[" and (not inner.callee or inner.callee[-1] in DTYPES)

    def _types(self) -> Iterator[Offer]:
        yield from (plain(name, "type") for name in DTYPES)
        if self.place.brackets:
            yield from (plain(kind, "type") for kind in KINDS)

    def _in_brackets(self, header: bool = False) -> Iterator[Offer]:
        inner = self.place.brackets[-1]
        if self._in_type():
            yield from self._dims()
        elif inner.shape == "[":
            yield from self._dims() if self.first != "layer" else ()
            yield from self._static()
        elif header and len(self.place.brackets) == 1:
            yield from self._formal(inner)
        else:
            yield from self._argument()

    def _formal(self, inner: OpenBracket) -> Iterator[Offer]:
        argument = inner.arguments[-1]
        if argument[-1:] == (":",):
            yield from self._types()
        elif "=" in argument:
            yield from self._static()
            yield from (plain(name, "formal") for name in _NAMES.findall(" ".join(inner.inside)))
        else:
            yield from self._undeclared()

    def _dims(self) -> Iterator[Offer]:
        """Dims in a type: also those of the same statement, which may declare them there."""
        depth, written = 0, list[str]()
        for text in self.before:
            depth += (text == "[") - (text == "]")
            written += [text] * (depth > 0 and text.isidentifier())
        yield from (plain(name, "dim") for name in dict.fromkeys(written))
        yield from self._decls(self.visible, (_R.DIM,))
        yield from self._undeclared()

    def _argument(self) -> Iterator[Offer]:
        """An argument of a call: its name, or its value."""
        calls = [bracket for bracket in self.place.brackets if bracket.callee and bracket.shape == "("]
        if not calls:
            yield from self._expression() if self.block not in ("", "model") else self._static()
            return
        call, within = calls[-1], calls[-1] is self.place.brackets[-1]
        argument = call.arguments[-1]
        target, params = target_of(self.table, self.place, call)
        setting = self.first if self.block == "train" else ""
        if within and not argument:
            given = {each[0] for each in call.arguments[:-1] if each[1:2] == ("=",)}
            yield from (of_formal(f) for f in formals_of(target) if f.name.text not in given)
            yield from (of_param(p) for p in params.values() if p.name not in given and p.kind != "tensors")
            yield from (plain(name, "argument", insert=f"{name} = ") for name in words_of(setting))
        at = active(call, list(params), params)
        dtype = at is not None and list(params.values())[at].kind == "dtype"
        if within and (dtype or argument[-1:] == (":",)):
            yield from self._types()
        elif self.first in ("layer", "param", "state", "dim", "model"):
            yield from self._static()
        else:
            yield from (plain(name, "word") for name in words_of(setting))
            yield from self._expression()

    def _members(self) -> Iterator[Offer]:
        model = model_of(resolved(self.place.owner, self.visible))
        return self._decls(members(model) if model is not None else {}, PATHS)

    # --- expressions ---

    def _decls(self, names: Mapping[str, NameDecl], roles: Sequence[NameRole] = ()) -> Iterator[Offer]:
        late = self.place.word.start
        for name, decl in names.items():
            ahead = decl.role is _R.VALUE and decl.span.source is self.table.source and decl.span.start > late
            if (not roles or decl.role in roles) and (not ahead or roles is PATHS):
                yield of_decl(name, decl)

    def _static(self) -> Iterator[Offer]:
        yield from self._decls(self.visible, _STATIC)
        if not self.place.blocks:
            yield from (of_kind(name, kind, "function") for name, kind in {**WORDS, **TEXTS}.items())

    def _operators(self) -> Iterator[Offer]:
        yield from (of_operator(REGISTRY[name]) for name in operator_names())

    def _expression(self) -> Iterator[Offer]:
        if self.place.previous == "|>":
            yield from self._decls(self.visible, _PIPED)
        else:
            latest = {name: decl for name, decl in reversed(self.visible.items()) if decl.role is _R.VALUE}
            yield from self._decls({**latest, **self.visible}, _VALUES)
            yield from self._undeclared()
            yield plain(SCAN, "operator")
        yield from self._operators()

    def _called(self, place: str) -> Iterator[Offer]:
        """What the language and the files have to be called there."""
        role, table = CALLED[place]
        yield from (of_kind(name, kind, role.value) for name, kind in table.items())
        yield from self._decls(self.visible, (role,))

    # --- training ---

    def _setting(self) -> Iterator[Offer]:
        if self.place.brackets:
            yield from self._argument()
        elif self.first in CALLED:
            yield from self._called(self.first)
        elif self.first == "model":
            yield from self._decls(self.visible, (_R.MODEL,))
        else:
            yield from (plain(word, "word", SETTINGS[self.first].doc) for word in CHOICES.get(self.first, ()))
            yield from (plain(word, "function") for word in words_of(self.first))
            yield from (of_word(name, word, "figure") for name, word in FIGURES.items() if self.first == "metric")
            yield from self._expression()

    # --- strategies ---

    def _rule(self, before: Sequence[str]) -> Iterator[Offer]:
        """A rule from its first word on; that after `at SELECTOR:` is one too."""
        first, previous = before[0] if before else "", self.place.previous
        if (first == "at" or self.block == "stages") and ":" in before:
            rest = before[before.index(":") + 1 :]
            return selectors(self.table, self.before) if self.block == "stages" else self._rule(rest)
        if first == "at":
            return selectors(self.table, self.before)
        if self.block == "stages" or first in ("microbatches", "chunks", "virtual"):
            return self._sizes()
        if first == "mesh":
            return self._sizes() if "=" in self._since_comma() else self._undeclared()
        if first in _AFTER or previous in _AFTER:
            return (plain(word, "word") for word in self._phrases(first if first in _AFTER else previous))
        if first == "split" and "over" not in before:
            return self._dims_of_root()
        if first == "zero" and before[-1] == "," and not self.place.brackets:
            return iter([plain("keep", "word", RULES["zero"].doc)])
        if self._in_type() and previous != "@" and "@" not in self._since_comma()[-3:]:
            return self._pinned()
        return self._axes() if "sizes" not in before and "virtual" not in before else self._sizes()

    def _phrases(self, word: str) -> Iterator[str]:
        """What is left of the words that may follow a word."""
        said = self.before[self.before.index(word) + 1 :] if word in self.before else ()
        for phrase in (phrase.split() for phrase in _AFTER.get(word, ())):
            if tuple(phrase[: len(said)]) == tuple(said):
                yield " ".join(phrase[len(said) :])

    def _axes(self) -> Iterator[Offer]:
        return self._decls(self.visible, (_R.AXIS,))

    def _sizes(self) -> Iterator[Offer]:
        return self._decls(self.visible, (_R.AXIS, _R.DIM))

    def _pinned(self) -> Iterator[Offer]:
        yield from self._dims_of_root()
        for decl in self.table.file.names.values():
            yield from self._decls(members(decl), (_R.DIM,))
        yield from self._undeclared()

    def _dims_of_root(self) -> Iterator[Offer]:
        """Dims of the root model and of the file, and those of layers by their paths."""
        if self.place.previous == ".":
            return dim_paths(self.root, self.place.owner)
        return dim_paths({**self.root, **{n: decl for n, decl in self.visible.items() if n not in self.root}})
