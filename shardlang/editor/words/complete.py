"""A table of names and an offset in its text -> what may be written there, each with what it is,
what is said of it, and the text to insert.

`cursor` says where it is; here each place has its kinds of names. Nothing is left out by what is
typed already: editors do that."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from shardlang.check.context import Loader
from shardlang.check.files.imports import LIBRARIES
from shardlang.check.model.formals import KINDS
from shardlang.check.own import NEEDS
from shardlang.check.train.frozen import FREEZE
from shardlang.check.train.hardware import SETTINGS as HARDWARE
from shardlang.check.train.hardware import unit_kind
from shardlang.check.train.late import FIGURES
from shardlang.check.train.settings import CHOICES, SETTINGS
from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.words.cursor import CursorPlace, OpenBracket, place_at
from shardlang.editor.words.kinds import PlaceNames
from shardlang.editor.words.names import NameTable, names_of
from shardlang.editor.words.paths import PATHS, dim_paths, selectors
from shardlang.editor.words.scopes import NameRole, file_names, formals_of, members, model_of
from shardlang.editor.words.signatures import (
    SNIPPETS,
    Offer,
    active,
    kinds_of,
    of_formal,
    of_param,
    of_word,
    plain,
    resolved,
    target_of,
    words_of,
)
from shardlang.editor.words.uses import CALLED, OF_DIMS
from shardlang.facts.dtypes import DTYPES
from shardlang.plan.pipeline.schedules import SCHEDULES as STAGE_SCHEDULES
from shardlang.plan.rewrite.recompute_rules import GATHERS, NO_PRODUCTS
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.literals import UNITS
from shardlang.syntax.parse import parse
from shardlang.syntax.tokens import ITEM
from shardlang.syntax.words import CLAUSES, ITEMS, MEMBERS, RULES

_R = NameRole
# The words that may follow a word of a rule.
_AFTER = {
    "recompute": (GATHERS, NO_PRODUCTS), "attend": ("evenly", "in a ring"), "on": ("host", "device"),
    "needs": tuple(NEEDS), "like": ("parameter",),
}  # fmt: skip
# Settings of `train` that are computed; sources are given fields.
_OF_VALUES = ("loss", "metric", "data", "eval")
# Where something is called, chosen or counted, no value of true or false stands.
_NO_TRUTH = (*CALLED, *CHOICES, "layer", "model", "mesh", "microbatches", "chunks", "stages")
_BEFORE_RUN = ("layer", "param", "state", "dim", "model")
# Kinds of arguments that are known before a run.
_STATIC = ("dim", "int", "float", "bool", "str", "number", "numbers", "pair")
_DECLARING = ("layer", "param", "state", "dim", "mesh", "model", "fn", "strategy", "operator", "metric", "level")
_ITEM = re.compile(rf"^{ITEM.pattern}", re.MULTILINE)


def complete(table: NameTable, offset: int, load: Loader) -> tuple[Offer, ...]:
    """All that may be written at an offset; nothing in comments. load: finds the texts of
    imports."""
    place = place_at(table.source, offset)
    if place is None:
        return ()
    lost = not any(span.start <= offset <= span.end for span, _ in table.places)
    if lost and place.blocks and place.block not in HARDWARE:
        table = names_of(parse(_closed(place, offset), Sink()), load)
    found = dict[tuple[str, bool], Offer]()
    for offer in _Offers(table, place, load, offset).all():
        found.setdefault((offer.label, offer.snippet), offer)
    return tuple(found.values())


def _are_static(kinds: Collection[str]) -> bool:
    """Whether arguments of these kinds are all known before a run; not where none is known."""
    return bool(kinds) and all(kind in _STATIC for kind in kinds)


def _closed(place: CursorPlace, offset: int) -> Source:
    """The text with an end of the item around an offset, which a mistake keeps out of the tree: its
    blocks are closed there, without the statement that goes on."""
    source, text = place.word.source, place.word.source.text
    rest = next((found.start() for found in _ITEM.finditer(text, offset)), len(text))
    blank = " " * (offset - place.start) + "\n" + "}\n" * len(place.blocks)
    return Source(source.name, text[: place.start] + blank + text[rest:])


class _Offers(PlaceNames):
    """All that may be written at one place."""

    def all(self) -> Iterator[Offer]:
        place = self.place
        if place.quoted:
            yield from self._strings()
            return
        if place.unit:
            if place.word.text or self.block in HARDWARE or self.first == "bucket":
                yield from (plain(unit, "unit", f"{place.unit}{unit}") for unit in UNITS if self._measures(unit))
            return
        names = self._names() if place.name or place.previous == "." else iter(())
        # Where a statement begins, its words are what one looks for, and elsewhere names are.
        for offers in (names, self._words()) if self.before else (self._words(), names):
            yield from offers

    def _measures(self, unit: str) -> bool:
        """Whether a unit is of what stands there: a size, a rate, a time; where that is unknown all
        are."""
        known = HARDWARE.get(self.block, {}).get(self.first)
        kind = "a size" if self.first == "bucket" else known.kind if known is not None else ""
        return not kind or unit_kind(ast.Number(unit, 1, unit, span=self.place.word)) == kind

    def _words(self) -> Iterator[Offer]:
        """Words of the language, as the grammar has them here."""
        docs = {**MEMBERS, **RULES, **CLAUSES} if self.place.blocks else {**RULES, **ITEMS}
        start = not self.before
        no_value = not self.place.brackets and (self.first in _NO_TRUTH or self.block in HARDWARE)
        for word in self.place.allowed:
            if no_value and word in ("not", "true", "false"):
                continue
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
            return self.decls(self.visible, (_R.DEVICE,))
        if self._in_type():
            return self._in_brackets()
        if self.block == "train" and "=" not in self.before:
            return selectors(self.table, self.before) if "at" in self.before else self.fresh()
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
            yield from self.decls(file_names(parse(source, Sink()), self.load).names)

    def _start(self) -> Iterator[Offer]:
        """The start of a statement: settings, and names that are used and not declared."""
        if self.block == "train":
            for name, word in {**SETTINGS, **FREEZE}.items():
                if name != "metric":
                    yield of_word(name, word, "setting", f"{name} at " if name in FREEZE else f"{name} = ")
        for name, quantity in HARDWARE.get(self.block, {}).items():
            yield plain(name, "setting", quantity.doc, detail=quantity.example, insert=f"{name} = ")
        if self.block not in ("strategy", "at", "stages", *HARDWARE):
            yield from self.fresh()
        if self.block == "stages":
            yield from self._sizes()

    def _statement(self) -> Iterator[Offer]:
        """A statement of a file, a model or a body."""
        since = self._since_comma() if self.first == "dim" else self.before
        header = not self.place.blocks and self.first != "dim"
        if self.block in ("operator", "source", "schedule", "optimizer") and self.first != "dim":
            yield from self._clause()
        elif self.place.brackets:
            yield from self._in_brackets(header or self.first == "forward")
        elif self.first in _DECLARING and len(since) < 2 + (self.first in since):
            yield from self.fresh()
        elif self.place.previous in (":", "->") or (self.place.previous == "," and "->" in self.before):
            yield from self.types()
        elif self.first == "layer":
            yield from self.decls(self.visible, (_R.MODEL,))
        elif self.first in ("param", "state"):
            yield from self.called(self.first)
        elif self.first in ("dim", "if"):
            yield from self.static()
            yield from (plain(name, "dim") for name in self.before_sign("=") if self.first == "dim")
        elif self.first == "return" or "=" in self.before:
            yield from self.expression()
        else:
            yield from self.fresh()

    def _clause(self) -> Iterator[Offer]:
        yield from (plain(word, "word") for word in self._phrases(self.first if self.first != "state" else "like"))
        yield from self.decls(self.visible, (_R.DIM, _R.FORMAL, _R.VALUE))
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

    def _in_brackets(self, header: bool = False) -> Iterator[Offer]:
        inner = self.place.brackets[-1]
        if self._in_type():
            yield from self.dims()
        elif inner.shape == "[":
            yield from self.dims() if self.first != "layer" else ()
            yield from self.static()
        elif header and len(self.place.brackets) == 1:
            yield from self._formal(inner)
        else:
            yield from self._argument()

    def _formal(self, inner: OpenBracket) -> Iterator[Offer]:
        argument = inner.arguments[-1]
        if argument[-1:] == (":",):
            yield from self.types()
            yield from (plain(kind, "type") for kind in KINDS)
        elif "=" in argument:
            yield from self.static()
            yield from (plain(name, "formal") for name in self.before_sign(":")[:-1])
        else:
            yield from self.fresh()

    def _argument(self) -> Iterator[Offer]:
        """An argument of a call: its name, or its value."""
        calls = [bracket for bracket in self.place.brackets if bracket.callee and bracket.shape == "("]
        if not calls:
            yield from self.expression() if self.block not in ("", "model") else self.static()
            return
        call, within = calls[-1], calls[-1] is self.place.brackets[-1]
        argument = call.arguments[-1]
        target, params = target_of(self.table, self.place, call)
        if within and not argument:
            setting = self.first if self.block == "train" and self.first not in _OF_VALUES else ""
            given = {each[0] for each in call.arguments[:-1] if each[1:2] == ("=",)}
            yield from (of_formal(f) for f in formals_of(target) if f.name.text not in given)
            yield from (of_param(p) for p in params.values() if p.name not in given and p.kind != "tensors")
            yield from (plain(name, "argument", insert=f"{name} = ") for name in words_of(setting))
            yield from self.decls(self.visible if self.first == "eval" else {}, (_R.FIELD,))
        kinds = kinds_of(target, params)
        at = active(call, list(kinds), params)
        kind = list(kinds.values())[at] if at is not None else ""
        named = argument[1:2] == ("=",)
        if within and (kind == "dtype" or argument[-1:] == (":",)):
            yield from self.types()
        elif named and target is None and kind in OF_DIMS:
            yield from self.dims()
        elif self.first in _BEFORE_RUN or _are_static([kind] if named else kinds.values()):
            yield from self.static()
        else:
            yield from self._plain_setting()

    def _members(self) -> Iterator[Offer]:
        model = model_of(resolved(self.place.owner, self.visible))
        return self.decls(members(model) if model is not None else {}, PATHS)

    # --- training ---

    def _setting(self) -> Iterator[Offer]:
        if self.place.brackets:
            yield from self._argument()
        elif self.first in CALLED:
            yield from self.called(self.first)
        elif self.first == "model":
            yield from self.decls(self.visible, (_R.MODEL,))
        else:
            yield from (plain(word, "word", SETTINGS[self.first].doc) for word in CHOICES.get(self.first, ()))
            yield from self._plain_setting()

    def _plain_setting(self) -> Iterator[Offer]:
        """For `train` all that a setting has of words, figures and metrics; else a value."""
        setting = self.first if self.block == "train" else ""
        if setting == "metric":
            yield from (of_word(name, word, "figure") for name, word in FIGURES.items())
        if setting not in SETTINGS or setting in _OF_VALUES:
            yield from self.expression()
            return
        yield from (plain(name, "word") for name in words_of(setting))
        if setting == "evaluate":
            metrics = (use.span.text for use in self.table.uses if use.role is _R.METRIC)
            yield from (plain(name, _R.METRIC.value) for name in metrics)
        yield from self.static()

    # --- strategies ---

    def _rule(self, before: Sequence[str]) -> Iterator[Offer]:
        """A rule from its first word on; that after `at SELECTOR:` is one too."""
        if not before:  # words alone begin a rule
            return iter(())
        first, previous = before[0], self.place.previous
        if (first == "at" or self.block == "stages") and ":" in before:
            rest = before[before.index(":") + 1 :]
            return selectors(self.table, self.before) if self.block == "stages" else self._rule(rest)
        if first == "at":
            return selectors(self.table, self.before)
        if self.block == "stages" or first in ("microbatches", "chunks", "virtual"):
            return self._sizes()
        if first == "mesh":
            return self._sizes() if "=" in self._since_comma() else self.fresh()
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
        """The rest of the words that may follow a word."""
        said = self.before[self.before.index(word) + 1 :] if word in self.before else ()
        for phrase in (phrase.split() for phrase in _AFTER.get(word, ())):
            if tuple(phrase[: len(said)]) == tuple(said):
                yield " ".join(phrase[len(said) :])

    def _axes(self) -> Iterator[Offer]:
        return self.decls(self.visible, (_R.AXIS,))

    def _sizes(self) -> Iterator[Offer]:
        return self.decls(self.visible, (_R.AXIS, _R.DIM))

    def _pinned(self) -> Iterator[Offer]:
        yield from self._dims_of_root()
        for decl in self.table.file.names.values():
            yield from self.decls(members(decl), (_R.DIM,))

    def _dims_of_root(self) -> Iterator[Offer]:
        """Dims of the root model and of the file, and those of layers by their paths."""
        if self.place.previous == ".":
            yield from dim_paths(self.root, self.place.owner)
            return
        yield from self.decls(self.root, (_R.DIM,))
        yield from self.decls(self.visible, (_R.DIM,))
        yield from dim_paths(self.root)
