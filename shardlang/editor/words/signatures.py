"""A declaration, of a file or of the language -> how it is written and what is said of it, as an
offer of completion; and the call around an offset -> its signature, with the argument that stands
there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from shardlang.check.declared import DeclaredKind, written
from shardlang.check.declared import signature as written_signature
from shardlang.check.files.own import OF_EVERY_SOURCE
from shardlang.check.train.settings import SETTINGS
from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.words.cursor import CursorPlace, OpenBracket, place_at
from shardlang.editor.words.names import NameTable
from shardlang.editor.words.scopes import NameDecl, NameRole, formals_of, members, model_of
from shardlang.editor.words.uses import CALLED, called_by, params_of
from shardlang.frozen.records import dataclass
from shardlang.ops.declaration import REGISTRY, Operator, Param
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import parse_expression
from shardlang.syntax.words import Word

# What is written where an item begins.
SNIPPETS = {
    "strategy": "strategy ${1:name} {\n  mesh ${2:dp} = auto\n  split ${3:batch} over ${2:dp}\n}",
    "train": "train {\n  model = ${1:Net}()\n  data = ${2:digits}(batch = ${3:batch})\n"
    "  loss = ${4:cross_entropy(model(image), label)}\n  optimizer = ${5:adamw(lr = 3e-4)}\n  epochs = ${6:10}\n}",
}
_CODE, _NAMES = re.compile(r"`([^`]*)`"), re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True)
class Offer:
    """kind: a role, or "keyword", "unit", "schedule" or "snippet". detail: type or default. insert:
    what is written in place of the word; of a snippet with places to fill in, `${1:name}`."""

    label: str
    kind: str
    detail: str = ""
    doc: str = ""
    insert: str = ""
    snippet: bool = False


@dataclass(frozen=True, slots=True)
class CallSignature:
    """parameters: as they are written in the label, in order. active: which of them the offset is
    at; None where it is beyond all."""

    label: str
    parameters: tuple[str, ...]
    active: int | None
    doc: str = ""


def plain(label: str, kind: str, doc: str = "", detail: str = "", insert: str = "", snippet: bool = False) -> Offer:
    return Offer(label, kind, detail, doc, insert=insert or label, snippet=snippet)


def of_word(word: str, known: Word | None, kind: str = "keyword", insert: str = "") -> Offer:
    """A word of the language, with a line that it stands in."""
    return plain(word, kind, known.doc if known else "", known.form.partition("\n")[0] if known else "", insert)


def of_kind(name: str, known: DeclaredKind, kind: str) -> Offer:
    """Something of the language that is called."""
    return plain(name, kind, known.doc, written_signature(name, known.params))


def of_operator(operator: Operator) -> Offer:
    return plain(operator.name, "operator", operator.doc, written_signature(operator.name, operator.params))


def of_param(param: Param) -> Offer:
    """An argument by its name."""
    return plain(param.name, "argument", detail=written(param), insert=f"{param.name} = ")


def of_formal(formal: ast.Formal) -> Offer:
    """An argument of what a file declares, by its name."""
    return plain(formal.name.text, "argument", detail=formal.span.text, insert=f"{formal.name.text} = ")


def of_decl(name: str, decl: NameDecl) -> Offer:
    """A declaration of a file."""
    return plain(name, decl.role.value, said_of(decl), " ".join(_detail(decl).split()))


def _detail(decl: NameDecl) -> str:
    match decl.node:
        case ast.Formal() | ast.Field() | ast.MeshAxis():
            return decl.node.span.text
        case ast.DimEntry() | ast.Layer() | ast.Assign() | ast.Setting():
            return decl.node.value.span.text
        case ast.Tensor():
            return decl.node.type.span.text
        case ast.Model() | ast.Function() | ast.Operator() | ast.OwnSource() | ast.OwnSchedule() | ast.OwnOptimizer():
            return f"{decl.text}({', '.join(formal.span.text for formal in decl.node.formals)})"
    return ""


def said_of(decl: NameDecl) -> str:
    """The `##` lines above an item."""
    lines = decl.span.source.text[: decl.node.span.start].splitlines()[::-1]
    count = next((at for at, line in enumerate(lines) if not line.startswith("##")), len(lines))
    return "\n".join(line.removeprefix("##").strip() for line in lines[:count][::-1])


def words_of(setting: str) -> list[str]:
    """The names in the examples of a setting of `train` whose calls no table declares."""
    known = SETTINGS.get(setting) if setting not in CALLED else None
    codes = [known.form.partition("=")[2], *_CODE.findall(known.doc)] if known is not None else []
    found = _NAMES.findall(" ".join(code for code in codes if "(" in code or "=" in code))
    return list(dict.fromkeys([*found, *(("weights", "ema") if setting == "evaluate" else ())]))


# --- calls -----------------------------------------------------------------------


def resolved(path: Sequence[str], names: Mapping[str, NameDecl]) -> NameDecl | None:
    """The declaration that a path names: `blocks`, then in its model `attention`."""
    found = names.get(path[0]) if path else None
    for part in path[1:]:
        model = model_of(found)
        found = members(model).get(part) if model is not None else None
    return found


def target_of(table: NameTable, place: CursorPlace, call: OpenBracket) -> tuple[NameDecl | None, Mapping[str, Param]]:
    """All that a call calls: a declaration, or the parameters of what the language
    has."""
    setting = place.before[0] if place.block == "train" or place.before[0] in ("param", "state") else ""
    names = table.file.names if setting in CALLED else table.scope(place.word.start).visible()
    target = called_by(call.callee[-1], resolved(call.callee, names))
    if target is not None:
        return target, {p.name: p for p in OF_EVERY_SOURCE} if target.role is NameRole.SOURCE else {}
    return None, params_of(".".join(call.callee), setting)


def kinds_of(target: NameDecl | None, params: Mapping[str, Param]) -> Mapping[str, str]:
    """The arguments of a call, each with its kind: that of a tensor is ""."""
    own = {f.name.text: f.kind.text if isinstance(f.kind, ast.Name) else "" for f in formals_of(target)}
    return {**own, **{name: param.kind for name, param in params.items()}}


def signature(table: NameTable, offset: int) -> CallSignature | None:
    """The signature of the innermost call around an offset; None where there is none."""
    place = place_at(table.source, offset)
    calls = [bracket for bracket in place.brackets if bracket.shape == "(" and bracket.callee] if place else []
    if place is None or not calls:
        return None
    call = calls[-1]
    target, params = target_of(table, place, call)
    name = call.callee[-1]
    if target is not None:
        formals = formals_of(target)
        names = [formal.name.text for formal in formals]
        parts = tuple(" ".join(formal.span.text.split()) for formal in formals)
        doc = said_of(model_of(target) or target)
    else:
        names = list(params)
        parts = tuple(map(written, params.values()))
        setting = CALLED.get(place.before[0], (None, {}))[1]
        doc = setting[name].doc if name in setting else REGISTRY[name].doc if name in REGISTRY else ""
    if not parts and place.block == "train":
        example = _example(place.before[0], name)
        names = [each.name.text if isinstance(each, ast.Keyword) else "" for each in example]
        parts = tuple(each.span.text for each in example)
        doc = SETTINGS[place.before[0]].doc if example else ""
    if not parts:
        return None
    return CallSignature(f"{name}({', '.join(parts)})", parts, active(call, names, params), doc)


def _example(setting: str, name: str) -> tuple[ast.Expr | ast.Keyword, ...]:
    """The arguments of a call as the example of a setting has it, for those that no table
    declares."""
    form = SETTINGS[setting].form.partition(" = ")[2] if setting in SETTINGS else ""
    tree = parse_expression(Source(setting, form), Sink()) if form else None
    calls = (node for node in ast.nodes_of((tree,) if tree is not None else ()) if isinstance(node, ast.Call))
    return next(((*call.args, *call.keywords) for call in calls if call.callee.span.text == name), ())


def active(call: OpenBracket, names: Sequence[str], params: Mapping[str, Param]) -> int | None:
    """The parameter that the last argument is for: by its name, or by its place."""
    *earlier, last = call.arguments
    if last[1:2] == ("=",) and last[0] in names:
        return names.index(last[0])
    at = sum(each[1:2] != ("=",) for each in earlier) + call.piped
    many = next((index for index, name in enumerate(names) if name in params and params[name].kind == "tensors"), None)
    at = at if many is None else min(at, many)
    return at if at < len(names) and last[1:2] != ("=",) else None
