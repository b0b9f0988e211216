"""A place in an open file -> what is shown where one points there: what the plan says of the value,
layer, axis or strategy, how its name is declared, and the page of what the language has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from shardlang.editor.open_file import OpenFile
from shardlang.editor.words.names import NameTable
from shardlang.editor.words.scopes import NameDecl, NameRole, members
from shardlang.editor.words.signatures import of_decl
from shardlang.editor.words.uses import NameUse
from shardlang.frozen.records import dataclass
from shardlang.sources.source import TextRange
from shardlang.syntax import ast

# The page of a name of the language; KeyError where it has none.
Pages = Callable[[str], str]
_WORD = re.compile(r"[A-Za-z_]\w*")
_HEADING = re.compile(r"\A### .*\n+")
# Roles whose values the plan lays out where they are declared.
_LAID_OUT = frozenset((NameRole.VALUE, NameRole.FIELD, NameRole.PARAMETER, NameRole.STATE, NameRole.METRIC))


@dataclass(frozen=True)
class _Pointed:
    """A name, its place in the text, and its declaration."""

    use: NameUse
    decl: NameDecl | None
    file: OpenFile
    table: NameTable

    def texts(self) -> Iterator[str]:
        yield from self._planned()
        if self.decl is not None:
            shown = of_decl(self.use.span.text, self.decl)
            said = f"{self.use.role.value} `{shown.label}`" + (f": `{shown.detail}`" if shown.detail else "")
            yield said + (f"\n\n{shown.doc}" if shown.doc else "")

    def _planned(self) -> Iterator[str]:
        found, name = self.file.layouts, self.use.span.text
        declared = self.use.declared
        if self.use.role is NameRole.STRATEGY:
            yield from (lens.text for lens in self.file.lenses if lens.strategy == name)
        elif found is None or declared is None or declared.source is not self.table.source:
            return
        elif self.use.role is NameRole.AXIS and name in found.axes and self._chosen(declared.start):
            yield found.axes[name]
        elif self.use.role is NameRole.LAYER and (self._model(declared.start), name) in found.layers:
            yield found.layers[self._model(declared.start), name]
        elif self.use.role in _LAID_OUT:
            text = self.file.planned_text(declared.start)
            yield from (text[1],) if text is not None else ()

    def _model(self, at: int) -> str:
        """The name of the model around a place."""
        models = (item for item in self.table.file.tree.items if isinstance(item, ast.Model))
        return next((model.name.text for model in models if model.span.start <= at < model.span.end), "")

    def _chosen(self, at: int) -> bool:
        """Whether a place is in the strategy that is shown."""
        inside = (each for each in self.table.file.tree.strategies if each.span.start <= at < each.span.end)
        return any(each.name.text == self.file.chosen for each in inside)


def hovered(file: OpenFile, table: NameTable, at: int, pages: Pages) -> tuple[TextRange, str] | None:
    """The place that is told of, and the text in Markdown; None where there is nothing to tell."""
    use = table.at(at)
    if use is not None and at < use.span.end and use.declared is not None:
        place = use.span.start, use.span.end
        texts = list(_Pointed(use, _declaration(table, use), file, table).texts())
        return (place, "\n\n---\n\n".join(texts)) if texts else None
    planned = file.planned_text(at)
    word = next(
        (found for found in _WORD.finditer(file.text, *_line(file.text, at)) if found.start() <= at < found.end()), None
    )
    page = _page(word[0], pages) if word is not None and not _in_comment(file.text, at) else ""
    texts = [*([planned[1]] if planned is not None else []), *([page] if page else [])]
    if not texts:
        return None
    place = word.span() if page and word is not None else planned[0] if planned is not None else (at, at)
    return place, "\n\n---\n\n".join(texts)


def _line(text: str, at: int) -> TextRange:
    end = text.find("\n", at)
    return text.rfind("\n", 0, at) + 1, len(text) if end < 0 else end


def _in_comment(text: str, at: int) -> bool:
    return "#" in text[_line(text, at)[0] : at]


def _page(word: str, pages: Pages) -> str:
    try:
        return _HEADING.sub("", pages(word))
    except KeyError:
        return ""


def _declaration(table: NameTable, use: NameUse) -> NameDecl | None:
    """The declaration of a name: of this file or an imported one, or of a model of these."""
    for file in (table.file, *table.file.uses.values()):
        for decl in file.names.values():
            for each in (decl, *members(decl).values()):
                if each.span == use.declared:
                    return each
    found = table.values.find(use.span.text)
    return found if found is not None else table.scope(use.span.start).find(use.span.text)
